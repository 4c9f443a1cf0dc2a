"""Repeat a call after transient errors: the retry loop, and the waits between its attempts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from typing import Final, TypeVar

from cloudspot.errors import OverdueError, TransientError

T = TypeVar("T")

SHORT_WAITS: Final = (0.1, 0.2, 0.4, 0.8)
"""The seconds between five attempts of a request that is safe to repeat."""
THROTTLE_WAITS: Final = (1.0, 2.0)
"""The seconds between attempts of a request that may be repeated only if the service throttled it, such as a
launch."""


def doubling(first: float, *, most: float = 3600.0, num: int | None = None) -> Iterator[float]:
    """Yield ``num`` waits (unlimited if None) that double from ``first`` up to ``most`` seconds."""
    return islice((doubled(first, number, most=most) for number in count()), num)


def doubled(first: float, num_times: int, *, most: float = 3600.0) -> float:
    """Return ``first`` seconds, doubled ``num_times`` times, but at most ``most``."""
    return min(first * 2.0 ** min(num_times, 60), most)


def until(
    deadline: float | Callable[[], float],
    waits: Iterable[float],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[float]:
    """Yield the waits while ``clock()`` is before the deadline; the last wait is cut so that it ends there.

    So the last attempt is made at the deadline. If the deadline can change, pass a function that returns it.
    """
    for wait in waits:
        left = (deadline() if callable(deadline) else deadline) - clock()
        if left <= 0:
            return
        yield min(wait, left)


def retry(
    call: Callable[[], T],
    *,
    sleep: Callable[[float], None],
    waits: Iterable[float] | None = None,
    kind: type[Exception] | tuple[type[Exception], ...] = TransientError,
    when: Callable[[Exception], bool] = lambda _error: True,
    on_wait: Callable[[Exception], None] = lambda _error: None,
) -> T:
    """Return the result of ``call``, repeating it after each transient error.

    Args:
        call: Must be safe to repeat after such an error.
        sleep: Called with the seconds to wait.
        waits: Seconds before the second, third, ... call; when they are used up, the last error is
            raised. The next wait is taken only after a failure, so :func:`until` takes the duration of the
            call into account. None stands for ``SHORT_WAITS``.
        kind: The transient errors. An OverdueError is never one, because that call has used up its time.
        when: Returns whether an error of ``kind`` is transient; other errors are raised at once.
        on_wait: Called with each error that is followed by a wait.

    Raises:
        Exception: the error of the last call.
    """
    left = iter(SHORT_WAITS if waits is None else waits)
    while True:
        try:
            return call()
        except kind as error:
            may_pass = when(error) and not isinstance(error, OverdueError)
            wait = next(left, None) if may_pass else None
            if wait is None:
                raise
            on_wait(error)
            sleep(wait)
