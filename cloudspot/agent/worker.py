"""The base of the agent's worker threads."""

from __future__ import annotations

import threading


class Stopped(Exception):
    """The work was stopped before its end."""


class Worker:
    """A thread that runs until its work is done or it is stopped; the process can end before it."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Make the thread end after its current step; return at once."""
        self._stopped.set()

    def _run(self) -> None:
        raise NotImplementedError

    def _pause(self, seconds: float) -> None:
        """Wait in the thread; raise Stopped if it should end."""
        if self._stopped.wait(seconds):
            raise Stopped

    def _join(self, seconds: float | None = None) -> None:
        """Wait until the thread, if started, has ended; at most ``seconds`` if given."""
        if self._thread.is_alive():
            self._thread.join(seconds)
