"""Measurements of a job: its pace, and how long its machines take to start; pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import sqrt

from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Generation, Seat
from cloudspot.story.progress import steps_total

DEFAULT_START_SECONDS = 300.0
"""The time from the request of a machine until it can train, until one has been measured."""
DEFAULT_RESTART_SECONDS = 60.0
"""The time from the agreement on a generation until all its nodes train, until one has been measured."""
MIN_INTERVALS, MAX_INTERVALS = 3, 100
"""The minimum number of commit intervals from which a pace is computed, and the maximum number used (the
newest). With fewer intervals, the pace is that of the newest heartbeat.
"""
UNKNOWN_LENGTH_SHARE = 0.75
"""The share of its deadline that a job of unknown length is assumed to need."""


def seconds_to_go(spec: JobSpec, history: History) -> float | None:
    """Return the training time from the newest commit on, or None if that is not known.

    The time follows from the training's own steps and pace or, before these are known, from ``spot.length``.
    While there are too few steps to measure their variance, the longer of the two times counts.
    """
    kept, pace, total = 0 if history.head is None else history.head.step, _pace(history), steps_total(history)
    if pace is None or total is None:
        return spec.spot.length
    left = max(0, total - kept)
    declared = (
        0.0 if spec.spot.length is None or pace.variance is not None else spec.spot.length * left / total
    )
    return max(declared, left * pace.step_seconds)


def seconds_to_end(history: History) -> float | None:
    """Return the time that the steps not yet begun will take, or None if that is not known."""
    pace, total = _pace(history), steps_total(history)
    return None if pace is None or total is None else max(0, total - pace.newest_step) * pace.step_seconds


def doubt_seconds(history: History) -> float:
    """Return two standard errors of ``seconds_to_go``, from the variance of the steps."""
    pace, total = _pace(history), steps_total(history)
    if pace is None or pace.variance is None or total is None:
        return 0.0
    left = max(0, total - (0 if history.head is None else history.head.step))
    # Both the remaining steps and the measured steps vary.
    return 2 * sqrt(pace.variance * left * (1 + left / pace.num_steps))


def assumed_seconds_to_go(spec: JobSpec, history: History) -> float | None:
    """Return ``seconds_to_go``, or a share of the deadline if neither length nor pace is known."""
    known = seconds_to_go(spec, history)
    if known is None and spec.spot.deadline is not None:
        return UNKNOWN_LENGTH_SHARE * spec.spot.deadline
    return known


def start_seconds(history: History) -> float:
    """Return the median time from the request of a machine until it can train, or the default."""
    durations = []
    for launch in history.launches:
        first = next(iter(history.generations_by_launch.get(launch.number, ())), None)
        ready = [
            phase.at for beat in launch.heartbeats.values() for phase in beat.phases if phase.state == "ready"
        ]
        came = [*ready[:1], *([] if first is None else [first.at])]
        durations += [max(0.0, (min(came) - launch.intent.at).total_seconds())] if came else []
    return statistics.median(durations) if durations else DEFAULT_START_SECONDS


def restart_seconds(history: History) -> float:
    """Return the median time from a generation's record until all its nodes train, or the default."""
    found = list(_restarts(history))
    return statistics.median(found) if found else DEFAULT_RESTART_SECONDS


@dataclass(frozen=True)
class _Pace:
    """The pace of a job's training."""

    step_seconds: float
    newest_step: int
    num_steps: int
    """The number of steps from which the pace was measured."""
    variance: float | None = None
    """The variance of one step's time, in square seconds; None if too few steps are known."""


def _pace(history: History) -> _Pace | None:
    """Return the pace of the job on its present machines, or None if that is not known."""
    now = _reported_pace(history)
    intervals = _intervals(history)
    num_steps = sum(steps for steps, _ in intervals)
    if now is None or len(intervals) < MIN_INTERVALS:
        return now
    mean = sum(seconds for _, seconds in intervals) / num_steps
    # Steps vary independently, so the variance of an interval is the sum of its steps' variances.
    variance = sum((seconds - mean * steps) ** 2 for steps, seconds in intervals) / num_steps
    if num_steps > now.num_steps:
        now = dataclasses.replace(now, step_seconds=mean, num_steps=num_steps)
    return dataclasses.replace(now, variance=variance)


def _reported_pace(history: History) -> _Pace | None:
    """Return the pace according to the newest heartbeat of the newest launch that has made steps."""
    for launch in reversed(history.launches):
        for rank, beat in sorted(launch.heartbeats.items()):
            done = beat.step - beat.restored_step
            begun = [
                one.at for one in beat.phases if one.generation == beat.generation and one.state == "training"
            ]
            since = begun[-1] if begun else launch.slots[rank].at if rank in launch.slots else None
            if since is not None and done > 0:
                return _Pace(max(0.0, (beat.at - since).total_seconds()) / done, beat.step, done)
    return None


def _intervals(history: History) -> Sequence[tuple[int, float]]:
    """Return the steps and the seconds between the newest commits made on machines of the present types."""
    types = {one.number: _machine_types(history, one) for one in history.generations}
    # A fork begins with a commit of the other job, which belongs to no generation of its own.
    commits = [one for one in history.commits[-MAX_INTERVALS - 1 :] if one.generation in types]
    intervals = [
        (after.step - before.step, (after.at - before.at).total_seconds())
        for before, after in pairwise(commits)
        if before.generation == after.generation and types[after.generation] == types[commits[-1].generation]
    ]
    return [one for one in intervals if one[1] > 0]


def _machine_types(history: History, generation: Generation) -> Sequence[str]:
    launches = (history.launches[seat.launch - 1] for seat in generation.seats)
    return sorted(launch.intent.offer.instance_type for launch in launches)


def _restarts(history: History) -> Iterator[float]:
    for generation in history.generations[1:]:
        begun = [at for seat in generation.seats if (at := _begun_at(history, seat, generation)) is not None]
        if begun:
            yield max(0.0, (max(begun) - generation.at).total_seconds())


def _begun_at(history: History, seat: Seat, generation: Generation) -> datetime | None:
    launch = history.launch_of(seat)
    beat = None if launch is None else launch.heartbeats.get(seat.rank)
    phases = () if beat is None else beat.phases
    begun = (one.at for one in phases if one.generation == generation.number and one.state == "training")
    return next(begun, None)
