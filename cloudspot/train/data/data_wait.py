"""How long the rank has waited for its batches: what tells a slow data loader from a slow training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Wait:
    """Counts the time of the main thread, which alone asks loaders for batches."""

    def __init__(self) -> None:
        self.total = -1
        self.depth = 0


_wait = _Wait()


@contextmanager
def waiting() -> Iterator[None]:
    """Count the time of the block; one within another, as where a loader wraps a loader, counts once."""
    _wait.depth += 1
    begun = time.perf_counter_ns()
    try:
        yield
    finally:
        _wait.depth -= 1
        if _wait.depth == 0:
            _wait.total = max(_wait.total, 0) + time.perf_counter_ns() - begun


def nanoseconds() -> int:
    """Return for how long this process has waited; -1: it has asked no loader that is watched."""
    return _wait.total
