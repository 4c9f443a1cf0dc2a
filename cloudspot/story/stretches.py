"""The training of each generation: when it began and ended, and which part of it counts; pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import Generation, Phase, Seat
from cloudspot.jobstore.nodes.seats import seats_of
from cloudspot.story.outcomes import own_beat
from cloudspot.story.progress import StepsLost, last_step, steps_lost_by
from cloudspot.story.states import held_generations, job_state, live_members

OVER = frozenset({"uploading", "ending", "restoring"})
"""The states in which a node that ran no longer has a trainer."""
RAN = frozenset({"running", "training"})


@dataclass(frozen=True)
class Stretch:
    """The training of one generation; values that the records do not show are None."""

    number: int
    started: datetime | None
    """The time at which the loop over the steps (without a session: the script) had begun on all nodes."""
    ended: datetime | None
    """The time at which the first node's trainer ended; ``now`` while all trainers run."""
    kept_until: datetime | None
    """The time up to which the work is in the state from which the job continues or with which it ended:
    ``started`` if that has none of the work, ``ended`` if it has all of it.
    """
    was_drained: bool
    """Whether that state includes the newest step, so that nothing was trained after ``kept_until``."""
    last_step: int
    """The newest step begun."""
    steps_lost: StepsLost | None
    """The steps that the next generation repeated; None if steps were not counted."""

    @property
    def lost(self) -> tuple[datetime, datetime] | None:
        """The begin and the end of the steps that do not count; None if no such steps are known."""
        if self.was_drained or self.kept_until is None or self.ended is None or self.kept_until >= self.ended:
            return None
        return self.kept_until, self.ended


def stretches(history: History, now: datetime) -> tuple[Stretch, ...]:
    """Return the stretch of each generation, in order."""
    kept, excluded = _Kept(history), seats_of(history.launches, history.generations).excluded
    return tuple(_stretch(history, generation, now, kept, excluded) for generation in history.generations)


def phases_of(launch: LaunchHistory, rank: int) -> tuple[Phase, ...]:
    """Return the phases that the owner of the rank has reported, oldest first."""
    beat = own_beat(launch, rank)
    return () if beat is None else beat.phases


def after_trainer(phases: Sequence[Phase], generation: int) -> Sequence[Phase]:
    """Return the phases that followed the node's run of the generation; for generation 0, all phases."""
    if generation == 0:
        return phases
    ran = [n for n, one in enumerate(phases) if one.generation == generation and one.state in RAN]
    return phases[ran[-1] + 1 :] if ran else ()


def node_end(
    launch: LaunchHistory, rank: int, now: datetime, *, excluded: Collection[Seat]
) -> datetime | None:
    """Return when the node ended, ``now`` if it may still run, or None if its end is not known.

    ``excluded`` are the nodes that were left out of the training.
    """
    over = launch.over_at(rank)
    if over is not None:
        return over
    return None if Seat(launch.number, rank) in excluded else now


def _stretch(
    history: History, generation: Generation, now: datetime, kept: _Kept, excluded: Collection[Seat]
) -> Stretch:
    number = generation.number
    first = "running" if history.has_no_session else "training"
    begun, over = [], []
    for seat in generation.seats:
        launch = history.launch_of(seat)
        if launch is not None:
            phases = phases_of(launch, seat.rank)
            begun += [one.at for one in phases if one.generation == number and one.state == first]
            ends = (one.at for one in after_trainer(phases, number) if one.state in OVER)
            end = next(ends, None) or node_end(launch, seat.rank, now, excluded=excluded)
            over += [] if end is None else [end]
    if number < len(history.generations):
        over.append(history.generations[number].at)
    started, ended = max(begun, default=None), min(over, default=None)
    if started is not None and ended is not None:
        ended = max(started, ended)
    return Stretch(
        number=number,
        started=started,
        ended=ended,
        kept_until=kept.until(number, started, ended),
        was_drained=number in kept.drained,
        last_step=last_step(history, generation),
        steps_lost=steps_lost_by(history, number),
    )


class _Kept:
    """The time up to which each generation's work is kept, found by going back from the newest state."""

    def __init__(self, history: History) -> None:
        self._sealed: dict[int, datetime] = {}
        """For each generation with a state that counts, the time at which that state was sealed."""
        self._whole: set[int] = set()
        self.drained: set[int] = set()
        if not history.generations:
            return
        current, held = history.generations[-1], held_generations(history)
        self._take_newest(history, current)
        while current.restore_from is not None and 1 <= current.restore_from.generation < current.number:
            restored, commit = current.restore_from, history.find_commit(current.restore_from)
            if commit is not None:
                self._sealed[restored.generation] = commit.sealed_at
            lost = steps_lost_by(history, restored.generation)
            are_held = held.issuperset(range(restored.generation + 1, current.number))
            if are_held and lost == StepsLost(0, is_exact=True):
                self.drained.add(restored.generation)
            current = history.generations[restored.generation - 1]

    def until(self, number: int, started: datetime | None, ended: datetime | None) -> datetime | None:
        """Return the time up to which the generation's work from ``started`` to ``ended`` is kept."""
        if number in self._whole:
            return ended
        if number not in self._sealed:
            return started
        found = self._sealed[number]
        if started is None or ended is None:
            return found
        return min(max(started, found), ended)

    def _take_newest(self, history: History, newest: Generation) -> None:
        """Judge the newest generation, from which no other generation has resumed."""
        if job_state(history) == "succeeded" or live_members(history):
            self._whole.add(newest.number)  # Work that is still going on may be kept whole.
            return
        commit = history.find_commit(history.head)
        if commit is None or commit.generation != newest.number:
            return
        self._sealed[newest.number] = commit.sealed_at
        if commit.step >= last_step(history, newest):
            self.drained.add(newest.number)
