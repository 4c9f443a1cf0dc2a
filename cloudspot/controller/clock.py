"""The two clocks of a controller, passed in so that tests can use others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.store_clock import clock_of


@dataclass(frozen=True)
class Clock:
    """The store's clock, for the times in records, and the monotonic clock, for durations."""

    now: Callable[[], datetime]
    """Aware, UTC."""
    monotonic: Callable[[], float]
    """Seconds from an arbitrary start."""
    compare: Callable[[], None] = lambda: None
    """Asks the store for its time when that is due; raises TransientError if the store does not answer."""
    warning: Callable[[], str] = str
    """Returns a warning if this computer's own clock is wrong, otherwise an empty string."""


def clock_by(store: ObjectStore) -> Clock:
    """Return the clocks of a controller in this process that drives jobs of the store."""
    known = clock_of(store)
    return Clock(
        now=known.now,
        monotonic=time.monotonic,
        compare=partial(known.compare, store),
        warning=lambda: known.warning,
    )
