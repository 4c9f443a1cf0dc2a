"""How a caller hears of the progress of long work: it is asked for a progress bar, and the bar for bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

OpenProgress = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]
"""Called with what is being done, such as ``uploading code``, and its size in bytes (None: unknown, or done
in one request). The work is done within the block and passes each number of new bytes on, from any thread."""


@contextmanager
def no_progress(_what: str, _num_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Show nothing."""
    yield lambda _count: None
