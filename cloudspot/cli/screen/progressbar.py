"""Progress of long work as a bar on a terminal; nothing where nobody watches."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DELAY_SECONDS = 0.4
"""What is over sooner shows no bar: one that flashes by tells nothing."""


@contextmanager
def transfer(label: str, num_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Show how far a transfer is while the block runs; yields a function to call with new bytes.

    The function may be called from any thread. The bar goes to standard error, so that it never mixes with
    results, and is gone when the block ends.

    Args:
        label: what is under way, such as ``uploading code``.
        num_bytes: of the whole; None where it is not known.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in {"dumb", "unknown", ""}:
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
    ]
    columns += [TimeElapsedColumn()] if num_bytes is None else [DownloadColumn(True), TransferSpeedColumn()]
    progress = Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
    task = progress.add_task(label, total=num_bytes)
    late = threading.Timer(DELAY_SECONDS, progress.start)
    late.daemon = True
    late.start()
    try:
        yield lambda count: progress.advance(task, count)
    finally:
        late.cancel()
        late.join()
        if progress.live.is_started:
            progress.stop()


def _ignore(_count: int) -> None:
    pass
