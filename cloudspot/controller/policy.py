"""Which offer to try next; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cloudspot.controller.actions import Wait
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.jobstore.records import VoidOutcome
from cloudspot.model import Market, Offer
from cloudspot.story.outcomes import end_so_far, void_outcome, was_reclaimed

CAPACITY_COOL_SECONDS = 60.0
"""An offer without capacity is left alone for this long; doubled for each further refusal in a row."""
MAX_CAPACITY_COOL_SECONDS = 900.0
"""An offer without capacity is retried after this long at most."""
QUOTA_COOL_SECONDS = 600.0
"""The same for one refused for quota, since somebody has to raise that."""
MAX_QUOTA_COOL_SECONDS = 3600.0
"""An offer refused for quota is retried after this long at most."""
DEFAULT_MAX_WAIT_SECONDS = 600.0
"""How long ``spot-then-on-demand`` waits for spot if the job sets no ``spot.max_wait``."""
MAX_REFUSALS_IN_A_ROW = 5
"""After this many offers refused one after the other the request is wrong, not the offer."""
OVERLAPPING = frozenset({"notice", "moved", "rebalance"})
"""Why a launch is intended that runs beside the machines that it takes the place of."""
BEFOREHAND = OVERLAPPING | {"growth"}
"""Why one is intended although the job trains without it."""
DEADLINE_SLACK_SECONDS = 600.0
DEADLINE_FACTOR = 1.25


@dataclass(frozen=True)
class GiveUp:
    """No offer will ever do, so the job fails."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What an offer is wanted for."""

    why: str = "first"
    """As in the launch's intent."""
    instance_types: frozenset[str] = frozenset()
    """Only these will do, since the nodes train with others that stay; empty: any."""
    zones: tuple[str, ...] = ()
    """These come first, since the others are there."""
    is_needed: bool = True
    """Whether the job does not train without it: then it may fall back to on-demand, or be suspended."""


def choose_offer(
    spec: JobSpec, history: History, offers: Sequence[Offer], now: datetime, wish: Wish = Wish()
) -> Offer | Wait | GiveUp:
    """Return the offer for the next launch, or how long to wait for one.

    The zone of the nodes that stay comes first, then the cheapest; among equals, the zone whose last reclaim
    is longest ago. An offer that was just refused for capacity or quota cools down; one that can never work
    is not tried again.

    ``spot`` waits for spot; when ``spot.max_wait`` is over (since the job last ran, or was submitted or
    resumed), the wait suspends the job. ``spot-then-on-demand`` takes on-demand then, or at once if there is
    no spot offer at all or ``spot.deadline`` is near. ``on-demand`` takes nothing else.
    """
    refused = _refused(history)
    last = [end_so_far(one) for one in history.current_launches[-MAX_REFUSALS_IN_A_ROW:]]
    if len(refused) >= MAX_REFUSALS_IN_A_ROW and all(end and end.outcome == "refused" for end in last):
        return GiveUp(f"{MAX_REFUSALS_IN_A_ROW} offers in a row were refused: {_last_detail(history)}")
    fitting = [one for one in offers if not wish.instance_types or one.instance_type in wish.instance_types]
    usable = [offer for offer in fitting if offer.key not in refused]
    spot = [offer for offer in usable if offer.market is Market.SPOT]
    on_demand = [offer for offer in usable if offer.market is Market.ON_DEMAND]
    wanted = {"spot": spot, "on-demand": on_demand}.get(spec.spot.policy, usable)
    if not wanted:
        why = f"no offer fits resources under spot.policy {spec.spot.policy!r}"
        return GiveUp(f"every offer was refused: {_last_detail(history)}" if refused else why)
    market = _Market(history, now, wish)
    if spec.spot.policy == "on-demand":
        return market.cheapest(on_demand) or market.wait(on_demand)
    if not wish.is_needed:
        return market.cheapest(spot) or market.wait(spot)
    return _choose_spot(spec, market, spot, on_demand)


def _choose_spot(
    spec: JobSpec, market: _Market, spot: Sequence[Offer], on_demand: Sequence[Offer]
) -> Offer | Wait | GiveUp:
    history, now = market.history, market.now
    may_fall_back = spec.spot.policy == "spot-then-on-demand"
    if may_fall_back and deadline_presses(spec, history, now):
        pressed = market.cheapest(on_demand)
        if pressed is not None:
            return pressed
    found = market.cheapest(spot)
    if found is not None:
        return found
    max_wait = spec.spot.max_wait
    if max_wait is None and may_fall_back:
        max_wait = DEFAULT_MAX_WAIT_SECONDS
    over_in = None if max_wait is None else max_wait - (now - waiting_since(history)).total_seconds()
    if over_in is not None and over_in <= 0 and not may_fall_back:
        why = f"no spot capacity within spot.max_wait of {max_wait:g} s"
        return dataclasses.replace(market.wait(spot), suspends=why)
    if may_fall_back and (not spot or (over_in is not None and over_in <= 0)):
        return market.cheapest(on_demand) or market.wait((*spot, *on_demand))
    return market.wait(spot, () if over_in is None else (over_in,))


