"""The time that the rank has waited for its batches, which shows whether the data loader is too slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Wait:
    """Counts the waiting time of the main thread, the only thread that asks loaders for batches."""

    def __init__(self) -> None:
        self.total = -1
        self.depth = 0


_wait = _Wait()


@contextmanager
def waiting() -> Iterator[None]:
    """Count the time that the block takes. Nested blocks, as of a loader in a loader, count once."""
    _wait.depth += 1
    begun = time.perf_counter_ns()
    try:
        yield
    finally:
        _wait.depth -= 1
        if _wait.depth == 0:
            _wait.total = max(_wait.total, 0) + time.perf_counter_ns() - begun


def nanoseconds() -> int:
    """Return how long this process has waited, or -1 if no batch was requested from a watched loader."""
    return _wait.total
