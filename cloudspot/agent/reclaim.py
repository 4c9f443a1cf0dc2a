"""A notice as this node understands it: its deadline on the node's own clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cloudspot.model import PreemptionNotice

CLOCK_SECONDS = 0.5
"""The same notice, read again, moves by less than this: the wall clock may be slewed."""


@dataclass(frozen=True)
class Reclaim:
    """A notice as this node understood it."""

    notice: PreemptionNotice
    deadline: float
    """Monotonic: the stated time, which by the wall clock is at most (first seen here) + notice_seconds."""
    seen: float
    """Monotonic."""


def understand(notice: PreemptionNotice, *, notice_seconds: float, now: float, wall: datetime) -> Reclaim:
    """Return the notice with its deadline on the monotonic clock.

    ``wall`` is the store's time now, which is the cloud's. By it, a stated time counts only when it is the
    earlier one: a clock that lags would otherwise promise time that the machine does not have.
    """
    left = notice_seconds
    if notice.deadline_monotonic is not None:
        left = notice.deadline_monotonic - now  # by this very clock, so a drill may give more than is usual
    elif notice.deadline is not None:
        left = min(left, (notice.deadline - wall).total_seconds())
    left = max(0.0, left)
    return Reclaim(notice=notice, deadline=now + left, seen=now)
