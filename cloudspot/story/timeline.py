"""Where a job's time went: its life cut into states, its goodput, and what came of each notice; pure.

Nothing here is guessed. A stretch of which the records do not tell what the job did (a node died before
it had said so, or its agent was too old to say it) is ``unknown``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.jobstore.records import Generation, Resumed, Suspended
from cloudspot.story.answers import Answer, answers
from cloudspot.story.spans import STATES, NodeLine, Span, between, node_lines, trained
from cloudspot.story.states import ended_at
from cloudspot.story.stretches import (
    Stretch,
    after_trainer,
    node_end,
    phases_of,
    stretches,
)


@dataclass(frozen=True)
class Timeline:
    """A job's life from its submission to its end, or until now."""

    start: datetime
    end: datetime
    spans: tuple[Span, ...]
    """Without gaps and in order; none is empty."""
    stretches: tuple[Stretch, ...]
    """One for each generation."""
    answers: tuple[Answer, ...]
    """One for each notice, by launch and rank."""
    nodes: tuple[NodeLine, ...]
    """One for each slot that a machine claimed, by launch and rank."""

    @property
    def total_seconds(self) -> float:
        """Return how long the job has taken so far."""
        return (self.end - self.start).total_seconds()

    @property
    def seconds(self) -> dict[str, float]:
        """Return the seconds in each of ``STATES``; together they are the total."""
        found = dict.fromkeys(STATES, 0.0)
        for span in self.spans:
            found[span.state] += span.seconds
        return found

    @property
    def goodput(self) -> float | None:
        """Return the share of the job's time in which it made steps that count; None if no time has passed.

        It is a lower bound where some of the time is ``unknown``. From an end to the resumption that takes it
        back, no time of the job passes.
        """
        seconds = self.seconds
        lasted = self.total_seconds - seconds["ended"]
        return seconds["training"] / lasted if lasted > 0 else None


def timeline(history: History, now: datetime) -> Timeline:
    """Return the job's timeline at ``now``."""
    start = history.first_submission.at
    parts = stretches(history, now)
    marks = [Span("queued", start, start), *_marks(history, parts, now)]
    end = ended_at(history) or now
    return Timeline(
        start=start,
        end=max(start, end),
        spans=between(marks, end),
        stretches=parts,
        answers=tuple(answers(history)),
        nodes=tuple(node_lines(history, parts, now)),
    )


def _marks(history: History, parts: tuple[Stretch, ...], now: datetime) -> Iterator[Span]:
    """Yield where each state begins, in order."""
    for launch in history.launches:
        yield from _turns(history, launch.number - 1)
        yield Span("launching", launch.intent.at, launch.intent.at, launch.number)
        if launch.is_attempt:
            yield from _attempt_marks(history, launch, parts)
        over = _launch_end(history, launch, now)
        if over is not None:
            yield Span("suspended" if _is_suspended(history, launch) else "waiting", over, over)
    yield from _turns(history, len(history.launches))


def _is_suspended(history: History, launch: LaunchHistory) -> bool:
    """Return whether the job was suspended before the launch and has not run since."""
    before = [(number, turn) for number, turn in history.turns if number < launch.number]
    if not before or not isinstance(before[-1][1], Suspended):
        return False
    return not any(one.is_attempt for one in history.launches[before[-1][0] : launch.number])


def _turns(history: History, num_launches: int) -> Iterator[Span]:
    """Yield what begins with each turn after so many launches."""
    for before, turn in history.turns:
        if before == num_launches:
            state = {Suspended: "suspended", Resumed: "queued"}.get(type(turn), "ended")
            yield Span(state, turn.at, turn.at)


def _launch_end(history: History, launch: LaunchHistory, now: datetime) -> datetime | None:
    """Return when the launch stopped running anything; None while something may run."""
    if not launch.is_attempt:
        return None if launch.closed is None else launch.closed.at
    if launch.closed is None and not all(rank in launch.exits for rank in launch.slots):
        return None
    ends = [node_end(history, launch, rank, now) for rank in launch.slots]
    closed_at = None if launch.closed is None else launch.closed.at
    return max((one for one in ends if one is not None), default=closed_at)


def _attempt_marks(history: History, launch: LaunchHistory, parts: tuple[Stretch, ...]) -> Iterator[Span]:
    claimed = max(slot.at for slot in launch.slots.values())
    generations = history.generations_by_launch.get(launch.number, ())
    is_told = not generations or any(phases_of(launch, rank) for rank in launch.slots)
    yield Span("setup" if is_told else "unknown", claimed, claimed, launch.number)
    before = 0
    for generation in generations:
        ranks = generation.ranks(launch.number)
        yield from _restoring(launch, ranks, before, generation.number)
        yield from _training(launch, generation, parts[generation.number - 1])
        before = generation.number
    # The survivors may be about to agree on the next one.
    yield from _restoring(launch, tuple(sorted(launch.slots)), before, None)


def _restoring(
    launch: LaunchHistory, ranks: tuple[int, ...], before: int, number: int | None
) -> Iterator[Span]:
    """Yield when the nodes began to restore after generation ``before`` (0: after their setup)."""
    begun = []
    for rank in ranks:
        behind = after_trainer(phases_of(launch, rank), before)
        begun += [one.at for one in behind if one.state == "restoring"][:1]
    # The slowest setup holds up all; after a generation the first one to go on ends the training.
    if begun and (before > 0 or len(begun) == len(ranks)):
        at = min(begun) if before > 0 else max(begun)
        yield Span("restoring", at, at, launch.number, number)


def _training(launch: LaunchHistory, generation: Generation, part: Stretch) -> Iterator[Span]:
    number = generation.number
    running = [
        one.at
        for rank in generation.ranks(launch.number)
        for one in phases_of(launch, rank)
        if one.generation == number and one.state == "running"
    ]

    def mark(state: str, at: datetime) -> Span:
        return Span(state, at, at, launch.number, number)

    if running:
        yield mark("starting", max(running))
    elif part.started is None:
        yield mark("unknown", generation.at)
    if part.started is not None:
        yield from trained(part, part.started, launch.number)
    if part.ended is not None:
        yield mark("saving", part.ended)
