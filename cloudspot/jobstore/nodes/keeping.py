"""Whether a failed node's machine still stays for inspection (``limits.keep_failed``); pure.

Its time is part of the record that keeps it, by the store's clock. Drivers measure it by that clock, the node
by its own since it began.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Kept

VERDICT_SECONDS = 90.0
"""How long a node that has failed, but not for good by its own word, waits for a driver to say so. That is
less than the time for which drivers leave it alone after its exit record."""
LATE = timedelta(seconds=60)
"""A kept machine that has not ended itself so long after its time is ended by a driver."""


def kept_now(history: History, now: datetime) -> Kept | None:
    """Return the node whose machine is kept; None: there is none, or none any more.

    It is kept until its time is over, until somebody asks the job to stop, until the job is resumed, or until
    its machine has provably ended.
    """
    kept = history.kept
    if kept is None or history.stop is not None or now >= kept.until:
        return None
    return None if kept.instance_id in history.launches[kept.launch - 1].certificates else kept


def kept_text(kept: Kept) -> str:
    """Return in a phrase that a node is kept."""
    return f"node {kept.seat} is kept for inspection until {kept.until:%Y-%m-%d %H:%M:%S} UTC"


def why_to_end(kept: Kept, history: History, now: datetime) -> str | None:
    """Return why a driver ends the machine of the node that was kept last; None: it does not."""
    if history.stop is not None:
        return f"stop requested ({history.stop.reason}): node {kept.seat} is not kept any longer"
    return f"the time to inspect node {kept.seat} is over" if now >= kept.until + LATE else None
