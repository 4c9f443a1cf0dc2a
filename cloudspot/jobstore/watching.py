"""How whoever waits for long work is told of it: what is under way, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Watch = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]
"""Called with what is done, such as ``uploading code``, and how many bytes it has (None: not known, or told
all at once). The work is done within the block, and calls the function with new bytes, from any thread."""


@contextmanager
def unwatched(_what: str, _num_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Watch nothing."""
    yield lambda _count: None
