"""What offers come to once the losses of their machines are counted, by what is known of the market; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from cloudspot.market.hazards import Tally, mean_hours
from cloudspot.market.knowledge import Knowledge, pool
from cloudspot.model import Market, Offer


@dataclass(frozen=True, kw_only=True)
class ExpectedOffer:
    """An offer, and what is expected of its machine."""

    offer: Offer
    hours_until_loss: float
    """How long the provider leaves a new machine to its job, in the mean; ``inf``: for good."""
    effective_price: float
    """Of an hour of training: with the start of another machine, which is paid, after each loss."""
    watched_hours: float
    """For how long jobs have seen the pool, with or without capacity. 0: what is usual is expected."""
    num_losses: float
    """How many they have met there."""

    @property
    def losses_per_day(self) -> float:
        """Return how often the provider takes a machine, in a day in which there is always one."""
        return 24 / self.hours_until_loss

    @property
    def price_share(self) -> float | None:
        """Return the price as a share of the same machine's on demand; None if that costs nothing."""
        offer = self.offer
        price = offer.on_demand_price_per_hour
        return offer.price_per_hour / price if price > 0 else None


def expected_offers(
    offers: Sequence[Offer], knowledge: Knowledge, start_seconds: float
) -> tuple[ExpectedOffer, ...]:
    """Return what is expected of each offer: spot first, and in each market the cheapest after losses."""
    found = [_expected(offer, knowledge, start_seconds / 3600) for offer in offers]
    found.sort(key=lambda one: (one.offer.market is not Market.SPOT, one.effective_price, one.offer.key))
    return tuple(found)


def hours_until_loss(offer: Offer, knowledge: Knowledge) -> float:
    """Return how long the provider leaves a new machine to its job, in the mean; ``inf``: for good."""
    if offer.market is not Market.SPOT:
        return inf
    factor = knowledge.loss_factor(pool(offer.zone, offer.instance_type))
    return float(mean_hours(knowledge.usual.scaled(factor, 1.0).loss).sum())


def _expected(offer: Offer, knowledge: Knowledge, start_hours: float) -> ExpectedOffer:
    hours, tally = hours_until_loss(offer, knowledge), Tally()
    if offer.market is Market.SPOT:
        tally = knowledge.tallies.get(pool(offer.zone, offer.instance_type), Tally())
    return ExpectedOffer(
        offer=offer,
        hours_until_loss=hours,
        effective_price=offer.price_per_hour * (1 + start_hours / hours),
        watched_hours=sum(tally.up_hours) + sum(tally.down_hours),
        num_losses=sum(tally.losses),
    )
