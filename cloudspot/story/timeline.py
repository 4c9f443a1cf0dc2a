"""The timeline of a job: its time divided into states, its goodput, and the answer to each notice; pure.

Nothing here is guessed. Time for which the records show no state is ``unknown``: a node died before it
reported its state, or its agent was too old to report it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import Generation, Resumed, Seat, Suspended
from cloudspot.jobstore.nodes.seats import seats_of
from cloudspot.story.answers import Answer, answers
from cloudspot.story.spans import STATES, NodeLine, Span, between, mark, node_lines, trained
from cloudspot.story.states import ended_at, held_generations
from cloudspot.story.stretches import Stretch, node_end, phases_of, stretches


@dataclass(frozen=True)
class Timeline:
    """A job's life from its submission to its end, or until now."""

    start: datetime
    end: datetime
    spans: tuple[Span, ...]
    """The spans, in order and without gaps; none is empty."""
    stretches: tuple[Stretch, ...]
    """The stretches, one for each generation."""
    answers: tuple[Answer, ...]
    """The answers, one for each notice, by launch and rank."""
    nodes: tuple[NodeLine, ...]
    """The lines, one for each node, by launch and rank."""

    @property
    def total_seconds(self) -> float:
        """The time that the job has taken so far, in seconds."""
        return (self.end - self.start).total_seconds()

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds in each of ``STATES``, which add up to the total."""
        found = dict.fromkeys(STATES, 0.0)
        for span in self.spans:
            found[span.state] += span.seconds
        return found

    @property
    def goodput(self) -> float | None:
        """The share of the job's time in which it made steps that count; None if no time has passed.

        The share is a lower bound if some of the time is ``unknown``. The time from an end of the job to its
        resumption does not count.
        """
        seconds = self.seconds
        lasted = self.total_seconds - seconds["ended"]
        return seconds["training"] / lasted if lasted > 0 else None


def timeline(history: History, now: datetime) -> Timeline:
    """Return the job's timeline at ``now``."""
    start = history.first_submission.at
    parts = stretches(history, now)
    end = ended_at(history) or now
    return Timeline(
        start=start,
        end=max(start, end),
        spans=between([mark("queued", start), *_Marks(history, parts, now).all()], end),
        stretches=parts,
        answers=tuple(answers(history)),
        nodes=tuple(node_lines(history, parts, now)),
    )


class _Marks:
    """Finds the beginning of each state of a job.

    From the first sign of a generation to the end of its last node, the job's state follows the generation's
    members; newcomers that boot meanwhile change nothing. Between two generations without a common node, and
    before the first generation, the state follows the machines that are starting.
    """

    def __init__(self, history: History, parts: tuple[Stretch, ...], now: datetime) -> None:
        self._history = history
        self._parts = parts
        self._now = now
        self._held = held_generations(history)
        self._excluded = seats_of(history.launches, history.generations).excluded
        self._first = {seat: one.number for one in reversed(history.generations) for seat in one.seats}
        """The first generation of each node that has been in one."""
        self._supply = _supply_changes(history, self._first)
        self._state: str | None = None
        """The last state before the changes that are left in ``_supply``, if there was one."""

    def all(self) -> Iterator[Span]:
        """Yield the marks in order."""
        before: Generation | None = None
        for generation in self._history.generations:
            survivors = () if before is None else tuple(set(before.seats).intersection(generation.seats))
            if survivors:
                assert before is not None
                yield from self._going_on(before, survivors, generation)
            else:
                yield from self._gap(before, generation)
            yield from self._generation(generation)
            before = generation
        if before is not None:
            # The survivors may be about to agree on the next generation.
            yield from self._going_on(before, before.seats, None)
        yield from self._gap(before, None)

    def _gap(self, before: Generation | None, after: Generation | None) -> Iterator[Span]:
        """Yield the marks from the end of one generation's nodes to the first sign of the next generation."""
        begin = None if before is None else self._over(before)
        if before is not None and begin is None:
            return
        number = 0 if before is None else before.number
        comers = self._newcomers() if after is None else after.seats
        begun = [at for at in (self._restored(seat, 0, after) for seat in comers) if at is not None]
        # The node with the slowest setup delays all others.
        restoring = max(begun) if begun and len(begun) == len(comers) else None
        until = restoring or (None if after is None else after.at)
        self._pass_over(number, begin)
        if begin is not None and self._state is not None and (until is None or begin <= until):
            yield mark(self._state, begin)
        for at, state in _supply(self._state or "queued", self._supply):
            if until is not None and at > until:
                break
            begun_at = at if begin is None else max(at, begin)
            yield mark(state, begun_at if until is None else min(begun_at, until))
        if restoring is not None:
            yield mark("restoring", restoring, None if after is None else after.number)

    def _pass_over(self, number: int, begin: datetime | None) -> None:
        """Remove nodes that joined a generation up to this one, and states before ``begin``.

        Generations are processed in order, so these entries are not needed again, and the rest is short.
        """
        left = []
        for change in self._supply:
            if change.number == 0 and begin is not None and change.at <= begin:
                self._state = _state_after(self._state or "queued", change.change)
            elif change.first > number:
                left.append(change)
        self._supply = left

    def _newcomers(self) -> list[Seat]:
        """Return the live nodes that have been in no generation yet."""
        return [
            seat
            for launch in self._history.live_launches
            for rank in launch.claimed
            if rank in launch.live_ranks and (seat := Seat(launch.number, rank)) not in self._first
        ]

    def _over(self, generation: Generation) -> datetime | None:
        """Return when the last node of the generation ended; None if a node may still run."""
        ends = []
        for seat in generation.seats:
            launch = self._history.launches[seat.launch - 1]
            if generation is self._history.generations[-1] and seat.rank in launch.live_ranks:
                return None
            ends.append(node_end(launch, seat.rank, self._now, excluded=self._excluded))
        return max((one for one in ends if one is not None), default=None)

    def _going_on(
        self, before: Generation, survivors: tuple[Seat, ...], after: Generation | None
    ) -> Iterator[Span]:
        """Yield the mark at which the surviving nodes began to restore."""
        restored = (self._restored(seat, before.number, after) for seat in survivors)
        begun = [at for at in restored if at is not None]
        if begun and before.number not in self._held:
            # The training ends when the first node begins to restore.
            yield mark("restoring", min(begun), before.number + 1)

    def _restored(self, seat: Seat, before: int, after: Generation | None) -> datetime | None:
        """Return when the node began to restore between two generations; 0 stands for its setup."""
        number = before if after is None else after.number
        for phase in phases_of(self._history.launches[seat.launch - 1], seat.rank):
            if phase.state == "running" and phase.generation == number != before:
                return None
            if phase.state == "restoring" and phase.generation in {before, number}:
                return phase.at
        return None

    def _generation(self, generation: Generation) -> Iterator[Span]:
        number, part = generation.number, self._parts[generation.number - 1]
        if number in self._held:
            yield mark("holding", generation.at, number)
            return
        running = [
            one.at
            for seat in generation.seats
            for one in phases_of(self._history.launches[seat.launch - 1], seat.rank)
            if one.generation == number and one.state == "running"
        ]
        if running:
            yield mark("starting", max(running), number)
        elif part.started is None:
            yield mark("unknown", generation.at, number)
        if part.started is not None:
            yield from trained(part, part.started)
        if part.ended is not None:
            yield mark("saving", part.ended, number)


