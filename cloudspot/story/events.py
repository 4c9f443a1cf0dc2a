"""The events of a job between two looks at its records, for people to read; pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import (
    Commit,
    Finished,
    Generation,
    Intent,
    Kept,
    Moved,
    Resumed,
    Seat,
    StopRequest,
    Suspended,
    Turn,
)
from cloudspot.jobstore.nodes.keeping import kept_text
from cloudspot.story.node_names import named
from cloudspot.story.outcomes import how_it_ended, launch_end, own_exit
from cloudspot.story.states import is_holding, nodes_of


class EventKind(enum.Enum):
    """The subject of an event."""

    LAUNCHED = "an intent was written: a launch is under way"
    CLAIMED = "a machine came up and claimed its seat"
    NODE_STATE = "a node has entered another state (setup, restoring, running, ...)"
    REPRICED = "the price of a launch's nodes has changed"
    STARTED = "a generation started: the training runs"
    HOLDING = "a generation has too few nodes to train, and keeps them warm"
    NOTICED = "a node has a notice that its machine will be taken"
    COMMITTED = "a checkpoint exists"
    NODE_ENDED = "a node wrote its exit record, or its machine has provably ended"
    KEPT = "the machine of a node stays for inspection, as the job has failed"
    LAUNCH_ENDED = "all nodes of a launch have ended"
    STOP_REQUESTED = "a person or a limit asked the job to checkpoint and end"
    JOB_FINISHED = "the job is over"
    SUSPENDED = "the job has waited for the longest time allowed, and runs again once there is capacity"
    RESUMED = "somebody has resumed the job"
    MOVED = "somebody has moved the job to another store"
    WAITING = "the controller waits before the next launch"
    WARNED = "something that the user should know"


@dataclass(frozen=True)
class Event:
    """One event; ``text`` describes it in one line, without the job's name."""

    kind: EventKind
    text: str
    at: datetime | None = None
    """The time in the event's record, or None if it has no record."""
    outcome: str | None = None
    """The outcome of the node or the job that has ended."""


def diff(old: History | None, new: History) -> tuple[Event, ...]:
    """Return the events of ``new`` that ``old`` lacks (all if ``old`` is None), roughly in order of time."""
    return tuple(_diff(old, new))


def _diff(old: History | None, new: History) -> Iterator[Event]:
    if new.stop is not None and (old is None or old.stop is None):
        yield Event(EventKind.STOP_REQUESTED, stop_text(new.stop, new.kept), new.stop.at)
    known_launches = () if old is None else old.launches
    before = [known_launches[n] if n < len(known_launches) else None for n in range(len(new.launches))]
    for known, launch in zip(before, new.launches, strict=True):
        yield from _opened(known, launch)
    num_known = 0 if old is None else len(old.generations)
    commits: dict[int, list[Commit]] = {}
    for commit in new.commits[0 if old is None else len(old.commits) :]:
        commits.setdefault(commit.generation, []).append(commit)
    for number in sorted({*commits, *range(num_known + 1, len(new.generations) + 1)}):
        if number > num_known:
            yield from _started(new, new.generations[number - 1])
        for commit in commits.get(number, ()):
            text = f"checkpoint at step {commit.step} committed{_by_survivors(commit)}"
            yield Event(EventKind.COMMITTED, text, commit.at)
    for known, launch in zip(before, new.launches, strict=True):
        yield from _ended(known, launch)
    for _, turn in new.turns[0 if old is None else len(old.turns) :]:
        yield _turned(turn)


_TURNS = {
    Finished: EventKind.JOB_FINISHED,
    Suspended: EventKind.SUSPENDED,
    Resumed: EventKind.RESUMED,
    Moved: EventKind.MOVED,
}


def _turned(turn: Turn) -> Event:
    outcome = turn.outcome if isinstance(turn, Finished) else None
    return Event(_TURNS[type(turn)], turn_text(turn), turn.at, outcome)


def stop_text(stop: StopRequest, kept: Kept | None = None) -> str:
    """Return a line that says why the job was asked to end, or that a kept machine ends, with the figures."""
    figures = f"; {stop.detail}" if stop.detail else ""
    ends = "the job checkpoints and ends"
    if kept is not None and kept.at <= stop.at:
        ends = f"the machine of node {kept.seat}, which is kept for inspection, ends"
    return f"stop requested ({stop.reason}): {ends}{figures}"


def turn_text(turn: Turn) -> str:
    """Return a line that says how the job's state has changed."""
    if isinstance(turn, Suspended):
        return f"job suspended{_because(turn.detail)}"
    if isinstance(turn, Resumed):
        return "job resumed"
    if isinstance(turn, Moved):
        return f"job moved to {turn.to}"
    return f"job {turn.outcome}{_because(turn.detail)}"


