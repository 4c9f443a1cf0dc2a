"""Tells the agent of the error that ends this process, while the process is still on its way out."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from cloudspot.train import handoff

_told: set[int] = set()
"""The processes that tell already; a fork is another one, and no rank."""


def tell_of_errors() -> None:
    """From now on, tell of an error of the main thread that nobody catches; without an agent do nothing.

    Between the error and the end of the process often lies the better part of a second, in which the other
    nodes can prepare to go on. The traceback is printed first, by whatever printed it before.
    """
    directory = os.environ.get(handoff.HANDOFF)
    if directory is None or os.getpid() in _told:
        return
    pid = os.getpid()
    _told.add(pid)
    path = handoff.failed_path(Path(directory), int(os.environ.get("RANK", "0")))
    print_error = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        print_error(kind, error, traceback)
        if os.getpid() != pid:
            return
        with suppress(OSError):
            handoff.write_json(
                path, {"type": f"{kind.__module__}.{kind.__qualname__}", "message": str(error)}
            )

    sys.excepthook = hook
