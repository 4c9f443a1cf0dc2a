"""What the hosts of functions ask of each driver alike, and what they reckon its cost by."""

from __future__ import annotations

import math
from typing import Final
from urllib.parse import urlsplit

from cloudspot.errors import SpecError
from cloudspot.model import DriverFunction

PASS_SECONDS: Final = 3.0
"""What a pass over a few live jobs is reckoned to take; one over none takes less than a second."""
NOTICE_SECONDS: Final = 5.0
"""How long a pass for a notice waits. The node learns of its end at about the same time, and says so a second
or two later."""
_MINUTES_A_MONTH: Final = 30.4 * 24 * 60


def whole_minutes(function: DriverFunction, *, scheduler: str) -> int:
    """Return how many minutes lie between two passes, for a scheduler that counts whole ones.

    Raises:
        SpecError: the function asks for something else.
    """
    minutes = function.every_seconds / 60
    if minutes < 1 or not math.isclose(minutes, round(minutes)):
        raise SpecError(f"--every: {scheduler} runs a function every minute or number of minutes, such as 5m")
    return round(minutes)


def passes_a_month(minutes: int) -> float:
    """Return how many passes a month has that come every so many minutes."""
    return _MINUTES_A_MONTH / minutes


def bucket_of(function: DriverFunction, *, scheme: str, needs: str) -> str:
    """Return the name of the store's bucket.

    ``needs`` begins the message: which host needs a store in which service.

    Raises:
        SpecError: the store is elsewhere.
    """
    parts = urlsplit(function.store_url)
    if parts.scheme != scheme or not parts.netloc:
        raise SpecError(f"{needs}; this one is {function.store_url}")
    return parts.netloc
