"""A controller's two clocks, passed in so that tests can have their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone


@dataclass(frozen=True)
class Clock:
    """The wall clock for what people read, the monotonic one for durations."""

    now: Callable[[], datetime]
    """Aware, UTC."""
    monotonic: Callable[[], float]
    """Seconds from an arbitrary start."""


SYSTEM_CLOCK = Clock(now=lambda: datetime.now(timezone.utc), monotonic=time.monotonic)
