"""The reaper: which machines have no business to run any more; pure."""

from __future__ import annotations

from cloudspot.controller.actions import Terminate
from cloudspot.controller.observed import Observed
from cloudspot.jobstore.delivering import CLOSED_GRACE_SECONDS, EXIT_GRACE_SECONDS, may_deliver
from cloudspot.jobstore.history import History
from cloudspot.jobstore.records import Ending
from cloudspot.model import Instance, InstanceState
from cloudspot.story.outcomes import own_exit


def reapable(history: History, observed: Observed) -> tuple[Terminate, ...]:
    """Return what to terminate, by reason; nothing where the listing failed.

    It ends the machines of closed launches (a finished job has no others), those whose rank belongs to
    another machine or is void, those that have said their last word and do not go, and those that
    belong to no launch of the journal. ``history`` must have been read after the machines were
    listed: an intent is written before its machines exist, so no launch of theirs can be missing.
    """
    doomed: dict[str, list[str]] = {}
    for instance in observed.instances or ():
        if instance.job_id != history.submission.job_id or instance.state is InstanceState.ENDED:
            continue
        why = _why(history, instance, observed)
        if why is not None:
            doomed.setdefault(why, []).append(instance.id)
    return tuple(Terminate(tuple(sorted(ids)), why) for why, ids in sorted(doomed.items()))


def _why(history: History, instance: Instance, observed: Observed) -> str | None:
    if not 1 <= instance.launch <= len(history.launches):
        return f"launch {instance.launch} is not in the journal"
    launch = history.launches[instance.launch - 1]
    rank = next((rank for rank, slot in launch.slots.items() if slot.instance_id == instance.id), None)
    if launch.closed is not None:
        has_trained = launch.is_attempt and rank is not None
        if has_trained and _may_go_by_itself(Ending(launch.number), observed, CLOSED_GRACE_SECONDS):
            return None
        return f"launch {launch.number} is closed"
    if rank is not None:
        ending = Ending(launch.number, rank)
        if own_exit(launch, rank) is None or _may_go_by_itself(ending, observed, EXIT_GRACE_SECONDS):
            return None
        return f"node {rank} of launch {launch.number} has ended its work and still runs"
    if launch.is_attempt:
        return f"all ranks of launch {launch.number} belong to other machines"
    if instance.rank is not None and instance.rank in launch.slots:
        is_void = launch.slots[instance.rank].instance_id is None
        return f"rank {instance.rank} of launch {launch.number} is {'void' if is_void else 'taken'}"
    return None


def _may_go_by_itself(ending: Ending, observed: Observed, grace_seconds: float) -> bool:
    # Its heartbeat says nothing any more: it has said its last word, or its launch is closed.
    waited = observed.ending_seconds.get(ending, 0.0)
    return may_deliver(None, silent_seconds=0.0, waited_seconds=waited, grace_seconds=grace_seconds)
