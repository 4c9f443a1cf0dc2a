"""The effective prices of offers, with the expected losses of their machines; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from cloudspot.market.hazards import Tally, mean_hours
from cloudspot.market.knowledge import Knowledge, pool
from cloudspot.model import Market, Offer


@dataclass(frozen=True, kw_only=True)
class ExpectedOffer:
    """An offer, with the expected lifetime and the effective price of its machine."""

    offer: Offer
    hours_until_loss: float
    """The mean time until the provider takes a new machine; ``inf`` if the provider never does."""
    effective_price: float
    """The price of an hour of training, which includes the paid start of another machine after each loss."""
    watched_hours: float
    """The time for which jobs have observed the pool, with or without capacity; if 0, the usual losses are
    expected.
    """
    num_losses: float
    """The number of losses that jobs have met in the pool."""

    @property
    def losses_per_day(self) -> float:
        """The expected losses in a day in which a machine always runs."""
        return 24 / self.hours_until_loss

    @property
    def price_share(self) -> float | None:
        """The price as a share of the on-demand price; None if the on-demand price is 0."""
        offer = self.offer
        price = offer.on_demand_price_per_hour
        return offer.price_per_hour / price if price > 0 else None


def expected_offers(
    offers: Sequence[Offer], knowledge: Knowledge, start_seconds: float
) -> tuple[ExpectedOffer, ...]:
    """Return the offers with their expectations, spot first, and by effective price in each market."""
    found = [_expected(offer, knowledge, start_seconds / 3600) for offer in offers]
    found.sort(key=lambda one: (one.offer.market is not Market.SPOT, one.effective_price, one.offer.key))
    return tuple(found)


def hours_until_loss(offer: Offer, knowledge: Knowledge) -> float:
    """Return the mean hours until the provider takes a new machine; ``inf`` if the provider never does."""
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
