"""The base class of the agent's worker threads."""

from __future__ import annotations

import threading


class Stopped(Exception):
    """The work was stopped before it was finished."""


class Worker:
    """A thread that runs until its work is done or it is stopped; it does not keep the process alive."""

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
        """Wait in the thread; raise Stopped if the thread should end."""
        if self._stopped.wait(seconds):
            raise Stopped

    def _join(self, seconds: float | None = None) -> None:
        """Wait until the thread, if started, has ended, for at most ``seconds`` if given."""
        if self._thread.is_alive():
            self._thread.join(seconds)
