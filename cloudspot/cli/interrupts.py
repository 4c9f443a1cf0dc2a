"""Ctrl-C while a job is followed: the first detaches, the second ends the process at once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType

from cloudspot.cli import exit_codes


class Detached(Exception):
    """The person pressed Ctrl-C: stop following, and leave the job as it is."""


class Interrupts:
    """Within the block Ctrl-C only asks for a detach; ``check`` carries it out at a good moment."""

    def __init__(self) -> None:
        self._asked = False

    def __enter__(self) -> Interrupts:
        self._previous = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def check(self) -> None:
        """Go on, unless a detach was asked for.

        Raises:
            Detached: it was.
        """
        if self._asked:
            raise Detached

    def _on_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        # A handler may run in the middle of a print, so it writes past Python's buffers.
        if self._asked:
            os.write(2, b"\n")
            os._exit(exit_codes.INTERRUPTED)
        self._asked = True
        os.write(2, b"\ndetaching; Ctrl-C again to leave at once\n")
