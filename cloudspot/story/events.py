"""What has happened to a job between two looks at its records, for people to read; pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.jobstore.records import Generation, Moved, Resumed, Suspended, Turn
from cloudspot.story.outcomes import own_exit


class EventKind(enum.Enum):
    """What an event is about."""

    LAUNCHED = "an intent was written: a launch is under way"
    CLAIMED = "a machine came up and claimed its rank"
    NODE_STATE = "a node has begun to do something else (setup, restoring, running, ...)"
    STARTED = "a generation started: the training runs"
    NOTICED = "a node has a notice that its machine will be taken"
    COMMITTED = "a checkpoint exists"
    NODE_ENDED = "a node wrote its exit record"
    LAUNCH_CLOSED = "a launch can no longer train"
    STOP_REQUESTED = "somebody, or a limit, asked the job to checkpoint and end"
    JOB_FINISHED = "the job is over"
    SUSPENDED = "the job has waited for as long as it may, and runs again once there is capacity"
    RESUMED = "somebody has resumed the job"
    MOVED = "somebody has moved the job to another store"
    WAITING = "the controller waits before the next launch"
    WARNED = "something that the user should know"


@dataclass(frozen=True)
class Event:
    """One thing that happened; ``text`` tells it in one line, without the job's name."""

    kind: EventKind
    text: str
    at: datetime | None = None
    """As its record says; None: a controller says it now, or no record tells."""
    outcome: str | None = None
    """How a node or the job ended."""


def diff(old: History | None, new: History) -> tuple[Event, ...]:
    """Return what ``new`` has beyond ``old`` (None: nothing was known), roughly in the order of events."""
    return tuple(_diff(old, new))


def _diff(old: History | None, new: History) -> Iterator[Event]:
    if new.stop is not None and (old is None or old.stop is None):
        text = f"stop requested ({new.stop.reason}): the job checkpoints and ends"
        yield Event(EventKind.STOP_REQUESTED, text, new.stop.at)
    known_launches = () if old is None else old.launches
    for launch in new.launches:
        before = known_launches[launch.number - 1] if launch.number <= len(known_launches) else None
        yield from _opened(before, launch)
        for generation in new.generations[0 if old is None else len(old.generations) :]:
            if generation.members[0].launch == launch.number:
                yield from _started(generation)
        numbers = {one.number for one in new.generations if one.members[0].launch == launch.number}
        for commit in new.commits[0 if old is None else len(old.commits) :]:
            if commit.generation in numbers:
                yield Event(EventKind.COMMITTED, f"checkpoint at step {commit.step} committed")
        yield from _ended(before, launch)
    for _, turn in new.turns[0 if old is None else len(old.turns) :]:
        yield _turned(turn)


def _turned(turn: Turn) -> Event:
    if isinstance(turn, Suspended):
        return Event(EventKind.SUSPENDED, f"job suspended{_because(turn.detail)}", turn.at)
    if isinstance(turn, Resumed):
        return Event(EventKind.RESUMED, "job resumed", turn.at)
    if isinstance(turn, Moved):
        return Event(EventKind.MOVED, f"job moved to {turn.to}", turn.at)
    return Event(EventKind.JOB_FINISHED, f"job {turn.outcome}{_because(turn.detail)}", turn.at, turn.outcome)


def _opened(before: LaunchHistory | None, launch: LaunchHistory) -> Iterator[Event]:
    if before is None:
        offer = launch.intent.offer
        price = f"{offer.price_per_hour:g} {offer.currency} an hour"
        text = (
            f"launch {launch.number} ({launch.intent.why}): {launch.intent.num_nodes} x "
            f"{offer.instance_type} in {offer.zone}, {offer.market.value} at {price}"
        )
        yield Event(EventKind.LAUNCHED, text, launch.intent.at)
    for rank, slot in sorted(launch.slots.items()):
        if before is None or rank not in before.slots:
            what = f"is up: {slot.instance_id}" if slot.instance_id else f"is void: {slot.detail}"
            yield Event(EventKind.CLAIMED, f"node {rank} {what}", slot.at)
    for rank, beat in sorted(launch.heartbeats.items()):
        last = None if before is None else before.heartbeats.get(rank)
        if last is None or last.state != beat.state:
            yield Event(EventKind.NODE_STATE, f"node {rank}: {beat.state}", beat.at)
        for warning in beat.warnings:
            if last is None or warning not in last.warnings:
                yield Event(EventKind.WARNED, f"node {rank}: {warning}", beat.at)
    for rank, notice in sorted(launch.notices.items()):
        if before is None or rank not in before.notices:
            left = max(0.0, (notice.deadline - notice.at).total_seconds())
            text = f"node {rank} will be taken in {left:.0f} s ({notice.source}){_at_step(notice.step, ', ')}"
            yield Event(EventKind.NOTICED, text, notice.at)


def _at_step(step: int, before: str) -> str:
    """Return the end of a sentence; empty if no step is known to have been made."""
    return f"{before}at step {step}" if step else ""


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""


def _started(generation: Generation) -> Iterator[Event]:
    for skipped in generation.skipped:
        text = f"checkpoint {skipped.checkpoint} did not verify and was passed over: {skipped.reason}"
        yield Event(EventKind.WARNED, text, generation.at)
    restored = generation.restore_from
    origin = "from the start" if restored is None else f"from the checkpoint at step {restored.step}"
    text = f"training starts {origin} (generation {generation.number}, {generation.why})"
    yield Event(EventKind.STARTED, text, generation.at)


def _ended(before: LaunchHistory | None, launch: LaunchHistory) -> Iterator[Event]:
    for rank in sorted(launch.exits):
        last = own_exit(launch, rank)
        if last is not None and (before is None or own_exit(before, rank) is None):
            text = f"node {rank} {last.outcome}{_at_step(last.step, ' ')}{_because(last.detail)}"
            yield Event(EventKind.NODE_ENDED, text, last.at, last.outcome)
    if launch.closed is not None and (before is None or before.closed is None):
        text = f"launch {launch.number} is over, {launch.closed.outcome}{_because(launch.closed.detail)}"
        yield Event(EventKind.LAUNCH_CLOSED, text, launch.closed.at)
