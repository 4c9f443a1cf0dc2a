"""Whether a failed node's machine is still kept for inspection (``limits.keep_failed``); pure.

The record states until what time the machine is kept, by the store's clock. Drivers compare that time with
the store's clock; the node measures the time since the beginning by its own clock.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Kept

VERDICT_SECONDS = 90.0
"""How long a node that has failed, but does not call the failure permanent, waits for a driver's verdict.
This limit is less than the time for which drivers leave the node alone after its exit record.
"""
LATE = timedelta(seconds=60)
"""A driver ends a kept machine that has not ended itself within this time after it was due."""


def kept_now(history: History, now: datetime) -> Kept | None:
    """Return the node whose machine is kept now, or None if there is no such node.

    The machine is kept until its time is over, the job is asked to stop or is resumed, or the machine has
    provably ended.
    """
    kept = history.kept
    if kept is None or history.stop is not None or now >= kept.until:
        return None
    return None if kept.instance_id in history.launches[kept.launch - 1].certificates else kept


def kept_text(kept: Kept) -> str:
    """Return a phrase that says that a node is kept."""
    return f"node {kept.seat} is kept for inspection until {kept.until:%Y-%m-%d %H:%M:%S} UTC"


def why_to_end(kept: Kept, history: History, now: datetime) -> str | None:
    """Return why a driver ends the machine of the node kept last, or None if the driver does not end it."""
    if history.stop is not None:
        return f"stop requested ({history.stop.reason}): node {kept.seat} is not kept any longer"
    return f"the time to inspect node {kept.seat} is over" if now >= kept.until + LATE else None
