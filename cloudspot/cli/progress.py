"""Progress of long work as a bar on a terminal; nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def transfer(label: str, num_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Show how far a transfer is while the block runs; yields a function to call with new bytes.

    The function may be called from any thread. The bar goes to standard error, so that it never mixes with
    results, and is gone when the block ends.

    Args:
        label: what is under way, such as ``uploading code``.
        num_bytes: of the whole; None where it is not known.
    """
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=num_bytes)
        yield lambda count: progress.advance(task, count)


def _ignore(_count: int) -> None:
    pass
