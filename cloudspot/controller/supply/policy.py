"""Choose the offer to try next, and decide when running machines are to move to another offer; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from operator import attrgetter

from cloudspot.controller.actions import Postpone
from cloudspot.controller.supply.refusals import (
    CAPACITY_COOL_SECONDS,
    cool_until,
    cooling,
    newest_refusal,
    refused_offers,
    waiting_since,
)
from cloudspot.controller.supply.spot_market import DEFAULT_MAX_WAIT_SECONDS, policy_of, situation
from cloudspot.controller.supply.transfer import price_with_transfer, traffic_of
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.journal.history import History
from cloudspot.market.knowledge import NOTHING_KNOWN, Knowledge
from cloudspot.market.situation import ON_DEMAND
from cloudspot.model import Market, Offer
from cloudspot.story.outcomes import end_so_far

MAX_REFUSALS_IN_A_ROW = 5
"""After this many refused offers in a row, the request is considered wrong, not the offers."""


@dataclass(frozen=True)
class NoOffer:
    """No offer will ever fit, so the job fails."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The purpose of a launch for which an offer is chosen."""

    why: str = "first"
    """The reason in the launch's intent."""
    beside: tuple[Offer, ...] = ()
    """The offers of the nodes that stay. The new offer must have one of these offers' machine types and reach
    their machines; their zones are preferred.
    """
    is_needed: bool = True
    """Whether the job cannot train without the launch, so it may fall back to on-demand or be suspended."""

    @property
    def zones(self) -> frozenset[str]:
        """The zones of the nodes that stay."""
        return frozenset(one.zone for one in self.beside)

    def fits(self, offer: Offer) -> bool:
        """Return whether machines of the offer could train together with the nodes that stay."""
        types = {one.instance_type for one in self.beside}
        return (not types or offer.instance_type in types) and all(map(offer.reaches, self.beside))


def choose_offer(
    spec: JobSpec,
    history: History,
    offers: Sequence[Offer],
    now: datetime,
    wish: Wish = Wish(),
    knowledge: Knowledge = NOTHING_KNOWN,
) -> Offer | Postpone | NoOffer:
    """Return the offer for the next launch, or how long to wait for an offer.

    The job's market policy makes the choice. The zones of the nodes that stay are preferred. An offer that
    was just refused for capacity or quota cools down; an offer that can never work is not tried again. With
    the policy ``spot``, the job is suspended when it has waited for ``spot.max_wait``. With other policies,
    on-demand is chosen at once if there is no spot offer at all.
    """
    refused = refused_offers(history)
    last = [end_so_far(one) for one in history.current_launches[-MAX_REFUSALS_IN_A_ROW:]]
    if len(refused) >= MAX_REFUSALS_IN_A_ROW and all(end and end.outcome == "refused" for end in last):
        return NoOffer(f"{MAX_REFUSALS_IN_A_ROW} offers in a row were refused: {newest_refusal(history)}")
    fitting = filter(wish.fits, offers)
    hourly = _hourly(history, knowledge)
    usable = [offer for offer in in_order(spec, fitting, hourly) if offer.key not in refused]
    if not usable:
        why = f"no offer fits resources under spot.policy {spec.spot.policy!r}"
        return NoOffer(f"every offer was refused: {newest_refusal(history)}" if refused else why)
    stall = _Stall(history, now, wish)
    spot = [one for one in usable if one.market is Market.SPOT]
    on_demand = [one for one in usable if one.market is Market.ON_DEMAND]
    if not wish.is_needed and spec.spot.policy != "on-demand":
        on_demand = []
    if not spot:
        return stall.first(on_demand) or stall.wait(usable)
    near = [one for one in spot if one.zone in wish.zones and stall.is_ready(one)]
    asked = near or spot
    choice = int(
        policy_of(spec.spot, knowledge).choose(
            situation(
                spec,
                history,
                asked,
                now,
                hourly=hourly,
                on_demand_price=_on_demand_price(usable, hourly),
                knowledge=knowledge,
                why=wish.why,
            )
        )[0]
    )
    if choice >= 0:
        return asked[choice]
    if choice == ON_DEMAND and on_demand:
        return stall.first(on_demand) or stall.wait(usable)
    return _wait(spec, stall, spot, wish)


def _wait(spec: JobSpec, stall: _Stall, spot: Sequence[Offer], wish: Wish) -> Postpone:
    """Return how long to wait for spot, and whether the job is suspended meanwhile."""
    over_in = _wait_left(spec, stall)
    if spec.spot.policy == "spot" and over_in is not None and over_in <= 0 and wish.is_needed:
        why = f"no spot capacity within spot.max_wait of {spec.spot.max_wait:g} s"
        return dataclasses.replace(stall.wait(spot), suspends=why)
    return stall.wait(spot, () if over_in is None or over_in <= 0 else (over_in,))


