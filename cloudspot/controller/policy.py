"""Which offer to try next; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cloudspot.controller.actions import Wait
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.history import History
from cloudspot.model import Market, Offer

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
DEADLINE_SLACK_SECONDS = 600.0
DEADLINE_FACTOR = 1.25


@dataclass(frozen=True)
class GiveUp:
    """No offer will ever do, so the job fails."""

    why: str


def choose_offer(
    spec: JobSpec, history: History, offers: Sequence[Offer], now: datetime
) -> Offer | Wait | GiveUp:
    """Return the offer for the next launch, or how long to wait for one.

    The cheapest comes first; among equals, the zone whose last reclaim is longest ago. An offer that
    was just refused for capacity or quota cools down; one that can never work is not tried again.

    ``spot`` waits for spot; when ``spot.max_wait`` is over (since the job last ran, or was submitted or
    resumed), the wait suspends the job. ``spot-then-on-demand`` takes on-demand then, or at once if there is
    no spot offer at all or ``spot.deadline`` is near. ``on-demand`` takes nothing else.
    """
    refused = _refused(history)
    if len(refused) >= MAX_REFUSALS_IN_A_ROW and all(
        one.closed is not None and one.closed.outcome == "refused"
        for one in history.current_launches[-MAX_REFUSALS_IN_A_ROW:]
    ):
        return GiveUp(f"{MAX_REFUSALS_IN_A_ROW} offers in a row were refused: {_last_detail(history)}")
    usable = [offer for offer in offers if offer.key not in refused]
    spot = [offer for offer in usable if offer.market is Market.SPOT]
    on_demand = [offer for offer in usable if offer.market is Market.ON_DEMAND]
    wanted = {"spot": spot, "on-demand": on_demand}.get(spec.spot.policy, usable)
    if not wanted:
        why = f"no offer fits resources under spot.policy {spec.spot.policy!r}"
        return GiveUp(f"every offer was refused: {_last_detail(history)}" if refused else why)
    if spec.spot.policy == "on-demand":
        return _cheapest(on_demand, history, now) or _wait(on_demand, history, now, ())
    return _choose_spot(spec, history, spot, on_demand, now)


def _choose_spot(
    spec: JobSpec, history: History, spot: Sequence[Offer], on_demand: Sequence[Offer], now: datetime
) -> Offer | Wait | GiveUp:
    may_fall_back = spec.spot.policy == "spot-then-on-demand"
    if may_fall_back and deadline_presses(spec, history, now):
        pressed = _cheapest(on_demand, history, now)
        if pressed is not None:
            return pressed
    found = _cheapest(spot, history, now)
    if found is not None:
        return found
    max_wait = spec.spot.max_wait
    if max_wait is None and may_fall_back:
        max_wait = DEFAULT_MAX_WAIT_SECONDS
    over_in = None if max_wait is None else max_wait - (now - waiting_since(history)).total_seconds()
    if over_in is not None and over_in <= 0 and not may_fall_back:
        why = f"no spot capacity within spot.max_wait of {max_wait:g} s"
        return dataclasses.replace(_wait(spot, history, now, ()), suspends=why)
    if may_fall_back and (not spot or (over_in is not None and over_in <= 0)):
        fallback = _cheapest(on_demand, history, now)
        return fallback or _wait((*spot, *on_demand), history, now, ())
    return _wait(spot, history, now, () if over_in is None else (over_in,))


def in_order(spec: JobSpec, offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return the offers that the job's policy allows, in the order in which a new job tries them."""
    markets = {"spot": [Market.SPOT], "on-demand": [Market.ON_DEMAND]}
    allowed = markets.get(spec.spot.policy, [Market.SPOT, Market.ON_DEMAND])
    usable = [offer for offer in offers if offer.market in allowed]
    usable.sort(key=lambda one: (allowed.index(one.market), one.price_per_hour, one.zone, one.instance_type))
    return tuple(usable)


def waiting_since(history: History) -> datetime:
    """Return when the job last ran, or when it was submitted, or resumed, if it has not run since."""
    ran = [one.closed.at for one in history.current_launches if one.closed is not None and one.is_attempt]
    return ran[-1] if ran else history.asked_at


def cool_until(offer: Offer, history: History) -> datetime | None:
    """Return until when the offer is left alone; None: it may be tried now."""
    refusals = 0
    newest = None
    for launch in reversed(history.current_launches):
        if launch.intent.offer.key != offer.key or launch.closed is None:
            continue
        if launch.closed.outcome not in {"capacity", "quota"}:
            break
        refusals += 1
        newest = newest or launch.closed
    if newest is None:
        return None
    growth = 2 ** min(refusals - 1, 16)
    if newest.outcome == "quota":
        return newest.at + timedelta(seconds=min(QUOTA_COOL_SECONDS * growth, MAX_QUOTA_COOL_SECONDS))
    return newest.at + timedelta(seconds=min(CAPACITY_COOL_SECONDS * growth, MAX_CAPACITY_COOL_SECONDS))


def deadline_presses(spec: JobSpec, history: History, now: datetime) -> bool:
    """Return whether the job may miss ``spot.deadline`` if it waits for spot or is reclaimed again.

    If a heartbeat tells the pace, the work left is compared with the time left; otherwise this is so in the
    last quarter of the time.
    """
    if spec.spot.deadline is None:
        return False
    left = spec.spot.deadline - (now - history.asked_at).total_seconds()
    needed = _seconds_to_go(history)
    if needed is None:
        return left < spec.spot.deadline / 4
    return left < DEADLINE_FACTOR * needed + DEADLINE_SLACK_SECONDS


def _seconds_to_go(history: History) -> float | None:
    for launch in reversed(history.current_launches):
        for rank, beat in sorted(launch.heartbeats.items()):
            done = beat.step - beat.restored_step
            if beat.steps_total is None or done <= 0 or rank not in launch.slots:
                continue
            # From the claim on: setup and restore are part of a job's pace when it is reclaimed.
            taken = (beat.at - launch.slots[rank].at).total_seconds()
            return max(0, beat.steps_total - beat.step) * max(taken, 0.0) / done
    return None


def _cheapest(offers: Sequence[Offer], history: History, now: datetime) -> Offer | None:
    last_reclaim = {
        one.intent.offer.zone: one.number
        for one in history.launches
        if one.closed is not None and one.closed.outcome == "reclaimed"
    }
    ready = [offer for offer in offers if (until := cool_until(offer, history)) is None or until <= now]
    return min(
        ready,
        key=lambda one: (one.price_per_hour, last_reclaim.get(one.zone, 0), one.zone, one.instance_type),
        default=None,
    )


def _wait(offers: Sequence[Offer], history: History, now: datetime, also: Iterable[float]) -> Wait:
    cooling = [until for offer in offers if (until := cool_until(offer, history)) is not None]
    seconds = [*also, *((until - now).total_seconds() for until in cooling)]
    return Wait(max(0.0, min(seconds, default=CAPACITY_COOL_SECONDS)), "no offer has capacity now")


def _refused(history: History) -> set[str]:
    return {
        one.intent.offer.key
        for one in history.current_launches
        if one.closed is not None and one.closed.outcome == "refused"
    }


def _last_detail(history: History) -> str:
    closed = [one.closed for one in history.current_launches if one.closed is not None]
    return next((one.detail for one in reversed(closed) if one.outcome == "refused"), "")
