"""``decide``: from a job's records and what is observed to what has to be done; pure.

One call takes one step of each kind; the loop then reads and calls again. What it returns may be carried
out by several controllers at once, late, twice or not at all. That is safe because nothing is bought on a
view that another intent has overtaken, and because a seat counts as free only once its void, its
node's last word or the proof of its death stands in the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from cloudspot.controller.actions import (
    Action,
    CleanUp,
    Create,
    FetchOffers,
    Finish,
    OpenLaunch,
    Release,
    RequestStop,
    Suspend,
    VoidSeat,
    Wait,
)
from cloudspot.controller.announcing import announcement
from cloudspot.controller.deaths import certificates, provider_proves_death
from cloudspot.controller.observed import Observed
from cloudspot.controller.policy import CAPACITY_COOL_SECONDS, GiveUp, Wish, choose_offer
from cloudspot.controller.reap import reapable
from cloudspot.controller.restarts import judge
from cloudspot.controller.supply import need
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.jobstore.records import Seat, StopReason, VoidOutcome
from cloudspot.jobstore.seats import Seats, seats_of
from cloudspot.model import Instance, InstanceState
from cloudspot.story.ledger import bill, spent_in
from cloudspot.story.outcomes import End, end_by_nodes

_UP = frozenset({InstanceState.PENDING, InstanceState.RUNNING})
BOOT_LIMIT_SECONDS = 20 * 60.0
"""A seat that nobody has claimed after this long is made void: its machine hangs, or will never come."""


def decide(spec: JobSpec, history: History, observed: Observed, now: datetime) -> tuple[Action, ...]:
    """Return what to do now, in order; the same arguments give the same actions."""
    seats = seats_of(history.launches, history.generations)
    tidy: tuple[Action, ...] = (
        *reapable(history, seats, observed),
        *certificates(history, observed, now),
        *_voids(history, observed, now),
    )
    if history.finished is not None:
        return (*tidy, CleanUp(), *_release(observed))
    step = _step(spec, history, seats, observed, now)
    if any(isinstance(action, OpenLaunch | Finish | Suspend) for action in step):
        return (*tidy, *step)
    limits = _enforce_limits(spec, history, observed, now)
    return (*tidy, *limits, *_creates(history, observed), *announcement(history, observed), *step)


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


def _step(
    spec: JobSpec, history: History, seats: Seats, observed: Observed, now: datetime
) -> tuple[Action, ...]:
    """Return the next record of the journal, if one is due, or what it waits for."""
    number = history.num_records + 1
    end = end_by_nodes(history)
    if end is not None:
        return (_finish(number, end),)
    if history.stop is not None:
        return ()
    lacks = need(spec, history, seats, now)
    if lacks is None or exceeded_limit(spec, history, now, instances=observed.instances or ()) is not None:
        return ()
    verdict = judge(spec, history, now)
    is_needed = len(seats.staying) < spec.nodes.min
    if isinstance(verdict, End):
        return (
            _buys_nothing(verdict.detail, is_needed=is_needed) if seats.live else (_finish(number, verdict),)
        )
    if isinstance(verdict, Wait):
        return (verdict,)
    if observed.instances is None:
        # No launch on a provider that cannot list what it runs.
        return ()
    if observed.offers is None:
        return (FetchOffers(),)
    why = verdict.why if lacks.why == "lost" else lacks.why
    risky = {history.launches[seat.launch - 1].intent.offer.key for seat in lacks.stands_in_for}
    offers = [one for one in observed.offers if one.key not in risky]
    offer = choose_offer(spec, history, offers, now, _wish(history, seats, why, is_needed=is_needed))
    if isinstance(offer, GiveUp):
        if seats.live:
            return _buys_nothing(offer.why, is_needed=is_needed)
        return (Finish(number, "failed", offer.why, 1),)
    if isinstance(offer, Wait):
        if offer.suspends is not None and history.suspended is None and not seats.live:
            return (Suspend(number, offer.suspends),)
        return (offer,) if is_needed else ()
    return (
        OpenLaunch(
            number=number,
            launch=len(history.launches) + 1,
            offer=offer,
            num_nodes=lacks.num_nodes,
            min_nodes=lacks.min_nodes,
            stands_in_for=lacks.stands_in_for,
            why=why,
            detail=lacks.detail,
        ),
    )


def _buys_nothing(why: str, *, is_needed: bool) -> tuple[Action, ...]:
    """Return that those who are left wait in vain: they hold for a while, and then leave."""
    return (Wait(CAPACITY_COOL_SECONDS, f"no machine is bought: {why}"),) if is_needed else ()


def _finish(number: int, end: End) -> Finish:
    return Finish(number, end.outcome, end.detail, end.exit_code)


def _wish(history: History, seats: Seats, why: str, *, is_needed: bool) -> Wish:
    """Return what the new nodes have to be like: those with whom they train have one machine type."""
    offers = [
        launch.intent.offer
        for launch in history.launches
        if any(Seat(launch.number, rank) in seats.staying for rank in launch.live_ranks)
    ]
    return Wish(
        why=why,
        instance_types=frozenset(offer.instance_type for offer in offers),
        zones=tuple(dict.fromkeys(offer.zone for offer in offers)),
        is_needed=is_needed,
    )


def _creates(history: History, observed: Observed) -> Iterator[Create]:
    """Yield the launches of which no machine shows yet; every controller sends the same bytes again."""
    for launch in history.live_launches:
        has_come = launch.slots or observed.machines_of(launch) or launch.number in observed.create_failures
        if observed.instances is not None and not has_come:
            yield Create(launch.number)


def _voids(history: History, observed: Observed, now: datetime) -> Iterator[VoidSeat]:
    for launch in history.live_launches:
        for rank in launch.open_ranks:
            doubt = _why_void(history, launch, rank, observed, now)
            if doubt is not None:
                machines = tuple(sorted(one.id for one in _machines_for(launch, rank, observed)))
                yield VoidSeat(Seat(launch.number, rank), *doubt, machines)


def _machines_for(launch: LaunchHistory, rank: int, observed: Observed) -> list[Instance]:
    """Return the known machines that may claim a seat that is open."""
    owners = {slot.instance_id for slot in launch.claimed.values()}
    known = observed.machines_of(launch)
    return [one for one in known if one.id not in owners and one.rank in {None, rank}]


def _why_void(
    history: History, launch: LaunchHistory, rank: int, observed: Observed, now: datetime
) -> tuple[VoidOutcome, str] | None:
    """Return (outcome, detail) if the seat, which nobody has claimed, had better stay empty.

    A void is always safe: it either wins the seat or finds it claimed. So all this is only about patience.
    """
    if history.finished is not None:
        return "voided", "the job is over"
    if history.stop is not None:
        return "voided", f"stop requested ({history.stop.reason})"
    known = observed.machines_of(launch)
    failure = observed.create_failures.get(launch.number)
    if failure is not None and not any(one.state in _UP for one in known):
        return failure.outcome, failure.detail
    if observed.instances is None:
        return None
    age = observed.intent_seconds.get(launch.number, 0.0)
    if not known and not launch.slots:
        if age >= min(observed.token_seconds, BOOT_LIMIT_SECONDS):
            return "voided", "no machine came within the life of the launch's token"
        return None
    mine = _machines_for(launch, rank, observed)
    dead = [one for one in mine if provider_proves_death(one.id, observed)]
    if mine and len(dead) == len(mine):
        reason = f" ({dead[0].end_reason.value})" if dead[0].end_reason else ""
        return "voided", f"{dead[0].id} ended before it claimed its seat{reason}"
    if any(_boot_seconds(one, observed, now) >= BOOT_LIMIT_SECONDS for one in mine):
        return "voided", f"the machine did not come up within {BOOT_LIMIT_SECONDS / 60:g} minutes"
    if mine:
        return None
    others = observed.created.get(launch.number, ())
    if others and len(others) < launch.intent.num_nodes:
        return "capacity", f"only {len(others)} of {launch.intent.num_nodes} machines came"
    # Other machines of the launch are there, and none for this seat: it is gone, or it never came.
    seen = max((observed.known_seconds.get(one.id, 0.0) for one in known), default=0.0)
    if max(age, seen) >= BOOT_LIMIT_SECONDS or seen >= observed.absence_proves_after_seconds:
        return "capacity", "no machine came for this seat"
    return None


def _boot_seconds(instance: Instance, observed: Observed, now: datetime) -> float:
    if instance.state is InstanceState.ENDED:
        return 0.0
    seen = observed.known_seconds.get(instance.id, 0.0)
    return seen if instance.launched_at is None else max(seen, (now - instance.launched_at).total_seconds())
