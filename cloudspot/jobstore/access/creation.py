"""Create-only puts whose outcome is always determined in the end (protocol P1)."""

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
"""The limit for manifests, which have a line per shard in their seals: 100 MiB for hundreds of ranks."""


def read_large(store: ObjectStore, key: str) -> bytes:
    """Return an object of up to ``MAX_LARGE_BYTES``: by one get, or in ranges if the get refuses its size."""
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
    """Put ``data`` under ``key`` if the key is free; return None if this call won, or the winner's bytes.

    A call has also won if an earlier put of the same bytes succeeded unnoticed, because its answer was lost
    or because an SDK repeated it. ``data`` must therefore contain a nonce of its writer.

    By default, ``sleep`` is the store's own if the store is a RetryingStore, and ``time.sleep`` otherwise.

    Raises:
        TransientError: the outcome is unknown even after the last try; call again with the same bytes.
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
            # The key is free: our put failed, or the object has been deleted since. It is safe to repeat the
            # put.
            cause = cause if isinstance(error, ObjectMissing) else error
            # A call that was cut off at its time limit is not repeated immediately.
            kind = OverdueError if isinstance(cause, OverdueError) else TransientError
            raise kind(f"{store.url}: it is unknown whether {key} was created: {cause}") from cause
        return None if existing == data else existing

    return retry(attempt, waits=waits, sleep=sleep or with_retries(store).sleep)
