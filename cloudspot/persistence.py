"""Makes a request again that failed in passing, where its caller knows that it may be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cloudspot.errors import TransientError

NUM_TRIES = 5
FIRST_DELAY_SECONDS = 0.1

Result = TypeVar("Result")


def persist(
    call: Callable[[], Result],
    *,
    sleep: Callable[[float], None],
    kind: type[TransientError] = TransientError,
    num_tries: int = NUM_TRIES,
) -> Result:
    """Return what ``call`` returns; after a ``kind`` it is made again, in 0.1, 0.2, 0.4, ... seconds.

    Raises:
        TransientError: as the last try.
    """
    for number in range(num_tries - 1):
        try:
            return call()
        except kind:
            sleep(FIRST_DELAY_SECONDS * 2**number)
    return call()
