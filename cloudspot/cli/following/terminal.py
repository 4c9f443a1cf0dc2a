"""The state of the terminal while it shows a panel: changed on entry, and always restored at the end."""

from __future__ import annotations

import os
import signal
import sys
import termios
from contextlib import suppress
from types import FrameType
from typing import Any

_SHOW_CURSOR = b"\x1b[?25h\x1b[0m"
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def can_hold_a_panel() -> bool:
    """Return whether standard output is a terminal whose cursor can be moved."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", "unknown", ""}


class TerminalState:
    """Within the block, typed keys are not echoed, because they would garble the panel.

    The terminal is also restored after an exception, and after a SIGTERM, SIGHUP or SIGQUIT; these still end
    the process unless its parent has made it ignore them (``nohup``). Ctrl-Z only requests a pause;
    ``suspend`` performs the pause at a safe moment.
    """

    def __init__(self) -> None:
        self._attributes: list[Any] | None = None
        self._previous: dict[int, Any] = {}
        self.is_suspend_asked = False

    def __enter__(self) -> TerminalState:
        self.hush()
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_end)
        self._previous[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._on_suspend)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self.restore()

    @property
    def is_ours(self) -> bool:
        """Whether the process is in the foreground; otherwise it must not touch the terminal."""
        try:
            return os.tcgetpgrp(sys.__stdout__.fileno()) == os.getpgrp()  # type: ignore[union-attr]
        except (OSError, ValueError):
            return True  # There is no job control.

    def hush(self) -> None:
        """Turn off the echo of typed keys if the terminal is ours."""
        with suppress(OSError, ValueError):
            descriptor = sys.stdin.fileno()
            if not os.isatty(descriptor) or not self.is_ours:
                return
            attributes = termios.tcgetattr(descriptor)
            if self._attributes is None:
                self._attributes = attributes
            changed = [*attributes]
            changed[3] &= ~termios.ECHO
            termios.tcsetattr(descriptor, termios.TCSADRAIN, changed)

    def restore(self) -> None:
        """Restore the terminal if it is ours; safe to repeat and to call from a signal handler."""
        if not self.is_ours:
            return  # The shell controls the terminal, and has restored it.
        with suppress(OSError, ValueError):
            os.write(sys.__stdout__.fileno(), _SHOW_CURSOR)  # type: ignore[union-attr]
        with suppress(OSError, ValueError):
            if self._attributes is not None:
                # Do not wait for pending output: the terminal may hang.
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._attributes)

    def suspend(self) -> None:
        """Stop the process as Ctrl-Z does, and return when it continues; remove the panel first."""
        self.is_suspend_asked = False
        self.restore()
        previous = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, previous)
        self.hush()

    def _on_suspend(self, _signal: int, _frame: FrameType | None) -> None:
        self.is_suspend_asked = True

    def _on_end(self, number: int, _frame: FrameType | None) -> None:
        self.restore()
        with suppress(OSError):
            os.write(sys.__stdout__.fileno(), b"\n")  # type: ignore[union-attr]
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
