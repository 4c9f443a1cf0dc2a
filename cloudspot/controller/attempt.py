"""What the records and the provider's word say about one launch: who is dead, and how it ended; pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import get_args

from cloudspot.controller.observed import Observed
from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.jobstore.records import Ending, LaunchOutcome, Machine, VoidOutcome
from cloudspot.model import EndReason, Instance, InstanceState
from cloudspot.story.outcomes import own_exit, own_exits, permanent_failure, succeeded

VOID_OUTCOMES: dict[str, VoidOutcome] = {one: one for one in get_args(VoidOutcome)}
"""How a launch that never trained is closed; the detail of a void begins with one of these."""


def void_detail(outcome: VoidOutcome, detail: str) -> str:
    """Return the detail of a void slot, from which any controller can close the launch."""
    return f"{outcome}: {detail}"


def void_outcome(launch: LaunchHistory) -> tuple[VoidOutcome, str]:
    """Return the (outcome, detail) that the launch's void slot gives; ``voided`` if it gives none."""
    for _, slot in sorted(launch.slots.items()):
        if slot.instance_id is None:
            outcome, _, detail = slot.detail.partition(": ")
            known = VOID_OUTCOMES.get(outcome)
            return ("voided", slot.detail) if known is None else (known, detail)
    return "voided", ""


def find_instance(instance_id: str, observed: Observed) -> Instance | None:
    """Return the machine as the newest listing shows it."""
    return next((one for one in observed.instances or () if one.id == instance_id), None)


def provider_proves_death(instance_id: str, observed: Observed) -> bool:
    """Return whether the provider's word proves that the machine runs nothing any more.

    ``ended`` proves it, and so does an absence that has lasted long enough. A machine that is
    ``shutting-down`` is alive, a short absence may be a listing that lags, and silence is not death.
    """
    instance = find_instance(instance_id, observed)
    if instance is not None:
        return instance.state is InstanceState.ENDED
    return observed.absent_seconds.get(instance_id, 0.0) >= observed.absence_proves_after_seconds


def is_dead(launch: LaunchHistory, rank: int, observed: Observed) -> bool:
    """Return whether it is proven that the owner of the rank runs no user code any more."""
    if own_exit(launch, rank) is not None:
        return True
    slot = launch.slots.get(rank)
    if slot is None or slot.instance_id is None:
        return False
    return provider_proves_death(slot.instance_id, observed)


def dead_seconds(launch: LaunchHistory, rank: int, observed: Observed) -> float:
    """Return for how long, at the least, this controller has known of the death of the rank's owner."""
    absent = observed.absent_seconds.get(launch.slots[rank].instance_id or "", 0.0)
    known = observed.ending_seconds.get(Ending(launch.number, rank), 0.0)
    return max(known, absent - observed.absence_proves_after_seconds)


def machines_of(launch: LaunchHistory, observed: Observed) -> tuple[Instance, ...]:
    """Return the launch's machines by the newest listing, ended ones too."""
    return tuple(one for one in observed.instances or () if one.launch == launch.number)


def attempt_outcome(history: History, launch: LaunchHistory, observed: Observed) -> tuple[LaunchOutcome, str]:
    """Return (outcome, detail) of an attempt that is over.

    A reclaim explains the failures of the peers, since a rank whose peer was taken fails too. It does not
    explain a success, a stop that was obeyed, or a failure that the script would repeat anywhere.
    """
    if succeeded(history, launch):
        return "succeeded", ""
    exits = own_exits(launch)
    stopped = next((one for one in exits if one.outcome == "stopped"), None)
    if stopped is not None:
        return "stopped", stopped.detail
    permanent = permanent_failure(launch)
    if permanent is not None:
        return "failed", permanent.detail
    reclaimed = _reclaim(launch, observed)
    if reclaimed is not None:
        return "reclaimed", reclaimed
    failed = next((one for one in exits if one.outcome == "failed"), None)
    if failed is not None:
        return "failed", failed.detail
    return "lost", "; ".join(_last_words(launch, observed))


def _reclaim(launch: LaunchHistory, observed: Observed) -> str | None:
    for rank, slot in sorted(launch.slots.items()):
        instance = find_instance(slot.instance_id or "", observed)
        if instance is not None and instance.end_reason is EndReason.RECLAIMED:
            return f"the provider took back {instance.id} (node {rank})"
        exit_record = own_exit(launch, rank)
        if exit_record is not None and exit_record.outcome == "drained":
            return exit_record.detail or f"node {rank} drained"
        if rank in launch.notices:
            return f"node {rank} had a notice ({launch.notices[rank].source})"
    return None


def _last_words(launch: LaunchHistory, observed: Observed) -> list[str]:
    words = []
    for rank, slot in sorted(launch.slots.items()):
        if not is_dead(launch, rank, observed):
            continue
        instance = find_instance(slot.instance_id or "", observed)
        exit_record = own_exit(launch, rank)
        if exit_record is not None:
            words.append(f"node {rank} {exit_record.outcome}: {exit_record.detail}")
        elif instance is None:
            words.append(f"node {rank} ({slot.instance_id}) vanished")
        else:
            reason = (instance.end_reason or EndReason.UNKNOWN).value
            words.append(f"node {rank} ({slot.instance_id}) ended: {reason}")
    return words


def bill_lines(launch: LaunchHistory, observed: Observed, now: datetime) -> tuple[Machine, ...]:
    """Return the machines of a launch that is being closed, for the journal.

    A machine that still runs is billed until ``now``; the reaper ends it.
    """
    ranks = {slot.instance_id: rank for rank, slot in launch.slots.items() if slot.instance_id}
    created = (one for one in observed.created if one.launch == launch.number)
    listed = {one.id: one for one in (*created, *machines_of(launch, observed))}
    lines = []
    for instance_id in sorted({*ranks, *listed}):
        instance, rank = listed.get(instance_id), ranks.get(instance_id)
        claimed = launch.intent.at if rank is None else launch.slots[rank].at
        started = claimed if instance is None else instance.launched_at or claimed
        ended, reason = _end(launch, instance_id, instance, rank, observed, now)
        lines.append(
            Machine(
                instance_id=instance_id,
                rank=rank if rank is not None or instance is None else instance.rank,
                started_at=started,
                ended_at=max(started, ended),
                end_reason=reason,
            )
        )
    return tuple(lines)


def _end(
    launch: LaunchHistory,
    instance_id: str,
    instance: Instance | None,
    rank: int | None,
    observed: Observed,
    now: datetime,
) -> tuple[datetime, EndReason]:
    exit_record = None if rank is None else own_exit(launch, rank)
    if instance is not None and instance.state is InstanceState.ENDED:
        said = instance.ended_at or (exit_record.at if exit_record else now)
        return said, instance.end_reason or EndReason.UNKNOWN
    if provider_proves_death(instance_id, observed):
        if exit_record:
            return exit_record.at, EndReason.SELF
        absence = timedelta(seconds=observed.absent_seconds.get(instance_id, 0.0))
        return now - absence, EndReason.UNKNOWN
    return now, EndReason.SELF if exit_record else EndReason.TERMINATED
