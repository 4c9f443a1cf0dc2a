"""Handles Ctrl-C while a job is followed: the first detaches, the second ends the process at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

from cloudspot.cli import exit_codes


class Detached(Exception):
    """Ctrl-C was pressed: stop following and leave the job as it is."""


class Interrupts:
    """Within the block, Ctrl-C only asks for a detach; ``check`` carries it out at a safe moment."""

    def __init__(
        self, leave: Callable[[], None] | None = None, *, instead: Callable[[], None] | None = None
    ) -> None:
        """Take what restores the terminal for an exit without clean-up; it must be safe in a signal handler.

        Whoever gives it confirms the first Ctrl-C on the screen. ``instead`` is called, once, in the place of
        a detach, to end the job.
        """
        self.is_asked = False
        """Whether it was pressed."""
        self._leave = leave
        self._instead = instead
        self._is_done = False

    def __enter__(self) -> Interrupts:
        self._previous = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_error: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def check(self) -> None:
        """Raise Detached if Ctrl-C was pressed, or do what is to be done instead."""
        if not self.is_asked or self._is_done:
            return
        if self._instead is None:
            raise Detached
        self._is_done = True
        self._instead()

    def _on_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if self.is_asked:
            if self._leave is not None:
                self._leave()
            os.write(2, b"\n")
            os._exit(exit_codes.INTERRUPTED)
        self.is_asked = True
        if self._leave is None:
            # A handler may run in the middle of a print, so bypass Python's buffers.
            what = b"detaching" if self._instead is None else b"ending the job's machine"
            os.write(2, b"\n%b; Ctrl-C again to leave at once\n" % what)