def offer_instead(
    spec: JobSpec,
    history: History,
    held: Offer,
    offers: Sequence[Offer],
    now: datetime,
    knowledge: Knowledge = NOTHING_KNOWN,
) -> tuple[Offer, str] | None:
    """Return the offer to which training nodes should move, and the reason; None if they should stay."""
    refused = refused_offers(history)
    hourly = _hourly(history, knowledge)
    usable = [one for one in in_order(spec, offers, hourly) if one.key not in refused]
    spot = [one for one in usable if one.market is Market.SPOT]
    is_spot = held.market is Market.SPOT
    if is_spot and held not in spot:
        spot.append(held)
    if not spot:
        return None
    seen = situation(
        spec,
        history,
        spot,
        now,
        held=spot.index(held) if is_spot else ON_DEMAND,
        hourly=hourly,
        on_demand_price=_on_demand_price(usable, hourly),
        knowledge=knowledge,
        why="market",
    )
    choice = int(policy_of(spec.spot, knowledge).choose(seen)[0])
    if choice == ON_DEMAND and is_spot:
        stall = _Stall(history, now, Wish(why="market"))
        found = stall.first([one for one in usable if one.market is Market.ON_DEMAND])
        left, work = seen.hours_left, float(seen.work_left[0])
        why = f"{work:.1f} h of training are left, and {left:.1f} h to the deadline"
        return None if found is None else (found, why if isfinite(left) else f"{spec.spot.policy} wants it")
    if choice >= 0 and not is_spot:
        offer = spot[choice]
        why = f"{hourly(offer):g} instead of {hourly(held):g} {offer.currency} an hour"
        return offer, why
    return None


def in_order(
    spec: JobSpec, offers: Iterable[Offer], hourly: Callable[[Offer], float] = attrgetter("price_per_hour")
) -> tuple[Offer, ...]:
    """Return the offers that the job's policy allows, in the order in which a new job tries them.

    ``hourly`` returns the cost of a node-hour, by default the price alone.
    """
    markets = {"spot": [Market.SPOT], "on-demand": [Market.ON_DEMAND]}
    allowed = markets.get(spec.spot.policy, [Market.SPOT, Market.ON_DEMAND])
    usable = [offer for offer in offers if offer.market in allowed]
    usable.sort(key=lambda one: (allowed.index(one.market), hourly(one), one.zone, one.instance_type))
    return tuple(usable)


def _wait_left(spec: JobSpec, stall: _Stall) -> float | None:
    """Return how many seconds of the wait for spot are left, or None if the wait has no end."""
    max_wait = spec.spot.max_wait
    if max_wait is None and spec.spot.policy == "spot-then-on-demand":
        max_wait = DEFAULT_MAX_WAIT_SECONDS
    if max_wait is None or spec.spot.policy == "deadline":
        return None
    return max_wait - (stall.now - waiting_since(stall.history)).total_seconds()


def _hourly(history: History, knowledge: Knowledge) -> Callable[[Offer], float]:
    """Return the function that returns an offer's cost of a node-hour, including transfer."""
    traffic = traffic_of(history)
    return lambda offer: price_with_transfer(offer, traffic, knowledge)


def _on_demand_price(offers: Sequence[Offer], hourly: Callable[[Offer], float]) -> float:
    """Return the least on-demand cost, as a share of which other prices are expressed."""
    found = [hourly(one) for one in offers if one.market is Market.ON_DEMAND]
    return min(found or [one.on_demand_price_per_hour for one in offers], default=0.0) or 1.0


@dataclass(frozen=True)
class _Stall:
    """Whether and when offers may be tried, for one launch."""

    history: History
    now: datetime
    wish: Wish

    def is_ready(self, offer: Offer) -> bool:
        """Return whether the offer may be tried now."""
        until = cool_until(offer, self.history, self.wish.why)
        return until is None or until <= self.now

    def first(self, offers: Sequence[Offer]) -> Offer | None:
        """Return the first offer that may be tried now, if possible in a zone of the nodes that stay."""
        ready = [one for one in offers if self.is_ready(one)]
        return min(ready, key=lambda one: one.zone not in self.wish.zones, default=None)

    def wait(self, offers: Sequence[Offer], also: Iterable[float] = ()) -> Postpone:
        """Return how long to wait until one of the offers may be retried or a time in ``also`` has passed."""
        refused = [
            found for one in offers if (found := cooling(one, self.history, self.wish.why)) is not None
        ]
        left = ((until - self.now).total_seconds() for _, until in refused)
        seconds = [*also, *(one for one in left if one > 0)]
        is_quota = bool(refused) and all(outcome == "quota" for outcome, _ in refused)
        why = "a quota is reached" if is_quota else "no offer has capacity now"
        return Postpone(min(seconds, default=CAPACITY_COOL_SECONDS), why)
