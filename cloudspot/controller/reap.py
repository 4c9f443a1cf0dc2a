"""The reaper, which finds the machines that have to be terminated; pure."""

from __future__ import annotations

from datetime import datetime

from cloudspot.controller.actions import Terminate
from cloudspot.controller.assess.observed import Observed, end_of, stop_of
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import Ending, Seat
from cloudspot.jobstore.nodes.delivering import (
    END_GRACE_SECONDS,
    EXIT_GRACE_SECONDS,
    SILENT_LIMIT_SECONDS,
    SILENT_NEWCOMER_SECONDS,
    STOP_GRACE_SECONDS,
    may_deliver,
)
from cloudspot.jobstore.nodes.keeping import why_to_end
from cloudspot.jobstore.nodes.seats import Seats
from cloudspot.model import Instance, InstanceState


def reapable(history: History, seats: Seats, observed: Observed, now: datetime) -> tuple[Terminate, ...]:
    """Return the machines to terminate, by reason; empty if the listing failed.

    The reasons are: the machine's seat is void or another machine's; its node has written its exit record or
    was excluded, but the machine still runs; its node is silent; it runs too long after a stop, the job's end
    or its time for inspection; or its launch is not in the journal. A notice is not a reason. ``history``
    must be read after the machines were listed: an intent is written before its machines exist, so the launch
    of every listed machine is then known.
    """
    doomed: dict[str, list[str]] = {}
    for instance in observed.instances or ():
        if instance.job_id != history.submission.job_id or instance.state is InstanceState.ENDED:
            continue
        why = _reason_to_end(history, seats, instance, observed, now)
        if why is not None:
            doomed.setdefault(why, []).append(instance.id)
    return tuple(Terminate(tuple(sorted(ids)), why) for why, ids in sorted(doomed.items()))


def _reason_to_end(
    history: History, seats: Seats, instance: Instance, observed: Observed, now: datetime
) -> str | None:
    if not 1 <= instance.launch <= len(history.launches):
        return f"launch {instance.launch} is not in the journal"
    launch = history.launches[instance.launch - 1]
    rank = next((rank for rank, slot in launch.claimed.items() if slot.instance_id == instance.id), None)
    if rank is None:
        return _why_unclaimed(launch, instance)
    seat = Seat(launch.number, rank)
    kept = history.kept
    if kept is not None and kept.instance_id == instance.id:
        return why_to_end(kept, history, now)
    if launch.is_over(rank):
        is_late = not _may_go_by_itself(Ending("over", seat), observed)
        return f"node {seat} has ended its work and still runs" if is_late else None
    if seat in seats.excluded:
        is_late = not _may_go_by_itself(Ending("excluded", seat), observed)
        return f"the training goes on without node {seat}" if is_late else None
    if history.finished is not None:
        waited = observed.ending_seconds.get(end_of(history), 0.0)
        is_late = not _may_deliver(launch, rank, observed, waited, END_GRACE_SECONDS)
        return "the job is over" if is_late else None
    silent = observed.silent_seconds.get(seat, 0.0)
    limit = SILENT_NEWCOMER_SECONDS if seat in seats.newcomers else SILENT_LIMIT_SECONDS
    if not _may_deliver(launch, rank, observed, silent, limit):
        return f"no heartbeat for {limit / 60:g} minutes"
    if history.stop is not None:
        waited = observed.ending_seconds.get(stop_of(history), 0.0)
        if not _may_deliver(launch, rank, observed, waited, STOP_GRACE_SECONDS):
            return f"still running {waited // 60:g} minutes after the stop"
    return None


def _why_unclaimed(launch: LaunchHistory, instance: Instance) -> str | None:
    slot = None if instance.rank is None else launch.slots.get(instance.rank)
    if slot is not None and slot.instance_id is None:
        return f"seat {launch.number}.{instance.rank} is void"
    if not launch.open_ranks:  # a machine whose own seat is taken may claim any open seat
        return f"all seats of launch {launch.number} are void or belong to other machines"
    return None


def _may_deliver(
    launch: LaunchHistory, rank: int, observed: Observed, waited_seconds: float, grace_seconds: float
) -> bool:
    return may_deliver(
        launch.heartbeats.get(rank),
        silent_seconds=observed.silent_seconds.get(Seat(launch.number, rank), 0.0),
        waited_seconds=waited_seconds,
        grace_seconds=grace_seconds,
    )


def _may_go_by_itself(ending: Ending, observed: Observed) -> bool:
    # The heartbeat does not count here, because the node's work is delivered or nobody waits for it.
    waited = observed.ending_seconds.get(ending, 0.0)
    return may_deliver(None, silent_seconds=0.0, waited_seconds=waited, grace_seconds=EXIT_GRACE_SECONDS)
