"""``decide`` turns a job's records and the observations of a controller into actions; pure.

One call takes one step of each kind; the loop then reads the records again and makes the next call. Several
controllers may carry out the actions at once, late, twice or not at all. Late or repeated actions are safe
for two reasons: nothing is bought on a view that another intent has overtaken, and a seat counts as free only
once its void, its node's exit record or the certificate of its machine's end is in the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from cloudspot.controller.actions import (
    UNSIGNED,
    Action,
    Append,
    CleanUp,
    Create,
    FetchOffers,
    OpenLaunch,
    Postpone,
    Release,
    RequestStop,
    VoidSeat,
)
from cloudspot.controller.announcing import announcement
from cloudspot.controller.assess.assessment import Assessment
from cloudspot.controller.assess.observed import Observed
from cloudspot.controller.deaths import certificates, find_instance, provider_proves_death
from cloudspot.controller.reap import reapable
from cloudspot.controller.supply.needs import may_replace, movable, need
from cloudspot.controller.supply.policy import NoOffer, Wish, choose_offer, offer_instead
from cloudspot.controller.supply.refusals import CAPACITY_COOL_SECONDS
from cloudspot.controller.supply.restarts import after_losses
from cloudspot.controller.supply.within_budget import TooDear, already_too_dear, choose_within, count_within
from cloudspot.errors import PluginError, SpecError
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import Finished, Repriced, Seat, Suspended, VoidOutcome
from cloudspot.jobstore.nodes.seats import Seats
from cloudspot.model import EndReason, Instance, InstanceState, Market
from cloudspot.story.inspection import first_waiting, keep
from cloudspot.story.outcomes import JobEnd, end_by_nodes, launched_at

_NEVER_RAN: Mapping[EndReason | None, VoidOutcome] = {
    EndReason.CAPACITY: "capacity",
    EndReason.QUOTA: "quota",
}
"""Refusals that a provider reports by a machine that has ended, rather than as an error of the request."""
MIN_PRICE_CHANGE = 0.01
"""The least price change that is recorded, as a share of the recorded price."""
MARKET_LOOK_SECONDS = 60.0
"""The time after which a driver asks for offers again, in case another market suits the job better."""
BOOT_LIMIT_SECONDS = 20 * 60.0
"""A seat unclaimed after this long is made void, because its machine hangs or will never come."""


def decide(assessed: Assessment, observed: Observed) -> tuple[Action, ...]:
    """Return the actions that are due now, in order; the same arguments give the same actions."""
    history = assessed.history
    tidy: tuple[Action, ...] = (
        *reapable(history, assessed.seats, observed, assessed.now),
        *certificates(history, observed, assessed.now),
        *_voids(history, observed, assessed.now),
    )
    if history.finished is not None and assessed.kept is not None:
        # The kept machine uses resources that would be cleaned up, and still costs money.
        return (*tidy, *_enforce_limits(assessed))
    if history.finished is not None:
        return (*tidy, CleanUp(), *_release(observed))
    step = _step(assessed, observed)
    if any(isinstance(action, OpenLaunch | Append) for action in step):
        return (*tidy, *step)
    limits = _enforce_limits(assessed)
    voided = {action.seat.launch for action in tidy if isinstance(action, VoidSeat)}
    is_ending = bool(limits) or history.stop is not None or history.kept is not None
    creates = () if is_ending else (one for one in _creates(history, observed) if one.launch not in voided)
    prices = _new_prices(history, observed, assessed.now)
    return (*tidy, *limits, *creates, *prices, *announcement(history, observed), *step)


def _release(observed: Observed) -> tuple[Action, ...]:
    """Return the release once all machines have ended, because resources in use cannot be removed."""
    machines = observed.instances
    if machines is None or any(one.state is not InstanceState.ENDED for one in machines):
        return ()
    return (Release(),)


def _enforce_limits(assessed: Assessment) -> tuple[Action, ...]:
    if assessed.history.stop is not None:
        return ()
    reached = assessed.reached
    return () if reached is None else (RequestStop(reached.reason, reached.detail),)


def _new_prices(history: History, observed: Observed, now: datetime) -> tuple[Append, ...]:
    """Return the first price change that is large enough for a record."""
    number = history.num_records + 1
    return tuple(
        Append(number, Repriced(launch=launch.number, price_per_hour=price, at=now, writer=UNSIGNED))
        for launch in history.live_launches
        if (price := observed.prices.get(launch.number)) is not None
        and abs(price - launch.price_per_hour) > MIN_PRICE_CHANGE * launch.price_per_hour
    )[:1]


def _step(assessed: Assessment, observed: Observed) -> tuple[Action, ...]:
    """Return the next record of the journal if one is due, or the reason to wait."""
    spec, history, now, seats = assessed.spec, assessed.history, assessed.now, assessed.seats
    number = history.num_records + 1
    end = end_by_nodes(history)
    if end is not None:
        return (_finish(number, end, now),)
    if history.kept is not None:
        return ()  # The job has failed; its last nodes have yet to end.
    if history.stop is not None or assessed.reached is not None:
        return ()
    needed = need(spec, history, seats, now)
    if needed is None:
        return _market_move(assessed, observed)
    verdict = after_losses(spec, history, now)
    is_needed = len(seats.staying) < spec.nodes.min
    if isinstance(verdict, JobEnd):
        if seats.live:
            return _buys_nothing(verdict.detail) if is_needed else ()
        return (_keep(assessed, verdict) or _finish(number, verdict, now),)
    if isinstance(verdict, Postpone):
        return (verdict,)
    if observed.instances is None:
        # While the provider cannot list its machines, nothing is launched.
        return ()
    budget = assessed.budget
    too_dear = already_too_dear(budget, needed, history)
    if too_dear is not None:
        return _passes_max_cost(too_dear, seats)
    if observed.offers is None:
        return (FetchOffers(),)
    why = verdict.why if needed.why == "lost" else needed.why
    risky = {history.launches[seat.launch - 1].intent.offer.key for seat in needed.stands_in_for}
    offers = [one for one in observed.offers if one.key not in risky]
    wish = _wish(history, seats, why, is_needed=is_needed)
    try:
        offer = choose_within(
            budget,
            needed,
            offers,
            lambda some: choose_offer(spec, history, some, now, wish, observed.knowledge),
        )
    except (PluginError, SpecError) as error:  # raised by the plugin of the job's market policy
        return _buys_nothing(str(error))
    if isinstance(offer, TooDear):
        return _passes_max_cost(offer, seats)
    if isinstance(offer, NoOffer):
        if seats.live:
            return _buys_nothing(offer.why) if is_needed else ()
        return (_finish(number, JobEnd("failed", offer.why, 1), now),)
    if isinstance(offer, Postpone):
        if offer.suspends is not None and history.suspended is None and not seats.live:
            return (Append(number, Suspended(detail=offer.suspends, at=now, writer=UNSIGNED)),)
        return (offer,) if is_needed else ()
    num_nodes = count_within(budget, needed, offer)
    if offer.market is Market.ON_DEMAND and spec.spot.policy == "spot-then-on-demand":
        num_nodes = needed.min_nodes
    return (
        OpenLaunch(
            number=number,
            launch=len(history.launches) + 1,
            offer=offer,
            num_nodes=num_nodes,
            min_nodes=needed.min_nodes,
            stands_in_for=needed.stands_in_for[:num_nodes],
            why=why,
            detail=needed.detail,
        ),
    )


def _market_move(assessed: Assessment, observed: Observed) -> tuple[Action, ...]:
    """Return the launch of stand-ins in another market, if the job's policy prefers that market."""
    spec, history, now, seats = assessed.spec, assessed.history, assessed.now, assessed.seats
    moving = movable(spec, history, seats, now)
    if not moving or observed.instances is None:
        return ()
    if observed.offers is None:
        return (FetchOffers(),) if observed.offers_seconds >= MARKET_LOOK_SECONDS else ()
    held = history.launches[moving[0].launch - 1].intent.offer
    has_others = len(moving) < len(seats.members)
    offers = [
        one
        for one in observed.offers
        if (one.instance_type == held.instance_type or not has_others) and may_replace(spec, held, one)
    ]
    try:
        choice = offer_instead(spec, history, held, offers, now, observed.knowledge)
    except (PluginError, SpecError) as error:  # raised by the plugin of the job's market policy
        return _buys_nothing(str(error))
    budget = assessed.budget
    if choice is None or (budget is not None and not budget.affords(choice[0], len(moving))):
        return ()
    return (
        OpenLaunch(
            number=history.num_records + 1,
            launch=len(history.launches) + 1,
            offer=choice[0],
            num_nodes=len(moving),
            min_nodes=len(moving),
            stands_in_for=moving,
            why="market",
            detail=choice[1],
        ),
    )


