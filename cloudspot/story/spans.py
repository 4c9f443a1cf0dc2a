"""Stretches of time, each in one state, and those of each node as a line for a plot; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.story.outcomes import own_beat
from cloudspot.story.stretches import Stretch, node_end, phases_of

STATES = (
    "queued",
    "launching",
    "setup",
    "restoring",
    "starting",
    "training",
    "lost",
    "saving",
    "waiting",
    "suspended",
    "ended",
    "unknown",
)
"""What a job does, one thing at a time, roughly in the order in which it gets there."""


@dataclass(frozen=True)
class Span:
    """A stretch of time in one state."""

    state: str
    start: datetime
    end: datetime
    launch: int | None = None
    generation: int | None = None

    @property
    def seconds(self) -> float:
        """Return how long it is."""
        return (self.end - self.start).total_seconds()


def between(marks: Iterable[Span], end: datetime) -> tuple[Span, ...]:
    """Return the spans from each mark to the next; a clock that is slow moves no mark back."""
    found: list[Span] = []
    current: Span | None = None
    for mark in [*marks, Span("", end, end)]:
        if current is not None:
            at = min(max(mark.start, current.start), max(end, current.start))
            if at > current.start:
                found.append(Span(current.state, current.start, at, current.launch, current.generation))
            mark = Span(mark.state, at, at, mark.launch, mark.generation)  # noqa: PLW2901
        current = mark
    return tuple(found)


def trained(part: Stretch, at: datetime, launch: int) -> Iterator[Span]:
    """Yield the part of the time from ``at`` on that counts, and then the part that does not."""
    if part.kept_until is None:
        yield Span("unknown", at, at, launch, part.number)
        return
    yield Span("training", at, at, launch, part.number)
    if part.ended is not None and part.kept_until < part.ended:
        behind = max(at, part.kept_until)
        yield Span("saving" if part.was_drained else "lost", behind, behind, launch, part.number)


_NODE_STATES = {
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
    has_run = any(rank in one.ranks(number) for one in history.generations_by_launch.get(number, ()))
    yield Span("launching", launch.intent.at, launch.intent.at, number)
    yield Span("setup" if phases or not has_run else "unknown", claimed, claimed, number)
    first = "running" if history.has_no_session else "training"
    for phase in phases:
        if phase.state == first and 1 <= phase.generation <= len(parts):
            yield from trained(parts[phase.generation - 1], phase.at, number)
        elif phase.state in _NODE_STATES:
            yield Span(_NODE_STATES[phase.state], phase.at, phase.at, number, phase.generation)
