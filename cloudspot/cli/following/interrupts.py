"""Handle Ctrl-C while a job is followed: the first one detaches, the second one exits immediately."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

from cloudspot.cli import exit_codes


class Detached(Exception):
    """Ctrl-C was pressed: stop following, and let the job continue."""


class Interrupts:
    """Within the block, Ctrl-C only requests a detach; ``check`` performs the detach at a safe moment."""

    def __init__(
        self, leave: Callable[[], None] | None = None, *, instead: Callable[[], None] | None = None
    ) -> None:
        """``leave`` restores the terminal for an immediate exit; it runs in a signal handler.

        If it is given, the caller confirms the first Ctrl-C on the screen. ``instead`` is called once instead
        of detaching, to end the job.
        """
        self.is_asked = False
        """Whether Ctrl-C has been pressed."""
        self._leave = leave
        self._instead = instead
        self._is_done = False

    def __enter__(self) -> Interrupts:
        self._previous = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_error: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def check(self) -> None:
        """If Ctrl-C has been pressed, raise Detached or call ``instead``."""
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
            # The handler may interrupt a print, so bypass Python's buffers.
            what = b"detaching" if self._instead is None else b"ending the job's machine"
            os.write(2, b"\n%b; press Ctrl-C again to leave immediately\n" % what)
