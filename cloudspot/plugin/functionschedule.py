"""When the function of a driver runs, and for how long: what the clouds that run such functions share."""

from __future__ import annotations

import math
from typing import Final

from cloudspot.errors import SpecError

PASS_SECONDS: Final = 3.0
"""What a pass over a few live jobs is reckoned to take; one over none takes less than a second."""
NOTICE_SECONDS: Final = 5.0
"""How long a pass for a notice waits. The node learns of its end at about the same time, and says so a second
or two later."""
_MINUTES_A_MONTH: Final = 30.4 * 24 * 60


def whole_minutes(every_seconds: float, scheduler: str) -> int:
    """Return how many minutes lie between two passes: clouds' schedulers count whole ones.

    Raises:
        SpecError: something else is asked of the ``scheduler``, which the message names.
    """
    minutes = every_seconds / 60
    if minutes < 1 or not math.isclose(minutes, round(minutes)):
        raise SpecError(f"--every: {scheduler} runs a function every minute or number of minutes, such as 5m")
    return round(minutes)


def passes_a_month(minutes: int) -> float:
    """Return how many passes a month has that come every so many minutes."""
    return _MINUTES_A_MONTH / minutes
