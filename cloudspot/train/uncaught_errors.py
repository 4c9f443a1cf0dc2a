"""Reports the error that ends this process to the agent before the process has ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from cloudspot.train import handoff

_reporting: set[int] = set()
"""The processes whose errors have been reported; a forked process is a different one, and not a rank."""

_expectations: list[Callable[[], bool]] = []
_holds: list[Callable[[], None]] = []


@contextmanager
def expecting_errors(is_expected: Callable[[], bool]) -> Iterator[None]:
    """Let an uncaught error end this process silently, with status 0, if ``is_expected()``."""
    _expectations.append(is_expected)
    try:
        yield
    finally:
        _expectations.remove(is_expected)


@contextmanager
def holding_at_errors(hold: Callable[[], None]) -> Iterator[None]:
    """Call ``hold`` after an uncaught error was reported to the agent and before it ends this process."""
    _holds.append(hold)
    try:
        yield
    finally:
        _holds.remove(hold)


def report_errors() -> None:
    """From now on, report uncaught errors of the main thread to the agent; without an agent, do nothing.

    A process often takes most of a second to end, and the other nodes can prepare in the meantime. The
    previous excepthook prints the traceback first.
    """
    directory = os.environ.get(handoff.HANDOFF)
    if directory is None or os.getpid() in _reporting:
        return
    pid = os.getpid()
    _reporting.add(pid)
    path = handoff.failed_path(Path(directory), int(os.environ.get("RANK", "0")))
    print_error = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if os.getpid() == pid and any(each() for each in _expectations):
            leave_at_once()
        print_error(kind, error, traceback)
        if os.getpid() != pid:
            return
        with suppress(OSError):
            name = f"{kind.__module__}.{kind.__qualname__}"
            handoff.write_json(path, {"type": name, "message": str(error), "causes": _causes(error)})
        for hold in tuple(_holds):
            hold()

    sys.excepthook = hook


def _causes(error: BaseException) -> list[str]:
    """Return the messages of the errors that led to this error, nearest first."""
    chain = [error]
    while True:
        last = chain[-1]
        cause = last.__context__ if last.__cause__ is None else last.__cause__
        if cause is None or any(cause is one for one in chain):
            return [str(one) for one in chain[1:]]
        chain.append(cause)


def leave_at_once() -> NoReturn:
    """End this process with status 0, even if its threads are blocked."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)
