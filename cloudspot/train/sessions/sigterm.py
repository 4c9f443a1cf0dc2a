"""Notes that this process received SIGTERM, although the script's own handler deals with it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_own: list[Any] = []
"""The handlers of ``put_off``."""


class _Noting:
    """The script's handler, and a note of its calls."""

    was_called = False

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        _Noting.was_called = True
        self._handler(number, frame)


def watch() -> None:
    """From now on note SIGTERM, if the script has a handler for it: without one, it ends the process.

    Call it again when the script may have set another handler.
    """
    handler = signal.getsignal(signal.SIGTERM)
    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_main_thread and callable(handler) and not isinstance(handler, _Noting) and handler not in _own:
        signal.signal(signal.SIGTERM, _Noting(handler))


def put_off(may_put_off: Callable[[], bool]) -> None:
    """Where SIGTERM would end this process at once, let it go on for now if ``may_put_off()``.

    torchrun sends it to the other ranks of a machine when one has ended, and SIGKILL 30 s later.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        if not may_put_off():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _own.append(end)
        signal.signal(signal.SIGTERM, end)


def was_received() -> bool:
    """Return whether SIGTERM has come since the first ``watch``."""
    return _Noting.was_called
