"""What the user of a job should know and might overlook; pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from cloudspot.jobstore.history import History
from cloudspot.story.outcomes import last_generation, own_beat, own_exit

SILENT_SECONDS = 5 * 60.0
"""Heartbeats come every few seconds, and clocks may differ a little."""
MAX_NAMED = 4
"""If there are more nodes than this, only their number is given."""


def warnings(history: History) -> tuple[str, ...]:
    """Return what the user should know, each once: skipped checkpoints, then the nodes' warnings."""
    found = [
        f"checkpoint {skipped.checkpoint} did not verify and was passed over: {skipped.reason}"
        for generation in history.generations
        for skipped in generation.skipped
    ]
    for launch in history.current_launches[-1:]:
        for _, beat in sorted(launch.heartbeats.items()):
            found += beat.warnings
    return tuple(dict.fromkeys(found))


def silence(history: History, now: datetime) -> Iterator[str]:
    """Yield a warning about nodes whose heartbeats are overdue, by the reader's clock and theirs."""
    launch = history.open_launch
    if launch is None or not launch.is_attempt:
        return
    newest = last_generation(history, launch)
    ranks = tuple(sorted(launch.slots)) if newest is None else newest.ranks(launch.number)
    silent = {}
    for rank in ranks:
        beat = own_beat(launch, rank)
        seconds = (now - (launch.slots[rank].at if beat is None else beat.at)).total_seconds()
        if seconds >= SILENT_SECONDS and own_exit(launch, rank) is None:
            silent[rank] = seconds
    if silent:
        minutes = min(silent.values()) / 60
        how_long = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
        named = f"node{'s' * (len(silent) > 1)} {', '.join(map(str, silent))}"
        yield (
            f"nothing was heard of {named if len(silent) <= MAX_NAMED else f'{len(silent)} nodes'} for "
            f"{how_long}; each is billed until a driver (attach, reconcile) finds out that it has ended"
        )
