"""How the agent waits out an outage of its store or metadata service."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from cloudspot import retrying

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

FIRST_WAIT_SECONDS = 0.25
MAX_WAIT_SECONDS = 15.0


def insist(call: Callable[[], _T], *, deadline: float = math.inf) -> _T:
    """Repeat a call until it succeeds or its ``deadline`` (monotonic) comes.

    Raises:
        TransientError: the deadline came; the last try was made at that moment.
    """
    waits = retrying.doubling(FIRST_WAIT_SECONDS, most=MAX_WAIT_SECONDS)
    return retrying.retry(
        call,
        sleep=time.sleep,
        waits=retrying.until(deadline, waits),
        on_wait=lambda error: _log.warning("the store failed, trying again: %s", error),
    )
