"""Progress of a job from its records: its newest step, its planned steps and its lost steps; pure."""

from __future__ import annotations

from dataclasses import dataclass

from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import Exit, Generation, Heartbeat, Notice, Seat
from cloudspot.story.outcomes import own_beat, own_exit, own_exits
from cloudspot.story.states import is_holding


def newest_step(history: History) -> int:
    """Return the newest step that the job is known to have begun in its newest generation."""
    known = [0 if history.head is None else history.head.step]
    if history.generations:
        known.append(last_step(history, history.generations[-1]))
    return max(known)


def steps_total(history: History) -> int | None:
    """Return the planned number of steps, or None if the training has not reported it."""
    for launch in reversed(history.launches):
        finals = [one.final for one in own_exits(launch) if one.final is not None]
        planned = [final.planned for final in finals if final.planned is not None]
        totals = [beat.steps_total for beat in launch.heartbeats.values() if beat.steps_total is not None]
        if planned:
            return max(planned)
        if totals:
            return max(totals)
        if finals:
            return finals[0].step
    return None


@dataclass(frozen=True)
class StepsLost:
    """The begun steps that were repeated, or that are in no checkpoint when a job ends without success.

    The step that was under way at each restart counts, too.
    """

    num_steps: int
    is_exact: bool
    """Whether the count is exact; otherwise it is a lower bound, because a machine left no exit record."""


def steps_lost(history: History) -> StepsLost | None:
    """Return how many begun steps were repeated: for each restart, the steps from its checkpoint to the loss.

    Steps in no checkpoint when the job is stopped or fails count, too. The result is None if a script without
    a session was restarted or ended without success, because its steps are not counted.
    """
    total = StepsLost(0, is_exact=True)
    for number in range(1, len(history.generations) + 1):
        lost = steps_lost_by(history, number)
        if lost is None:
            return None
        total = StepsLost(total.num_steps + lost.num_steps, total.is_exact and lost.is_exact)
    return total


def steps_lost_by(history: History, number: int) -> StepsLost | None:
    """Return how many of the steps begun in generation ``number`` were repeated by the next generation.

    Steps of older generations count, too, if the next generation had to go back that far. For the last
    generation of a job that ended without success, the steps in no checkpoint count. The result is None if
    the script has no session, because its steps are not counted.
    """
    is_last, end = number >= len(history.generations), history.finished
    if is_last and (end is None or end.outcome == "succeeded"):
        return StepsLost(0, is_exact=True)
    if history.has_no_session:
        return None
    before = history.generations[number - 1]
    steps = [_reached(history, before, seat) for seat in before.seats]
    known = [step for step in steps if step is not None]
    reached = max([last_step(history, before), *known])
    if is_last:
        kept = 0 if history.head is None else history.head.step
    else:
        kept = first_step(history.generations[number])
    # A member without a report may have been ahead of the others, unless the generation only held. Such a
    # member was not ahead of survivors that saved their state, except by the step under way.
    kept_by = history.find_commit(history.head if is_last else history.generations[number].restore_from)
    is_rescued = kept_by is not None and kept_by.rescue is not None and kept_by.generation == number
    is_exact = len(known) == len(steps) or is_rescued or is_holding(history, before)
    return StepsLost(max(0, reached - kept), is_exact=is_exact)


def first_step(generation: Generation) -> int:
    """Return the step at which the generation began."""
    return 0 if generation.restore_from is None else generation.restore_from.step


def last_step(history: History, generation: Generation) -> int:
    """Return the newest step that is known to have begun in the generation."""
    steps = [first_step(generation)]
    steps += [one.step for one in history.commits_by_generation.get(generation.number, ())]
    exits = _exits_from(history, generation)
    if exits:
        # A drained node's record has the step of its commit; heartbeats and notices are older.
        return max([*steps, *(one.step for one in exits)])
    following = [seat for one in history.generations[generation.number :][:1] for seat in one.seats]
    for seat in generation.seats:
        launch = history.launch_of(seat)
        beat, notice = (None, None) if launch is None else _latest_reports(launch, seat.rank)
        if beat is not None and beat.generation == generation.number:
            steps.append(beat.step)
        # An excluded node never comes back, so this notice is its last.
        if notice is not None and seat not in following:
            steps.append(notice.step)
    return max(steps)


def _latest_reports(launch: LaunchHistory, rank: int) -> tuple[Heartbeat | None, Notice | None]:
    return launch.heartbeats.get(rank), launch.notices.get(rank)


def _reached(history: History, generation: Generation, seat: Seat) -> int | None:
    """Return the step after the newest one that a node began in the generation; None if not reported."""
    launch = history.launch_of(seat)
    if launch is None:
        return None
    last, beat = own_exit(launch, seat.rank), own_beat(launch, seat.rank)
    if last is not None and last.generation == generation.number:
        return last.reached_step
    phases = () if beat is None else beat.phases
    steps = [one.reached_step for one in phases if one.generation == generation.number]
    return max((step for step in steps if step is not None), default=None)


def _exits_from(history: History, generation: Generation) -> list[Exit]:
    """Return the exit records of the nodes that ended in the generation."""
    exits = []
    for seat in generation.seats:
        launch = history.launch_of(seat)
        last = None if launch is None else own_exit(launch, seat.rank)
        if last is not None and last.generation == generation.number:
            exits.append(last)
    return exits
