"""Show the progress of long work as a bar on a terminal, and show nothing elsewhere."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cloudspot.cli.screen.printable import in_one_line

DELAY_SECONDS = 0.4
"""Work that ends sooner shows no bar, because a bar that only flashes is useless."""


@contextmanager
def transfer(label: str, num_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Show a transfer's progress within the block; yield a function to call with the number of new bytes.

    The function may be called from any thread. The bar is on standard error, so that it never mixes with
    results, and disappears at the end of the block. ``num_bytes`` is the total size, or None if unknown.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in {"dumb", "unknown", ""}:
        yield lambda _count: None
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
    task = progress.add_task(in_one_line(label), total=num_bytes)
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
