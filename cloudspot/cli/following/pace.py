"""A job's speed and its remaining time, from its nodes' heartbeats. This module does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Heartbeat
from cloudspot.story.progress import first_step
from cloudspot.story.states import live_members

WINDOW_SECONDS = 60.0
"""The time window over which the speed is measured: short enough to follow changes, long enough to be stable.
"""
LEAST_SECONDS = 2.0
"""The minimum time between two heartbeats for which a speed is computed."""


@dataclass(frozen=True)
class Point:
    """The step that a generation had begun at a certain time, by its node's clock."""

    generation: int
    at: datetime
    step: int


def sight(history: History) -> Point | None:
    """Return the newest generation's progress from its nodes' heartbeats, or None if no steps are counted."""
    if not live_members(history):
        return None
    number = history.generations[-1].number
    beats = [beat for beat in _beats(history) if beat.generation == number]
    beats = [beat for beat in beats if beat.has_session and beat.state in {"running", "draining"}]
    if not beats:
        return None
    # Always use the first node's clock, so that points are comparable.
    first = beats[0]
    return Point(number, first.at, max(beat.step for beat in beats))


def origin(history: History) -> Point | None:
    """Return the start of the newest generation's steps, by its first node's clock; None if unknown."""
    if not live_members(history):
        return None
    generation = history.generations[-1]
    for beat in _beats(history):
        for phase in beat.phases:
            if phase.state == "training" and phase.generation == generation.number:
                return Point(generation.number, phase.at, first_step(generation))
    return None


def _beats(history: History) -> list[Heartbeat]:
    """Return the heartbeats of the newest generation's nodes, in rank order."""
    seats = history.generations[-1].seats
    beats = (history.launches[seat.launch - 1].heartbeats.get(seat.rank) for seat in seats)
    return [beat for beat in beats if beat is not None]


def with_point(points: Sequence[Point], new: Point | None) -> tuple[Point, ...]:
    """Return the points in the window, without points of older generations, whose steps are repeated."""
    if new is None:
        return ()
    kept = [one for one in points if one.generation == new.generation and one.at < new.at]
    # Keep one point from before the window, so that the speed covers the whole window.
    old = [one for one in kept if (new.at - one.at).total_seconds() > WINDOW_SECONDS]
    return (*old[-1:], *(one for one in kept if one not in old), new)


def steps_per_second(points: Sequence[Point]) -> float | None:
    """Return the speed over the points: 0 if the training makes no progress, or None if it is unknown."""
    if not points:
        return None
    seconds = (points[-1].at - points[0].at).total_seconds()
    if seconds < LEAST_SECONDS:
        return None
    return max(0, points[-1].step - points[0].step) / seconds


def seconds_left(step: int, steps_total: int | None, rate: float | None) -> float | None:
    """Return the time for the remaining steps at this speed, or None if it is unknown or infinite."""
    if steps_total is None or not rate:
        return None
    return max(0, steps_total - step) / rate
