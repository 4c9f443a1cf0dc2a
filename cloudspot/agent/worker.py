"""The base of the agent's worker threads."""

from __future__ import annotations

import threading


class Stopped(Exception):
    """The work was ended where it stood."""


class Worker:
    """A thread that works until its work is over or it is stopped; the end of the process does not wait."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Have the thread end after its current step; returns at once."""
        self._stopped.set()

    def _run(self) -> None:
        raise NotImplementedError

    def _pause(self, seconds: float) -> None:
        """Wait in the thread; raise Stopped once it is to end."""
        if self._stopped.wait(seconds):
            raise Stopped

    def _join(self, seconds: float | None = None) -> None:
        """Wait until the thread has ended, if it was started; at most ``seconds``, or without a limit."""
        if self._thread.is_alive():
            self._thread.join(seconds)
