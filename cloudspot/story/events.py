"""What has happened to a job between two looks at its records, for people to read; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.jobstore.records import CheckpointId, Closed, Exit, Finished, Generation, Intent, Notice, Slot
from cloudspot.story.outcomes import own_exit


@dataclass(frozen=True)
class Event:
    """One thing that happened; ``text`` tells it in one line, without the job's name."""

    text: str


@dataclass(frozen=True)
class Launched(Event):
    """An intent was written: a launch is under way."""

    intent: Intent


@dataclass(frozen=True)
class Claimed(Event):
    """A machine came up and claimed its rank."""

    launch: int
    rank: int
    slot: Slot


@dataclass(frozen=True)
class NodeState(Event):
    """A node has begun to do something else (``setup``, ``restoring``, ``running``, ...)."""

    launch: int
    rank: int
    state: str


@dataclass(frozen=True)
class Started(Event):
    """A generation started: torchrun runs."""

    generation: Generation


@dataclass(frozen=True)
class Noticed(Event):
    """A node has a notice that its machine will be taken."""

    notice: Notice


@dataclass(frozen=True)
class Committed(Event):
    """A checkpoint exists."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class NodeEnded(Event):
    """A node wrote its exit record."""

    exit: Exit


@dataclass(frozen=True)
class LaunchClosed(Event):
    """A launch can no longer train."""

    closed: Closed


@dataclass(frozen=True)
class StopRequested(Event):
    """Somebody, or a limit, asked the job to checkpoint and end."""

    reason: str


@dataclass(frozen=True)
class JobFinished(Event):
    """The job is over."""

    finished: Finished


@dataclass(frozen=True)
class Waiting(Event):
    """The controller waits before the next launch."""

    seconds: float


@dataclass(frozen=True)
class Warned(Event):
    """Something that the user should know."""

    at: datetime | None = None
    """When this was said; None: by this controller, now."""


def diff(old: History | None, new: History) -> tuple[Event, ...]:
    """Return what ``new`` has beyond ``old`` (None: nothing was known), roughly in the order of events."""
    return tuple(_diff(old, new))


def _diff(old: History | None, new: History) -> Iterator[Event]:
    if new.stop is not None and (old is None or old.stop is None):
        text = f"stop requested ({new.stop.reason}): the job checkpoints and ends"
        yield StopRequested(text, new.stop.reason)
    known_launches = () if old is None else old.launches
    for launch in new.launches:
        before = known_launches[launch.number - 1] if launch.number <= len(known_launches) else None
        yield from _opened(before, launch)
        for generation in new.generations[0 if old is None else len(old.generations) :]:
            if generation.launch == launch.number:
                yield from _started(generation)
        numbers = {one.number for one in new.generations if one.launch == launch.number}
        known = set() if old is None else set(old.commits)
        for commit in new.commits:
            if commit.generation in numbers and commit not in known:
                yield Committed(f"checkpoint at step {commit.step} committed", commit)
        yield from _ended(before, launch)
    if new.finished is not None and (old is None or old.finished is None):
        why = f": {new.finished.detail}" if new.finished.detail else ""
        yield JobFinished(f"job {new.finished.outcome}{why}", new.finished)


def _opened(before: LaunchHistory | None, launch: LaunchHistory) -> Iterator[Event]:
    if before is None:
        offer = launch.intent.offer
        price = f"{offer.price_per_hour:g} {offer.currency} an hour"
        yield Launched(
            f"launch {launch.number} ({launch.intent.why}): {launch.intent.num_nodes} x "
            f"{offer.instance_type} in {offer.zone}, {offer.market.value} at {price}",
            launch.intent,
        )
    for rank, slot in sorted(launch.slots.items()):
        if before is None or rank not in before.slots:
            what = f"is up: {slot.instance_id}" if slot.instance_id else f"is void: {slot.detail}"
            yield Claimed(f"node {rank} {what}", launch.number, rank, slot)
    for rank, beat in sorted(launch.heartbeats.items()):
        last = None if before is None else before.heartbeats.get(rank)
        if last is None or last.state != beat.state:
            yield NodeState(f"node {rank}: {beat.state}", launch.number, rank, beat.state)
        for warning in beat.warnings:
            if last is None or warning not in last.warnings:
                yield Warned(f"node {rank}: {warning}", beat.at)
    for rank, notice in sorted(launch.notices.items()):
        if before is None or rank not in before.notices:
            left = max(0.0, (notice.deadline - notice.at).total_seconds())
            text = f"node {rank} will be taken in {left:.0f} s ({notice.source}){_at_step(notice.step, ', ')}"
            yield Noticed(text, notice)


def _at_step(step: int, before: str) -> str:
    """Return the end of a sentence; empty if no step is known to have been made."""
    return f"{before}at step {step}" if step else ""


def _started(generation: Generation) -> Iterator[Event]:
    for skipped in generation.skipped:
        text = f"checkpoint {skipped.checkpoint} did not verify and was passed over: {skipped.reason}"
        yield Warned(text, generation.at)
    restored = generation.restore_from
    origin = "from the start" if restored is None else f"from the checkpoint at step {restored.step}"
    yield Started(f"training starts {origin} (generation {generation.number}, {generation.why})", generation)


def _ended(before: LaunchHistory | None, launch: LaunchHistory) -> Iterator[Event]:
    for rank in sorted(launch.exits):
        last = own_exit(launch, rank)
        if last is not None and (before is None or own_exit(before, rank) is None):
            why = f": {last.detail}" if last.detail else ""
            yield NodeEnded(f"node {rank} {last.outcome}{_at_step(last.step, ' ')}{why}", last)
    if launch.closed is not None and (before is None or before.closed is None):
        why = f": {launch.closed.detail}" if launch.closed.detail else ""
        yield LaunchClosed(f"launch {launch.number} is over, {launch.closed.outcome}{why}", launch.closed)
