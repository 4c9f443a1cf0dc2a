"""``decide``: from a job's records and what is observed to what has to be done; pure.

One call takes one step of each kind; the loop then reads and calls again. What it returns may be carried
out by several controllers at once, late, twice or not at all. That is safe because a launch is closed only
after its void stands or its death is proven, and because journal records and slots are create-only.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cloudspot.controller.actions import (
    Action,
    CleanUp,
    CloseLaunch,
    Create,
    FetchOffers,
    Finish,
    OpenLaunch,
    Release,
    RequestStop,
    Suspend,
    Terminate,
    VoidSlot,
    Wait,
)
from cloudspot.controller.announcing import announcement
from cloudspot.controller.attempt import (
    attempt_outcome,
    bill_lines,
    dead_seconds,
    is_dead,
    machines_of,
    provider_proves_death,
    void_outcome,
)
from cloudspot.controller.observed import Observed, stop_of
from cloudspot.controller.policy import GiveUp, choose_offer
from cloudspot.controller.reap import reapable
from cloudspot.controller.restarts import judge
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.delivering import (
    SILENT_LIMIT_SECONDS,
    STOP_GRACE_SECONDS,
    SURVIVOR_GRACE_SECONDS,
    may_deliver,
)
from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.jobstore.records import LaunchOutcome, StopReason, VoidOutcome
from cloudspot.model import Instance, InstanceState
from cloudspot.story.ledger import bill, spent_in
from cloudspot.story.outcomes import End, succeeded

BOOT_LIMIT_SECONDS = 20 * 60.0
"""A machine that has not claimed its rank after this long hangs, and its launch is made void."""


def decide(spec: JobSpec, history: History, observed: Observed, now: datetime) -> tuple[Action, ...]:
    """Return what to do now, in order; the same arguments give the same actions."""
    reap = reapable(history, observed)
    if history.finished is not None:
        return (*reap, CleanUp(), *_release(observed))
    launch = history.open_launch
    step = (
        _next_launch(spec, history, observed, now)
        if launch is None
        else _advance(spec, history, launch, observed, now)
    )
    if any(isinstance(action, CloseLaunch | Finish | Suspend) for action in step):
        return (*reap, *step)
    is_given_up = any(isinstance(action, VoidSlot) for action in step)
    told = () if launch is None or is_given_up else announcement(launch, observed)
    return (*reap, *_enforce_limits(spec, history, observed, now), *step, *told)


def _release(observed: Observed) -> tuple[Action, ...]:
    """Return what is left to do when nothing runs any more: what a machine still uses cannot be removed."""
    machines = observed.instances
    if machines is None or any(one.state is not InstanceState.ENDED for one in machines):
        return ()
    return (Release(),)


def exceeded_limit(
    spec: JobSpec, history: History, now: datetime, *, instances: Sequence[Instance] = ()
) -> StopReason | None:
    """Return the limit that the job has reached (``max_cost`` or ``max_runtime``), or None."""
    ledger = bill(history, now, instances=instances)
    limits = spec.limits
    if limits.max_cost is not None and spent_in(ledger, limits.currency) >= limits.max_cost:
        return "max_cost"
    if limits.max_runtime is not None and ledger.run_seconds >= limits.max_runtime:
        return "max_runtime"
    return None


def _enforce_limits(spec: JobSpec, history: History, observed: Observed, now: datetime) -> tuple[Action, ...]:
    if history.stop is not None:
        return ()
    reason = exceeded_limit(spec, history, now, instances=observed.instances or ())
    return () if reason is None else (RequestStop(reason),)


def _next_launch(spec: JobSpec, history: History, observed: Observed, now: datetime) -> tuple[Action, ...]:
    number = history.num_records + 1
    verdict = judge(spec, history, now)
    if isinstance(verdict, End):
        return (Finish(number, verdict.outcome, verdict.detail, verdict.exit_code),)
    if isinstance(verdict, Wait):
        return (verdict,)
    if history.stop is None:
        instances = observed.instances or ()
        if exceeded_limit(spec, history, now, instances=instances) is not None:
            return ()
    if observed.instances is None:
        # No launch on a provider that cannot list what it runs.
        return ()
    if observed.offers is None:
        return (FetchOffers(),)
    offer = choose_offer(spec, history, observed.offers, now)
    if isinstance(offer, Wait) and offer.suspends is not None and history.suspended is None:
        return (Suspend(number, offer.suspends),)
    if isinstance(offer, Wait):
        return (offer,)
    if isinstance(offer, GiveUp):
        return (Finish(number, "failed", offer.why, 1),)
    return (OpenLaunch(number, len(history.launches) + 1, offer, verdict.why),)


def _advance(
    spec: JobSpec, history: History, launch: LaunchHistory, observed: Observed, now: datetime
) -> tuple[Action, ...]:
    if launch.is_void:
        outcome, detail = void_outcome(launch)
        return _close(history, launch, outcome, detail, observed, now)
    if launch.is_attempt:
        return _watch_attempt(spec, history, launch, observed, now)
    doubt = _why_void(history, launch, observed, now)
    if doubt is not None:
        rank = next(rank for rank in range(launch.intent.num_nodes) if rank not in launch.slots)
        return (VoidSlot(launch.number, rank, *doubt),)
    if observed.instances is not None and not launch.slots and not _known(launch, observed):
        return (Create(launch.number),)
    return ()


def _known(launch: LaunchHistory, observed: Observed) -> tuple[Instance, ...]:
    """Return the launch's machines that are listed, or that our own ``create`` has returned."""
    listed = machines_of(launch, observed)
    ids = {one.id for one in listed}
    return (*listed, *(one for one in observed.created if one.launch == launch.number and one.id not in ids))


