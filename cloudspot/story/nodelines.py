"""What each node has done, as a line of stretches for a plot; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.story.progress import has_no_session
from cloudspot.story.spans import Span, between, trained
from cloudspot.story.stretches import Stretch, node_end, own_beat, phases_of, ranks_of

_STATES = {
    "restoring": "restoring",
    "ready": "restoring",
    "running": "starting",
    "uploading": "saving",
    "ending": "saving",
}
"""By the name that the node has for it; a node that drains trains until its trainer has ended."""


@dataclass(frozen=True)
class NodeLine:
    """What one node has done, from the request of its launch to its end."""

    launch: int
    rank: int
    spans: tuple[Span, ...]


def node_lines(history: History, parts: Sequence[Stretch], now: datetime) -> Iterator[NodeLine]:
    """Yield a line for each slot that a machine claimed, by launch and rank."""
    for launch in history.launches:
        for rank, slot in sorted(launch.slots.items()):
            if slot.instance_id is not None:
                beat = own_beat(launch, rank)
                end = node_end(history, launch, rank, now) or (slot.at if beat is None else beat.at)
                marks = _marks(history, launch, rank, parts)
                yield NodeLine(launch.number, rank, between(marks, end))


def _marks(history: History, launch: LaunchHistory, rank: int, parts: Sequence[Stretch]) -> Iterator[Span]:
    number, phases, claimed = launch.number, phases_of(launch, rank), launch.slots[rank].at
    has_run = any(rank in ranks_of(one) for one in history.generations if one.launch == number)
    yield Span("launching", launch.intent.at, launch.intent.at, number)
    yield Span("setup" if phases or not has_run else "unknown", claimed, claimed, number)
    first = "running" if has_no_session(history) else "training"
    for phase in phases:
        if phase.state == first and 1 <= phase.generation <= len(parts):
            yield from trained(parts[phase.generation - 1], phase.at, number)
        elif phase.state in _STATES:
            yield Span(_STATES[phase.state], phase.at, phase.at, number, phase.generation)
