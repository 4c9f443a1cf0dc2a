"""The agent's one retry loop around requests to the store and the metadata service."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from cloudspot.errors import TransientError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

FIRST_WAIT_SECONDS = 0.25
MAX_WAIT_SECONDS = 15.0


def insist(call: Callable[[], _T], *, deadline: float = math.inf) -> _T:
    """Repeat a call until it succeeds or its ``deadline`` (monotonic) comes.

    Raises:
        TransientError: the deadline came; the last try was made at that moment.
    """
    wait = FIRST_WAIT_SECONDS
    while True:
        try:
            return call()
        except TransientError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            _log.warning("the store failed, trying again: %s", error)
            time.sleep(min(wait, left))
            wait = min(2 * wait, MAX_WAIT_SECONDS)
