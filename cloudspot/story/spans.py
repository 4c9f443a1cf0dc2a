"""Spans of time in one state, for the job and, as lines of a plot, for each node; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Phase, Seat
from cloudspot.jobstore.nodes.seats import seats_of
from cloudspot.story.outcomes import own_beat
from cloudspot.story.states import held_generations
from cloudspot.story.stretches import Stretch, node_end, phases_of

STATES = (
    "queued",
    "launching",
    "setup",
    "staging",
    "restoring",
    "starting",
    "training",
    "lost",
    "saving",
    "holding",
    "waiting",
    "suspended",
    "ended",
    "unknown",
)
"""The states of a job in its timeline, roughly in the order in which it passes through them."""
STANDBY = "standby"
"""A further state of nodes: ready to train, and waiting to be taken into the training."""


@dataclass(frozen=True)
class Span:
    """A stretch of time in one state."""

    state: str
    start: datetime
    end: datetime
    generation: int | None = None

    @property
    def seconds(self) -> float:
        """The length of the span."""
        return (self.end - self.start).total_seconds()


def mark(state: str, at: datetime, generation: int | None = None) -> Span:
    """Return the beginning of a span."""
    return Span(state, at, at, generation)


def between(marks: Iterable[Span], end: datetime) -> tuple[Span, ...]:
    """Return the spans from each mark to the next; a mark that a slow clock dates too early is moved up."""
    spans: list[Span] = []
    current: Span | None = None
    for marked in [*marks, mark("", end)]:
        at = marked.start
        if current is not None:
            at = min(max(at, current.start), max(end, current.start))
            if at > current.start:
                spans.append(Span(current.state, current.start, at, current.generation))
        current = mark(marked.state, at, marked.generation)
    return tuple(spans)


def trained(part: Stretch, at: datetime) -> Iterator[Span]:
    """Yield the marks of a stretch from ``at`` on: the training that counts, and then the rest."""
    if part.kept_until is None:
        yield mark("unknown", at, part.number)
        return
    yield mark("training", at, part.number)
    if part.ended is not None and part.kept_until < part.ended:
        yield mark("saving" if part.was_drained else "lost", max(at, part.kept_until), part.number)


_NODE_STATES = {
    "staging": "staging",
    "restoring": "restoring",
    "ready": "restoring",
    "running": "starting",
    "uploading": "saving",
    "ending": "saving",
}
"""The span's state by the node's state; a draining node trains until its trainer has ended."""


@dataclass(frozen=True)
class NodeLine:
    """The spans of one node, from the request of its launch to its end."""

    seat: Seat
    spans: tuple[Span, ...]


def node_lines(history: History, parts: Sequence[Stretch], now: datetime) -> Iterator[NodeLine]:
    """Yield a line for each seat that a machine claimed, by launch and rank."""
    excluded = seats_of(history.launches, history.generations).excluded
    numbers, held, ran = held_generations(history), dict[Seat, list[Span]](), set[Seat]()
    for generation in history.generations:
        ran.update(generation.seats)
        if generation.number in numbers:
            for seat in generation.seats:
                held.setdefault(seat, []).append(mark("holding", generation.at, generation.number))
    for launch in history.launches:
        for rank, slot in launch.claimed.items():
            seat, phases, beat = Seat(launch.number, rank), phases_of(launch, rank), own_beat(launch, rank)
            end = node_end(launch, rank, now, excluded=excluded) or (slot.at if beat is None else beat.at)
            begin = mark("setup" if phases or seat not in ran else "unknown", slot.at)
            marks = [one for phase in phases for one in _phase_marks(history, phase, parts, numbers)]
            marks = sorted([*marks, *held.get(seat, ())], key=lambda one: one.start)
            yield NodeLine(seat, between([mark("launching", launch.intent.at), begin, *marks], end))


def _phase_marks(
    history: History, phase: Phase, parts: Sequence[Stretch], held: Collection[int]
) -> Iterator[Span]:
    """Yield the marks of the spans that begin with a phase of a node."""
    first = "running" if history.has_no_session else "training"
    if phase.state == first and 1 <= phase.generation <= len(parts):
        yield from trained(parts[phase.generation - 1], phase.at)
    elif phase.state in {"ready", "restoring"} and phase.generation in held:
        yield mark("holding", phase.at, phase.generation)
    elif phase.state == "ready" and phase.generation == 0:
        yield mark(STANDBY, phase.at)
    elif phase.state in _NODE_STATES:
        yield mark(_NODE_STATES[phase.state], phase.at, phase.generation)