def in_order(spec: JobSpec, offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return the offers that the job's policy allows, in the order in which a new job tries them."""
    markets = {"spot": [Market.SPOT], "on-demand": [Market.ON_DEMAND]}
    allowed = markets.get(spec.spot.policy, [Market.SPOT, Market.ON_DEMAND])
    usable = [offer for offer in offers if offer.market in allowed]
    usable.sort(key=lambda one: (allowed.index(one.market), one.price_per_hour, one.zone, one.instance_type))
    return tuple(usable)


def waiting_since(history: History) -> datetime:
    """Return when the job last ran, or when it was submitted, or resumed, if it has not run since."""
    ends = (launch.over_at(rank) for launch in history.current_launches for rank in launch.claimed)
    return max((end for end in ends if end is not None), default=history.asked_at)


def cool_until(offer: Offer, history: History, why: str = "first") -> datetime | None:
    """Return until when the offer is left alone by a launch for this reason; None: it may be tried now.

    A machine that was lost before it trained counts as a refusal if others went on without it meanwhile. A
    quota that has no room for old and new machines at once says nothing of the time after the old ones' end.
    """
    refusals = 0
    newest: tuple[VoidOutcome, datetime] | None = None
    for launch in reversed(history.current_launches):
        if launch.intent.offer.key != offer.key:
            continue
        found = refusal(history, launch)
        if found is None:
            if launch.claimed:
                break
            continue
        if found[0] == "quota" and launch.intent.why in OVERLAPPING and why not in OVERLAPPING:
            continue
        refusals += 1
        newest = newest or found
    if newest is None:
        return None
    growth = 2 ** min(refusals - 1, 16)
    outcome, at = newest
    if outcome == "quota":
        return at + timedelta(seconds=min(QUOTA_COOL_SECONDS * growth, MAX_QUOTA_COOL_SECONDS))
    return at + timedelta(seconds=min(CAPACITY_COOL_SECONDS * growth, MAX_CAPACITY_COOL_SECONDS))


def refusal(history: History, launch: LaunchHistory) -> tuple[VoidOutcome, datetime] | None:
    """Return that the launch got less than it asked for, in quota or capacity, and when; or None."""
    for rank, slot in sorted(launch.slots.items()):
        if slot.instance_id is None:
            outcome, _ = void_outcome(launch)
            if outcome in {"capacity", "quota"}:
                return outcome, launch.slots[rank].at
    is_wasted = launch.intent.why in BEFOREHAND and launch.number not in history.generations_by_launch
    if is_wasted and launch.claimed and launch.ended_at is not None:
        return "capacity", launch.ended_at
    return None


def deadline_presses(spec: JobSpec, history: History, now: datetime) -> bool:
    """Return whether the job may miss ``spot.deadline`` if it waits for spot or is reclaimed again.

    If a heartbeat tells the pace, the work left is compared with the time left; otherwise this is so in the
    last quarter of the time.
    """
    if spec.spot.deadline is None:
        return False
    left = spec.spot.deadline - (now - history.asked_at).total_seconds()
    needed = seconds_to_go(history)
    if needed is None:
        return left < spec.spot.deadline / 4
    return left < DEADLINE_FACTOR * needed + DEADLINE_SLACK_SECONDS


def seconds_to_go(history: History) -> float | None:
    """Return how long the rest of the steps takes at the pace so far, or None if no heartbeat tells it."""
    for launch in reversed(history.current_launches):
        for rank, beat in sorted(launch.heartbeats.items()):
            done = beat.step - beat.restored_step
            if beat.steps_total is None or done <= 0 or rank not in launch.slots:
                continue
            # From the claim on: setup and restore are part of a job's pace when it is reclaimed.
            taken = (beat.at - launch.slots[rank].at).total_seconds()
            return max(0, beat.steps_total - beat.step) * max(taken, 0.0) / done
    return None


@dataclass(frozen=True)
class _Market:
    """The offers as they stand now, for one wish."""

    history: History
    now: datetime
    wish: Wish

    def cheapest(self, offers: Sequence[Offer]) -> Offer | None:
        """Return the best offer that may be tried now, or None."""
        last_reclaim = {
            one.intent.offer.zone: one.number for one in self.history.launches if was_reclaimed(one)
        }
        ready = [one for one in offers if (until := self._cool_until(one)) is None or until <= self.now]
        return min(
            ready,
            key=lambda one: (
                one.zone not in self.wish.zones,
                one.price_per_hour,
                last_reclaim.get(one.zone, 0),
                one.zone,
                one.instance_type,
            ),
            default=None,
        )

    def wait(self, offers: Sequence[Offer], also: Iterable[float] = ()) -> Wait:
        """Return how long to wait until one of the offers may be tried again, or ``also`` has passed."""
        cooling = [until for offer in offers if (until := self._cool_until(offer)) is not None]
        seconds = [*also, *((until - self.now).total_seconds() for until in cooling)]
        return Wait(max(0.0, min(seconds, default=CAPACITY_COOL_SECONDS)), "no offer has capacity now")

    def _cool_until(self, offer: Offer) -> datetime | None:
        return cool_until(offer, self.history, self.wish.why)


def _refused(history: History) -> set[str]:
    ends = ((launch, end_so_far(launch)) for launch in history.current_launches)
    return {launch.intent.offer.key for launch, end in ends if end is not None and end.outcome == "refused"}


def _last_detail(history: History) -> str:
    ends = (end_so_far(launch) for launch in reversed(history.current_launches))
    return next((end.detail for end in ends if end is not None and end.outcome == "refused"), "")
