"""Create-only puts whose outcome is always known in the end (protocol P1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from cloudspot.calls.retrying import retry
from cloudspot.errors import CorruptData, ObjectExists, ObjectMissing, OverdueError, TransientError
from cloudspot.interfaces import MAX_GET_BYTES, ObjectStore
from cloudspot.jobstore.access.retrying_store import with_retries

WAITS = (0.2, 0.4, 0.8, 1.6)
"""Seconds between tries."""
MAX_LARGE_BYTES: Final = 4 << 30
"""A manifest holds the seals of all ranks, with a line for each shard: some 100 MiB for hundreds."""


def read_large(store: ObjectStore, key: str) -> bytes:
    """Return an object of up to ``MAX_LARGE_BYTES``: in one request, or in pieces if a get refuses it."""
    try:
        return store.get(key)
    except CorruptData:
        size = store.head(key).size
        if not MAX_GET_BYTES < size <= MAX_LARGE_BYTES:
            raise
    spans = ((at, min(MAX_GET_BYTES, size - at)) for at in range(0, size, MAX_GET_BYTES))
    return b"".join(store.get_range(key, at, length) for at, length in spans)


def create(
    store: ObjectStore,
    key: str,
    data: bytes,
    *,
    waits: Iterable[float] = WAITS,
    sleep: Callable[[float], None] | None = None,
) -> bytes | None:
    """Put ``data`` under ``key`` if nothing is there; return None if we won, else the winner's bytes.

    We also won if an earlier put of these very bytes succeeded unnoticed: its answer was lost, or an SDK
    retried and met itself. ``data`` must therefore carry its writer's nonce.

    ``sleep`` is the store's own where it is a patient one, unless another is given.

    Raises:
        TransientError: the outcome is still unknown after the last try; call again, with the same bytes.
    """

    def attempt() -> bytes | None:
        try:
            store.put(key, data, if_absent=True)
        except (ObjectExists, TransientError) as error:
            cause: Exception = error
        else:
            return None
        try:
            existing = read_large(store, key) if len(data) > MAX_GET_BYTES else store.get(key)
        except (ObjectMissing, TransientError) as error:
            # Not there: our put failed, or the object was deleted since. To put again is safe.
            cause = cause if isinstance(error, ObjectMissing) else error
            # A call that was cut off is not repeated at once.
            kind = OverdueError if isinstance(cause, OverdueError) else TransientError
            raise kind(f"{store.url}: whether {key} was created is unknown: {cause}") from cause
        return None if existing == data else existing

    return retry(attempt, waits=waits, sleep=sleep or with_retries(store).sleep)
