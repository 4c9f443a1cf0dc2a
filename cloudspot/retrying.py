"""Makes a request again that failed in passing, where its caller knows that it may be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cloudspot.errors import TransientError

NUM_TRIES = 5
FIRST_DELAY_SECONDS = 0.1
THROTTLE_WAITS = (1.0, 2.0)
"""Seconds before the second and third try of a request that a service had no time for."""

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


def unless_throttled(
    call: Callable[[], Result],
    is_throttled: Callable[[Exception], bool],
    *,
    sleep: Callable[[float], None],
) -> Result:
    """Return what ``call`` returns; where the service throttles it, nothing was done, and it is made again.

    Twice at the most, for requests that must not be repeated in any other case, such as a launch.
    """
    for seconds in THROTTLE_WAITS:
        try:
            return call()
        except Exception as error:
            if not is_throttled(error):
                raise
            sleep(seconds)
    return call()