class _Change(NamedTuple):
    """The beginning of a state of the job, or a change in the number of nodes in a state."""

    at: datetime
    change: str
    number: int
    """1 or -1 for a node that enters or leaves the state; 0 for a state of the job."""
    first: float
    """The first generation of the node; infinite for a state of the job."""


def _supply_changes(history: History, first: Mapping[Seat, int]) -> list[_Change]:
    """Return the changes of starting machines, in order; ``first`` is the first generation of each node."""
    changes: list[_Change] = []
    for at, change, launch in _in_journal_order(history):
        changes.append(_Change(at, change, 0, math.inf))
        for rank in () if launch is None else range(launch.intent.num_nodes):
            assert launch is not None
            changes += _changes(launch, rank, at, first=first.get(Seat(launch.number, rank)))
    return sorted(changes, key=lambda one: one.at)


def _supply(job_state: str, changes: Sequence[_Change]) -> Iterator[tuple[datetime, str]]:
    """Yield the job's states and their beginnings, by the machines alone, after ``job_state``."""
    num, last = dict.fromkeys(("setup", "staging", "unknown", "launching"), 0), ""
    for at, changed, change, _ in changes:
        if change:
            num[changed] += change
        else:
            job_state = _state_after(job_state, changed)
        busy = next((one for one, count in num.items() if count), None)
        state = job_state if job_state == "ended" or busy is None else busy
        if state != last:
            yield at, state
        last = state


def _state_after(state: str, change: str) -> str:
    """Return the state of the job that follows the state ``state`` when ``change`` begins."""
    if change not in _LEFT_BY:
        return change
    return state if state in _LEFT_BY[change] else "waiting"


_LEFT_BY = {"launched": {"suspended", "ended"}, "claimed": {"ended"}}
"""The states that a new launch or a claim does not change; any other state becomes ``waiting``."""


def _changes(launch: LaunchHistory, rank: int, at: datetime, *, first: int | None) -> Iterator[_Change]:
    """Yield the changes that a seat of a launch requested ``at`` makes to its job's state."""
    slot, over = launch.slots.get(rank), launch.over_at(rank)
    number = math.inf if first is None else first
    yield _Change(at, "launching", 1, number)
    if slot is None:
        return
    taken = max(at, slot.at)
    yield _Change(taken, "launching", -1, number)
    if rank in launch.claimed:
        yield _Change(taken, "claimed", 0, math.inf)
        state = "setup" if phases_of(launch, rank) or first is None else "unknown"
        yield _Change(taken, state, 1, number)
        staging = next((one.at for one in phases_of(launch, rank) if one.state == "staging"), None)
        if staging is not None and state == "setup":
            taken, state = max(taken, staging), "staging"
            yield _Change(taken, "setup", -1, number)
            yield _Change(taken, state, 1, number)
        if over is not None:
            yield _Change(max(taken, over), state, -1, number)


def _in_journal_order(history: History) -> Iterator[tuple[datetime, str, LaunchHistory | None]]:
    """Yield the job's launches and turns with the states that they begin, at times that never go back."""
    turns, at = list(history.turns), history.first_submission.at
    for launch in (*history.launches, None):
        while turns and (launch is None or turns[0][0] < launch.number):
            turn = turns.pop(0)[1]
            at = max(at, turn.at)
            yield at, {Suspended: "suspended", Resumed: "queued"}.get(type(turn), "ended"), None
        if launch is not None:
            at = max(at, launch.intent.at)
            yield at, "launched", launch