def _opened(before: LaunchHistory | None, launch: LaunchHistory) -> Iterator[Event]:
    if before is None:
        yield Event(EventKind.LAUNCHED, launch_text(launch.intent), launch.intent.at)
    costs = [launch.intent.offer.price_per_hour, *(one.price_per_hour for one in launch.prices)]
    for number in range(0 if before is None else len(before.prices), len(launch.prices)):
        price = f"{costs[number + 1]:g} {launch.intent.offer.currency} an hour, {costs[number]:g} before"
        text = f"launch {launch.number}: a node now costs {price}"
        yield Event(EventKind.REPRICED, text, launch.prices[number].at)
    for rank, slot in sorted(launch.slots.items()):
        if before is None or rank not in before.slots:
            node = Seat(launch.number, rank)
            text = (
                f"node {node} is up: {slot.instance_id}"
                if slot.instance_id
                else f"seat {node} is void: {slot.detail}"
            )
            yield Event(EventKind.CLAIMED, text, slot.at)
    for rank, beat in sorted(launch.heartbeats.items()):
        last = None if before is None else before.heartbeats.get(rank)
        node = Seat(launch.number, rank)
        if last is None or last.state != beat.state:
            yield Event(EventKind.NODE_STATE, f"node {node}: {beat.state}", beat.at)
        for warning in beat.warnings:
            if last is None or warning not in last.warnings:
                yield Event(EventKind.WARNED, f"node {node}: {warning}", beat.at)
        if beat.idle is not None and (last is None or last.idle is None):
            yield Event(EventKind.WARNED, f"node {node}: {beat.idle.text}", beat.at)
    for rank, notice in sorted(launch.notices.items()):
        if before is None or rank not in before.notices:
            left = max(0.0, (notice.deadline - notice.at).total_seconds())
            what = f"node {Seat(launch.number, rank)} will be taken in {left:.0f} s ({notice.source})"
            yield Event(EventKind.NOTICED, f"{what}{_at_step(notice.step, ', ')}", notice.at)


def launch_text(intent: Intent) -> str:
    """Return a line with the machines that a launch requests, and the reason."""
    offer = intent.offer
    text = (
        f"launch {intent.launch} ({intent.why}): {intent.num_nodes} x {offer.instance_type} in {offer.zone}, "
        f"{offer.market.value} at {offer.price_per_hour:g} {offer.currency} an hour"
    )
    principals = [seat for seat in intent.stands_in_for if seat is not None]
    instead = f", to take the place of {named(principals)}" if principals else ""
    return f"{text}{instead}{_because(intent.detail)}"


def _at_step(step: int, before: str) -> str:
    """Return ``at step N`` after ``before``, or an empty string if no step is known."""
    return f"{before}at step {step}" if step else ""


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""


def _started(history: History, generation: Generation) -> Iterator[Event]:
    for skipped in generation.skipped:
        text = f"checkpoint {skipped.checkpoint} did not verify and was skipped: {skipped.reason}"
        yield Event(EventKind.WARNED, text, generation.at)
    if is_holding(history, generation):
        verb = "waits" if len(generation.seats) == 1 else "wait"
        lack = f"{named(generation.seats)} {verb}: the training needs {nodes_of(history).min} nodes"
        text = f"{lack} (generation {generation.number}, {generation.why})"
        yield Event(EventKind.HOLDING, text, generation.at)
        return
    restored = generation.restore_from
    # A job that has committed once never starts at step 0 again.
    why = ", as no checkpoint was committed before" if generation.number > 1 else ""
    start = f"starts at step 0{why}" if restored is None else f"resumes at step {restored.step}"
    text = f"training {start} (generation {generation.number}, {generation.why})"
    yield Event(EventKind.STARTED, f"{text}{_changes(history, generation)}", generation.at)


def _changes(history: History, generation: Generation) -> str:
    """Return a phrase about the nodes that have joined and left the generation, for the end of a line."""
    before = history.generations[generation.number - 2].seats if generation.number > 1 else ()
    joined = [seat for seat in generation.seats if seat not in before]
    left = [seat for seat in before if seat not in generation.seats]
    if len(joined) == len(generation.seats):
        return f" on {named(joined)}" if before or len(joined) > 1 else ""
    phrases = [f"with {named(joined)}"] if joined else []
    phrases += [f"without {named(left)}"] if left else []
    return f", {' and '.join(phrases)}" if phrases else ""


def _ended(before: LaunchHistory | None, launch: LaunchHistory) -> Iterator[Event]:
    last_text = ""
    for rank, slot in launch.claimed.items():
        if not launch.is_over(rank) or (before is not None and before.is_over(rank)):
            continue
        node, last, proof = Seat(launch.number, rank), own_exit(launch, rank), launch.certificate(rank)
        if last is not None:
            text = f"node {node} {last.outcome}{_at_step(last.step, ' ')}{_because(last.detail)}"
            yield Event(EventKind.NODE_ENDED, text, last.at, last.outcome)
        elif proof is not None:
            last_text = f"node {node} ({slot.instance_id}) {how_it_ended(proof)}"
            yield Event(EventKind.NODE_ENDED, last_text, proof.ended_at, "lost")
    if launch.kept is not None and (before is None or before.kept is None):
        yield Event(EventKind.KEPT, kept_text(launch.kept), launch.kept.at)
    end = launch_end(launch) if before is None or before.ended_at is None else None
    if end is not None:
        why = "" if end.detail == last_text else _because(end.detail)  # avoids giving the same detail twice
        text = f"launch {launch.number} is over, {end.outcome}{why}"
        yield Event(EventKind.LAUNCH_ENDED, text, end.at)


def _by_survivors(commit: Commit) -> str:
    if commit.rescue is None:
        return ""
    if not commit.rescue.lost:
        return ", after a failure"
    ranks = ", ".join(map(str, commit.rescue.lost))
    unknown = ", ".join(str(rank) for rank in commit.rescue.lost if rank not in commit.rescue.kept)
    what = "" if commit.rescue.is_exact else f"; the random generators of rank {unknown} are seeded anew"
    return f" by the survivors of rank {ranks}{what}"
