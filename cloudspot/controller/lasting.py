"""How long silences and absences last that one pass sees after the other: on the store's clock; pure.

What holds of ``Lasting`` is that it was first seen no later than ``until - seconds``, in the store's time.
A pass reads the object, with a moment of the store's clock that is then past, and looks only after that:
so up to this moment it may count what it sees again. The time of its own write it may not use, as by then
its look may be long over; nor any clock of its own, as no two agree.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from cloudspot.jobstore.records import Lasting

MAX_PASS_GAP_SECONDS = 600.0
"""What may count between two passes: of a longer gap nobody has seen the most."""
STAMP_SECONDS = 1.0
"""Stores tell their time in whole seconds: what happened before a stamp may be up to so much after it."""
STILL_SECONDS = 120.0
"""A heartbeat whose own time differs from ours by so much is worth a note; no clock decides more."""

BEGUN = Lasting(seconds=0.0, until=None)
"""Seen in this pass for the first time."""


def lengthened(seen: Lasting, moment: datetime) -> Lasting:
    """Return what a pass may count that has found ``seen`` in the store, and then sees the same again.

    ``moment`` is of the store's clock: no earlier than the write of ``seen``, and past when it looks.
    """
    stamp = timedelta(seconds=STAMP_SECONDS)
    if seen.until is None:
        return Lasting(seconds=seen.seconds, until=moment + stamp)
    gap = (moment - seen.until).total_seconds()
    if gap < -2 * STAMP_SECONDS:
        # The store's clock was set back: what was counted on the old one may not be measured on the new.
        return Lasting(seconds=0.0, until=moment + stamp)
    counted = min(max(gap, 0.0), MAX_PASS_GAP_SECONDS)
    return Lasting(seconds=seen.seconds + counted, until=max(seen.until, moment))


def looks_still(said_at: datetime, now: datetime) -> bool:
    """Say whether what a node said at ``said_at``, by its own clock, may be its newest word for a while.

    A clock that is wrong, on either side, makes this true, and costs a note; whether the counter stands
    still is for the next passes to see.
    """
    return abs((now - said_at).total_seconds()) >= STILL_SECONDS
