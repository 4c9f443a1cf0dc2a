"""Plan the move of a running job: stand-ins are bought, and take over when they are ready; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from cloudspot.controller.actions import OpenLaunch
from cloudspot.controller.assess.assessment import Assessment
from cloudspot.controller.supply.needs import may_replace, room
from cloudspot.controller.supply.refusals import cool_until
from cloudspot.controller.supply.transfer import price_with_transfer, traffic_of
from cloudspot.errors import CapacityError, CloudspotError
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.nodes.seats import seats_of
from cloudspot.market.knowledge import NOTHING_KNOWN
from cloudspot.model import Market, Offer
from cloudspot.story.states import TERMINAL_STATES, job_state

_ENDS = {"succeeded": "has succeeded", "failed": "has failed", "stopped": "was stopped"}


@dataclass(frozen=True, kw_only=True)
class Target:
    """The target of a move; a field that is None keeps its present value."""

    zone: str | None = None
    instance_type: str | None = None
    market: Market | None = None


def plan_move(
    spec: JobSpec, history: History, offers: Sequence[Offer], now: datetime, target: Target
) -> OpenLaunch:
    """Return the launch that replaces the nodes that do not yet train at the target.

    Raises:
        CapacityError: the fitting offers were refused or lost a short time ago.
        CloudspotError: no node trains, no node has to move, no offer fits, or ``limits.max_cost`` has no
            room for the launch.
    """
    job_id = history.submission.job_id
    assessed = Assessment(spec, history, now)
    seats = assessed.seats
    held = {
        seat: history.launches[seat.launch - 1].intent.offer
        for seat in seats.members
        if seat in seats.staying
    }
    # Once a node is kept for inspection, the job has failed, even if other nodes have yet to end.
    state = job_state(history) if history.kept is None else "failed"
    if state in TERMINAL_STATES or history.stop is not None:
        raise CloudspotError(f"job {job_id} {_ENDS.get(state, 'is about to stop')}: there is nothing to move")
    if seats.named.intersection(seats.members):
        raise CloudspotError(
            f"job {job_id} is already being moved; to follow it, run: cloudspot attach {job_id}"
        )
    if not held:
        raise CloudspotError(f"job {job_id} is not training now ({state}): there is nothing to move yet")
    fitting = [offer for offer in offers if any(_fits(offer, target, old) for old in held.values())]
    if not fitting:
        raise CloudspotError(
            f"there is no offer of {_text(target, held)}; to see all offers, run: cloudspot plan"
        )
    fitting = [offer for offer in fitting if all(may_replace(spec, old, offer) for old in held.values())]
    if not fitting:
        raise CloudspotError(
            f"machines of {_text(target, held)} cannot reach the present machines, which they would replace "
            f"one by one; stop the job with `cloudspot stop {job_id}` and resume it there"
        )
    keys = {offer.key for offer in fitting}
    moving = [seat for seat, offer in held.items() if offer.key not in keys]
    if not moving:
        raise CloudspotError(
            f"all nodes of job {job_id} already run on such machines: {_keys(held.values())}"
        )
    if len({offer.instance_type for offer in fitting} | {offer.instance_type for offer in held.values()}) > 1:
        moving = list(held)  # the nodes of a generation must be of one type
    from_when = [cool_until(offer, history, "moved") or now for offer in fitting]
    ready = [offer for offer, at in zip(fitting, from_when, strict=True) if at <= now]
    if not ready:
        seconds = (min(from_when) - now).total_seconds()
        raise CapacityError(
            f"{_text(target, held)} was refused or lost a short time ago; try again in {seconds:.0f} s"
        )
    if room(spec, seats, stands_in_for=len(moving)) < len(moving):
        raise CloudspotError(
            f"job {job_id} has {len(seats.live)} machines; with {len(moving)} more, it would have more than "
            f"twice nodes.max ({spec.nodes.max}): try again when the machines that are leaving have ended"
        )
    traffic = traffic_of(history)
    offer = min(
        ready,
        key=lambda one: (
            price_with_transfer(one, traffic, NOTHING_KNOWN),
            one.zone,
            one.instance_type,
        ),
    )
    budget = assessed.budget
    if budget is not None and not budget.affords(offer, len(moving)):
        raise CloudspotError(f"{budget.why_not(offer, len(moving))}; {budget.text}")
    return OpenLaunch(
        number=history.num_records + 1,
        launch=len(history.launches) + 1,
        offer=offer,
        num_nodes=len(moving),
        min_nodes=len(moving),
        stands_in_for=tuple(moving),
        why="moved",
        detail=f"from {_keys(held[seat] for seat in moving)}",
    )


def has_moved(history: History, launch: int) -> bool:
    """Return whether nodes of the launch have trained, and the nodes that they replace have stopped."""
    intent, members = history.launches[launch - 1].intent, history.generations[-1].seats
    mine = {Seat(launch, rank) for rank in range(intent.num_nodes)}
    has_begun = any(mine.intersection(one.seats) for one in history.generations)
    return has_begun and not set(members).intersection(intent.stands_in_for)


def is_given_up(history: History, launch: int) -> bool:
    """Return whether some nodes of the launch will never take over, while the others have done so."""
    seats = seats_of(history.launches, history.generations)
    mine = {Seat(launch, rank) for rank in range(history.launches[launch - 1].intent.num_nodes)}
    return not mine <= seats.live and mine & seats.live <= set(seats.members)


def _fits(offer: Offer, target: Target, old: Offer) -> bool:
    return (
        offer.instance_type == (target.instance_type or old.instance_type)
        and offer.market.is_known
        and offer.market == (target.market or old.market)
        and target.zone in {None, offer.zone}
        and (target.zone is not None or target.instance_type is not None or target.market is not None)
    )


def _keys(offers: Iterable[Offer]) -> str:
    return ", ".join(sorted({offer.key for offer in offers}))


def _text(target: Target, there: Mapping[Seat, Offer]) -> str:
    """Return a description of the target, with the present values of the fields that are kept."""
    markets = {target.market} if target.market else {offer.market for offer in there.values()}
    types = (
        {target.instance_type} if target.instance_type else {offer.instance_type for offer in there.values()}
    )
    zone = "" if target.zone is None else f" in zone {target.zone}"
    market = " or ".join(sorted(one.value for one in markets))
    return f"{' or '.join(sorted(types))}{zone} ({market})"