def _why_void(
    history: History, launch: LaunchHistory, observed: Observed, now: datetime
) -> tuple[VoidOutcome, str] | None:
    """Return (outcome, detail) if the launch, which is no attempt yet, had better never become one.

    A void is always safe: it either wins the slot or finds it claimed. So all this is only about patience.
    """
    if history.stop is not None:
        return "voided", f"stop requested ({history.stop.reason})"
    failure = observed.create_failure
    if failure is not None and failure.launch == launch.number:
        return failure.outcome, failure.detail
    if observed.instances is None:
        return None
    known = _known(launch, observed)
    for rank, slot in sorted(launch.slots.items()):
        if is_dead(launch, rank, observed):
            return (
                "voided",
                f"node {rank} ({slot.instance_id}) ended before the others had claimed their ranks",
            )
    owners = {slot.instance_id for slot in launch.slots.values()}
    waiting = [one for one in known if one.id not in owners]
    dead = [one for one in waiting if provider_proves_death(one.id, observed)]
    if dead and len(waiting) - len(dead) < launch.intent.num_nodes - len(launch.slots):
        reason = f" ({dead[0].end_reason.value})" if dead[0].end_reason else ""
        return "voided", f"{dead[0].id} ended before it claimed its rank{reason}"
    if any(_boot_seconds(one, observed, now) >= BOOT_LIMIT_SECONDS for one in known):
        return "voided", f"not all machines came up within {BOOT_LIMIT_SECONDS / 60:g} minutes"
    if not known and not launch.slots and observed.token_age_seconds >= observed.token_seconds:
        return "voided", "no machine came within the life of the launch's token"
    return None


def _boot_seconds(instance: Instance, observed: Observed, now: datetime) -> float:
    if instance.state is InstanceState.ENDED:
        return 0.0
    seen = observed.known_seconds.get(instance.id, 0.0)
    return seen if instance.launched_at is None else max(seen, (now - instance.launched_at).total_seconds())


def _watch_attempt(
    spec: JobSpec, history: History, launch: LaunchHistory, observed: Observed, now: datetime
) -> tuple[Action, ...]:
    dead = [rank for rank in sorted(launch.slots) if is_dead(launch, rank, observed)]
    alive = [rank for rank in sorted(launch.slots) if rank not in dead]
    done = succeeded(history, launch)
    if done or len(alive) < spec.nodes.min:
        # The survivors hold parts of a checkpoint: let them commit and write their exit records.
        waited = min((dead_seconds(launch, rank, observed) for rank in dead), default=0.0)
        if not done and any(
            _may_deliver(launch, rank, observed, waited, SURVIVOR_GRACE_SECONDS) for rank in alive
        ):
            return ()
        return _close(history, launch, *attempt_outcome(history, launch, observed), observed, now)
    if history.stop is not None:
        waited = observed.ending_seconds.get(stop_of(history), 0.0)
        late = [r for r in alive if not _may_deliver(launch, r, observed, waited, STOP_GRACE_SECONDS)]
        if late:
            return _terminate(launch, late, f"still running {waited // 60:g} minutes after the stop")
    silences = {rank: observed.silent_seconds.get((launch.number, rank), 0.0) for rank in alive}
    silent = [
        rank
        for rank, seconds in silences.items()
        if not _may_deliver(launch, rank, observed, seconds, SILENT_LIMIT_SECONDS)
    ]
    return _terminate(launch, silent, f"no heartbeat for {SILENT_LIMIT_SECONDS / 60:g} minutes")


def _may_deliver(
    launch: LaunchHistory, rank: int, observed: Observed, waited_seconds: float, grace_seconds: float
) -> bool:
    return may_deliver(
        launch.heartbeats.get(rank),
        silent_seconds=observed.silent_seconds.get((launch.number, rank), 0.0),
        waited_seconds=waited_seconds,
        grace_seconds=grace_seconds,
    )


def _terminate(launch: LaunchHistory, ranks: list[int], why: str) -> tuple[Action, ...]:
    ids = tuple(slot_id for rank in ranks if (slot_id := launch.slots[rank].instance_id) is not None)
    return (Terminate(ids, why),) if ids else ()


def _close(
    history: History,
    launch: LaunchHistory,
    outcome: LaunchOutcome,
    detail: str,
    observed: Observed,
    now: datetime,
) -> tuple[Action, ...]:
    if observed.instances is None:
        # The bill needs the listing, and whatever follows needs the provider.
        return ()
    machines = bill_lines(launch, observed, now)
    return (CloseLaunch(history.num_records + 1, launch.number, outcome, detail, machines),)
