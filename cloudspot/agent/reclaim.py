"""Translate a notice's deadline to the node's own clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cloudspot.model import PreemptionNotice

CLOCK_SECONDS = 0.5
"""The deadline of a notice that is read again moves by less than this: the wall clock may be slewed."""


@dataclass(frozen=True)
class Reclaim:
    """A notice with its deadline on the node's clock."""

    notice: PreemptionNotice
    deadline: float
    """The stated time (monotonic); by the wall clock, it is at most (first seen here) + notice_seconds."""
    seen: float
    """When the notice was first seen here (monotonic)."""


def understand(notice: PreemptionNotice, *, notice_seconds: float, now: float, wall: datetime) -> Reclaim:
    """Return the notice with its deadline on the monotonic clock.

    ``wall`` is the current time of the store, which is the cloud's. A stated wall-clock time counts only if
    it is earlier than ``notice_seconds`` from now: a slow clock would otherwise promise too much time.
    """
    left = notice_seconds
    if notice.deadline_monotonic is not None:
        left = notice.deadline_monotonic - now  # by this clock, so a drill may give more time than usual
    elif notice.deadline is not None:
        left = min(left, (notice.deadline - wall).total_seconds())
    left = max(0.0, left)
    return Reclaim(notice=notice, deadline=now + left, seen=now)
