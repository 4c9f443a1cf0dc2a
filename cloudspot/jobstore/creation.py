"""Create-only puts whose outcome is always known in the end (protocol P1)."""

from __future__ import annotations

import time
from collections.abc import Callable

from cloudspot.errors import ObjectExists, ObjectMissing, TransientError
from cloudspot.interfaces import ObjectStore

FIRST_DELAY_SECONDS = 0.2


def create(
    store: ObjectStore,
    key: str,
    data: bytes,
    *,
    num_tries: int = 5,
    sleep: Callable[[float], None] = time.sleep,
) -> bytes | None:
    """Put ``data`` under ``key`` if nothing is there; say who won.

    None: the object is ours, also where an earlier put of these very bytes succeeded unnoticed (its
    answer was lost, or an SDK retried and met itself). Else the winner's bytes. ``data`` must
    therefore carry its writer's nonce. Waits 0.2, 0.4, 0.8, ... seconds between tries.

    Raises:
        TransientError: the outcome is still unknown after ``num_tries``; call again, with the same
            bytes.
    """
    for number in range(num_tries):
        if number:
            sleep(FIRST_DELAY_SECONDS * 2 ** (number - 1))
        try:
            store.put(key, data, if_absent=True)
        except (ObjectExists, TransientError) as error:
            cause = error
        else:
            return None
        try:
            found = store.get(key)
        except (ObjectMissing, TransientError) as error:
            # Not there: our put failed, or the object was deleted since. To put again is safe.
            cause = cause if isinstance(error, ObjectMissing) else error
            continue
        return None if found == data else found
    raise TransientError(f"{store.url}: whether {key} was created is unknown: {cause}") from cause
