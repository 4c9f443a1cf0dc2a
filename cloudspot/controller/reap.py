"""The reaper: which machines have no business to run any more; pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cloudspot.controller.actions import Terminate
from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.model import Instance, InstanceState
from cloudspot.story.outcomes import own_exit

GRACE_SECONDS = 60.0
"""A machine that has trained may flush its logs and shut itself down before it is ended from outside."""
EXIT_GRACE_SECONDS = 120.0
"""The same where its launch goes on without it."""


def reapable(history: History, instances: Sequence[Instance], now: datetime) -> tuple[Terminate, ...]:
    """Return what to terminate, by reason.

    Ended are machines of closed launches (a finished job has no other), those whose rank belongs to
    another machine or is void, those that have said their last word and do not go, and those that
    belong to no launch of the journal. ``history`` must have been read after ``instances`` were
    listed: an intent is written before its machines exist, so no launch of theirs can be missing.
    """
    doomed: dict[str, list[str]] = {}
    for instance in instances:
        if instance.job_id != history.submission.job_id or instance.state is InstanceState.ENDED:
            continue
        why = _why(history, instance, now)
        if why is not None:
            doomed.setdefault(why, []).append(instance.id)
    return tuple(Terminate(tuple(sorted(ids)), why) for why, ids in sorted(doomed.items()))


def _why(history: History, instance: Instance, now: datetime) -> str | None:
    if not 1 <= instance.launch <= len(history.launches):
        return f"launch {instance.launch} is not in the journal"
    launch = history.launches[instance.launch - 1]
    rank = next((rank for rank, slot in launch.slots.items() if slot.instance_id == instance.id), None)
    if launch.closed is not None:
        # A clock that differs by more than the grace ends the machine at once: it trains no more.
        late = abs((now - launch.closed.at).total_seconds()) >= GRACE_SECONDS
        if launch.is_attempt and rank is not None and not late:
            return None
        return f"launch {launch.number} is closed"
    if rank is not None:
        return _why_owner(launch, rank, now)
    if launch.is_attempt:
        return f"all ranks of launch {launch.number} belong to other machines"
    if instance.rank is not None and instance.rank in launch.slots:
        is_void = launch.slots[instance.rank].instance_id is None
        return f"rank {instance.rank} of launch {launch.number} is {'void' if is_void else 'taken'}"
    return None


def _why_owner(launch: LaunchHistory, rank: int, now: datetime) -> str | None:
    exit_record = own_exit(launch, rank)
    if exit_record is None or (now - exit_record.at).total_seconds() < EXIT_GRACE_SECONDS:
        return None
    return f"node {rank} of launch {launch.number} has ended its work and still runs"
