"""Tells the agent about the error that ends this process, before the process has ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from cloudspot.train import handoff

_told: set[int] = set()
"""The processes that do so already; a fork is another process, and not a rank."""

_is_expected: list[Callable[[], bool]] = []


def expect_errors(is_expected: Callable[[], bool]) -> None:
    """From now on, an uncaught error ends this process with status 0 and in silence if ``is_expected()``."""
    _is_expected.append(is_expected)


def tell_of_errors() -> None:
    """From now on, tell the agent about uncaught errors of the main thread; without an agent do nothing.

    The end of the process often takes the better part of a second, in which the other nodes can prepare to
    go on. The traceback is printed first, by the previous excepthook.
    """
    directory = os.environ.get(handoff.HANDOFF)
    if directory is None or os.getpid() in _told:
        return
    pid = os.getpid()
    _told.add(pid)
    path = handoff.failed_path(Path(directory), int(os.environ.get("RANK", "0")))
    print_error = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if os.getpid() == pid and any(each() for each in _is_expected):
            leave_at_once()
        print_error(kind, error, traceback)
        if os.getpid() != pid:
            return
        with suppress(OSError):
            handoff.write_json(
                path, {"type": f"{kind.__module__}.{kind.__qualname__}", "message": str(error)}
            )

    sys.excepthook = hook


def leave_at_once() -> NoReturn:
    """End this process with status 0, whatever its threads wait for."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)