def _passes_max_cost(found: TooDear, seats: Seats) -> tuple[Action, ...]:
    """Return the decision to buy nothing more; if no machine is left, the job has reached its limit."""
    if seats.live:
        return _buys_nothing(found.why)
    return (RequestStop("max_cost", f"{found.detail}; {found.why}"),)


def _buys_nothing(why: str) -> tuple[Action, ...]:
    """Return the decision to buy nothing now; if too few nodes are left, they wait and then leave."""
    return (Postpone(CAPACITY_COOL_SECONDS, f"no machine is bought: {why}"),)


def _keep(assessed: Assessment, end: JobEnd) -> Append | None:
    """Return the record that keeps the machine of a node that waits for this, now that the job has failed."""
    history, now = assessed.history, assessed.now
    waiting = first_waiting(history, now)
    if waiting is None:
        return None
    seat = Seat(waiting.launch, waiting.rank)
    kept = keep(assessed.spec, history, seat, detail=end.detail, exit_code=end.exit_code, now=now)
    return None if kept is None else Append(history.num_records + 1, kept)


def _finish(number: int, end: JobEnd, now: datetime) -> Append:
    record = Finished(
        outcome=end.outcome, detail=end.detail, exit_code=end.exit_code, at=now, writer=UNSIGNED
    )
    return Append(number, record)


