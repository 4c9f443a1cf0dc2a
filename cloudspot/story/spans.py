"""Stretches of time, each in one state; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from cloudspot.story.stretches import Stretch

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
