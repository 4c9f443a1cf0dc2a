"""Retry calls during an outage of the agent's store or metadata service."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from cloudspot.calls import retrying
from cloudspot.errors import AuthError, TransientError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

FIRST_WAIT_SECONDS = 0.25
MAX_WAIT_SECONDS = 15.0
DENIED_SECONDS = 120.0
"""How long a permission may be missing, because a new permission may take some time to become effective."""


def retry_until(
    call: Callable[[], _T],
    *,
    deadline: float | Callable[[], float] = math.inf,
    sleep: Callable[[float], None] | None = None,
) -> _T:
    """Retry a call until it succeeds or the ``deadline`` is reached (monotonic, or a function returning it).

    ``sleep`` takes seconds; the default is ``time.sleep``.

    Raises:
        AuthError: every attempt was denied for ``DENIED_SECONDS``.
        TransientError: the deadline was reached; the last attempt was made at that moment.
    """
    denied_at: float | None = None

    def may_pass(error: Exception) -> bool:
        nonlocal denied_at
        if not isinstance(error, AuthError):
            denied_at = None
            return True
        denied_at = time.monotonic() if denied_at is None else denied_at
        return time.monotonic() - denied_at < DENIED_SECONDS

    waits = retrying.doubling(FIRST_WAIT_SECONDS, most=MAX_WAIT_SECONDS)
    return retrying.retry(
        call,
        sleep=sleep or time.sleep,
        waits=retrying.until(deadline, waits, clock=time.monotonic),
        kind=(AuthError, TransientError),
        when=may_pass,
        on_wait=lambda error: _log.warning("the store failed, trying again: %s", error),
    )
