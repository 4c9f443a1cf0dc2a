"""Create-only puts whose outcome is always known in the end (protocol P1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cloudspot.errors import ObjectExists, ObjectMissing, TransientError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.patience import patient
from cloudspot.retrying import retry

WAITS = (0.2, 0.4, 0.8, 1.6)
"""Seconds between tries."""


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
            found = store.get(key)
        except (ObjectMissing, TransientError) as error:
            # Not there: our put failed, or the object was deleted since. To put again is safe.
            cause = cause if isinstance(error, ObjectMissing) else error
            raise TransientError(f"{store.url}: whether {key} was created is unknown: {cause}") from cause
        return None if found == data else found

    return retry(attempt, waits=waits, sleep=sleep or patient(store).sleep)