def _wish(history: History, seats: Seats, why: str, *, is_needed: bool) -> Wish:
    """Return the requirements for the new nodes, which depend on the nodes that they train with."""
    beside = tuple(
        launch.intent.offer
        for launch in history.launches
        if any(Seat(launch.number, rank) in seats.staying for rank in launch.live_ranks)
    )
    return Wish(why=why, beside=beside, is_needed=is_needed)


def _creates(history: History, observed: Observed) -> Iterator[Create]:
    """Yield the launches without a known machine; every controller sends the same request again."""
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
                yield VoidSeat(Seat(launch.number, rank), *doubt, machines, _cause(machines, observed))


def _cause(machines: Sequence[str], observed: Observed) -> str:
    """Return why the machines could not run the agent, by their consoles or their provider."""
    causes = [observed.console_tails[one].cause for one in machines if one in observed.console_tails]
    known = [find_instance(one, observed) for one in machines]
    details = [one.detail for one in known if one is not None and one.end_reason is EndReason.UNSTARTABLE]
    return next(filter(None, [*causes, *details]), "")


def _machines_for(launch: LaunchHistory, rank: int, observed: Observed) -> list[Instance]:
    """Return the known machines that may still claim this open seat."""
    owners = {slot.instance_id for slot in launch.claimed.values()}
    known = [one for one in observed.machines_of(launch) if one.id not in owners]
    return [
        one
        for one in known
        if one.rank in {None, rank} or (one.rank in launch.claimed and one.state is not InstanceState.ENDED)
    ]


def _why_void(
    history: History, launch: LaunchHistory, rank: int, observed: Observed, now: datetime
) -> tuple[VoidOutcome, str] | None:
    """Return (outcome, detail) if the unclaimed seat should be made void, otherwise None.

    A void is always safe, because it either wins the seat or finds the seat claimed. So this function only
    decides how long to wait.
    """
    if history.finished is not None:
        return "voided", "the job is over"
    if history.stop is not None:
        return "voided", f"stop requested ({history.stop.reason})"
    if history.kept is not None:
        return "voided", "the job has failed"
    machines = observed.machines_of(launch)
    failure = observed.create_failures.get(launch.number)
    if failure is not None and not any(one.state.is_up for one in machines):
        return failure.outcome, failure.detail
    if observed.instances is None:
        return None
    age = observed.intent_seconds.get(launch.number, 0.0)
    if not machines and not launch.slots:
        if age >= min(observed.token_seconds, BOOT_LIMIT_SECONDS):
            return "voided", "no machine came within the life of the launch's token"
        return None
    for_seat = _machines_for(launch, rank, observed)
    dead = [one for one in for_seat if provider_proves_death(one.id, observed)]
    given_up = [tail.cause for one in for_seat if (tail := observed.console_tails.get(one.id)) and tail.cause]
    if for_seat and len(given_up) == len(for_seat):
        return "voided", f"{for_seat[0].id} cannot run the agent: {given_up[0]}"
    if for_seat and len(dead) == len(for_seat):
        reason = observed.why_ended(dead[0]) or (dead[0].end_reason.value if dead[0].end_reason else "")
        outcome = _NEVER_RAN.get(dead[0].end_reason, "voided")
        return outcome, f"{dead[0].id} ended before it claimed its seat" + (f" ({reason})" if reason else "")
    if any(_boot_seconds(launch, one, observed, now) >= BOOT_LIMIT_SECONDS for one in for_seat):
        ending = next((tail.line for one in for_seat if (tail := observed.console_tails.get(one.id))), "")
        ending = f"; its console ends with: {ending}" if ending else ""
        return "voided", f"the machine did not come up within {BOOT_LIMIT_SECONDS / 60:g} minutes{ending}"
    if for_seat:
        return None
    others = observed.created.get(launch.number, ())
    if others and len(others) < launch.intent.num_nodes:
        return "capacity", f"only {len(others)} of {launch.intent.num_nodes} machines came"
    # The launch has other machines, but none for this seat: the seat's machine is gone or never came.
    seen = max((observed.known_seconds.get(one.id, 0.0) for one in machines), default=0.0)
    if max(age, seen) >= BOOT_LIMIT_SECONDS or seen >= observed.absence_proves_after_seconds:
        return "capacity", "no machine came for this seat"
    return None


def _boot_seconds(launch: LaunchHistory, instance: Instance, observed: Observed, now: datetime) -> float:
    if instance.state is InstanceState.ENDED:
        return 0.0
    seen = observed.known_seconds.get(instance.id, 0.0)
    launched = launched_at(launch, instance)
    return seen if launched is None else max(seen, (now - launched).total_seconds())
