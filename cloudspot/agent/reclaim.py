"""Convert a notice's deadline to the node's own clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cloudspot.model import PreemptionNotice

CLOCK_SECONDS = 0.5
"""The deadline of a notice that is read again may differ by less than this: the wall clock may be slewed."""


@dataclass(frozen=True)
class Reclaim:
    """A notice with its deadline on the node's clock."""

    notice: PreemptionNotice
    deadline: float
    """The stated time (monotonic); if stated by the wall clock, it is at most ``notice_seconds`` after the
    notice was first seen here."""
    seen: float
    """When this node first saw the notice (monotonic)."""


def understand(notice: PreemptionNotice, *, notice_seconds: float, now: float, wall: datetime) -> Reclaim:
    """Return the notice with its deadline on the monotonic clock.

    ``wall`` is the current time of the store, which is the cloud's. A wall-clock time stated in the notice
    counts only if it is earlier than ``notice_seconds`` from now: a slow clock would otherwise promise too
    much time.
    """
    left = notice_seconds
    if notice.deadline_monotonic is not None:
        left = notice.deadline_monotonic - now  # by this clock, so a drill may give extra time
    elif notice.deadline is not None:
        left = min(left, (notice.deadline - wall).total_seconds())
    left = max(0.0, left)
    return Reclaim(notice=notice, deadline=now + left, seen=now)
