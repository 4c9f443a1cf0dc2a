"""The duration of a condition that consecutive passes observe, by the store's clock; pure.

An ``ObservedDuration`` promises that the condition was first seen no later than ``until - seconds``.
Before its look, a pass reads the object and a past moment of the store's clock. If the look then shows the
condition again, the pass may count up to that moment. The pass may not count up to its own write, because its
look may be long over by then, nor use its own clock, because no two clocks agree.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from cloudspot.jobstore.access.store_clock import STAMP_SECONDS
from cloudspot.jobstore.layout.records import ObservedDuration

MAX_PASS_GAP_SECONDS = 600.0
"""The most time that counts between two passes; during the rest of a longer gap, nobody watched."""
STILL_SECONDS = 120.0
"""A heartbeat whose own time differs from ours by this much gets a note; clocks decide nothing else."""

BEGUN = ObservedDuration(seconds=0.0, until=None)
"""A condition that was first seen in this pass."""


def lengthened(seen: ObservedDuration, moment: datetime) -> ObservedDuration:
    """Return the duration for a pass that found ``seen`` in the store and then sees the same condition again.

    ``moment`` is a time of the store's clock, between the write of ``seen`` and the look.
    """
    stamp = timedelta(seconds=STAMP_SECONDS)
    if seen.until is None:
        return ObservedDuration(seconds=seen.seconds, until=moment + stamp)
    gap = (moment - seen.until).total_seconds()
    if gap < -2 * STAMP_SECONDS:
        # The store's clock was set back, so the time counted earlier cannot be compared with it.
        return ObservedDuration(seconds=0.0, until=moment + stamp)
    counted = min(max(gap, 0.0), MAX_PASS_GAP_SECONDS)
    return ObservedDuration(seconds=seen.seconds + counted, until=max(seen.until, moment))


def looks_still(dated: datetime, now: datetime) -> bool:
    """Return whether a heartbeat that its node dated ``dated`` may not have changed for a while.

    If a clock on either side is wrong, this may be true without need, and costs a note. The next passes find
    out whether the counter has really stopped.
    """
    return abs((now - dated).total_seconds()) >= STILL_SECONDS
