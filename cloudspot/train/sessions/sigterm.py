"""Records that this process received SIGTERM, even if the script's own handler handles it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_own: list[Any] = []
"""The handlers that ``put_off`` has installed."""


class _Noting:
    """The script's handler, wrapped to record its calls."""

    was_called = False

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        _Noting.was_called = True
        self._handler(number, frame)


def watch() -> None:
    """From now on, record SIGTERM if the script has a handler for it; without one, SIGTERM ends the process.

    Call this again when the script may have installed another handler.
    """
    handler = signal.getsignal(signal.SIGTERM)
    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_main_thread and callable(handler) and not isinstance(handler, _Noting) and handler not in _own:
        signal.signal(signal.SIGTERM, _Noting(handler))


def put_off(may_put_off: Callable[[], bool]) -> None:
    """If SIGTERM would end this process at once, let the process continue for now if ``may_put_off()``.

    When a rank has ended, torchrun sends SIGTERM to the machine's other ranks, and SIGKILL 30 s later.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        if not may_put_off():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _own.append(end)
        signal.signal(signal.SIGTERM, end)
        os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """Let SIGTERM immediately end a forked process, such as a loader's worker."""
    if signal.getsignal(signal.SIGTERM) in _own:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def was_received() -> bool:
    """Return whether SIGTERM was received since the first ``watch``."""
    return _Noting.was_called
