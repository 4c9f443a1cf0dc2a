"""Forecast the cost and the end of a new job, by its market policy and the known hazards; pure.

The ranges show the effect of chance, provided that the hazards and the length are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from cloudspot.controller.supply.expected_losses import expected_offers
from cloudspot.controller.supply.spot_market import policy_of
from cloudspot.jobfile.spec import JobSpec
from cloudspot.market.forecast import Ranges, Zone, play
from cloudspot.market.knowledge import Knowledge, pool
from cloudspot.model import Market, Offer

MAX_POOLS: Final = 4
"""The number of pools in the simulated market, the cheapest after losses; more would change little."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast of a job that is submitted now; ranges go from the 10th to the 90th percentile."""

    cost: tuple[float, float]
    """The cost of all nodes; ``inf`` if the run at this percentile was given up while it waited for spot."""
    on_demand_cost: float
    """The cost of all nodes on demand."""
    currency: str
    end_hours: tuple[float, float]
    """Hours from the submission to the end; ``inf`` as in ``cost``."""
    on_demand_hours: float
    """The mean number of hours on on-demand machines."""
    num_losses: float
    """The mean number of losses."""
    late_share: float
    """The probability that the job misses ``spot.deadline``."""


def forecast(
    spec: JobSpec,
    offers: Sequence[Offer],
    knowledge: Knowledge,
    *,
    length_seconds: float,
    start_seconds: float,
) -> Forecast:
    """Return the forecast; ``offers`` are the offers that the job's policy allows, and must not be empty."""
    length, start = length_seconds / 3600, start_seconds / 3600
    deadline = inf if spec.spot.deadline is None else spec.spot.deadline / 3600
    price = least_on_demand_price(offers)
    expected = expected_offers(offers, knowledge, start_seconds)
    pools = [one.offer for one in expected if one.offer.market is Market.SPOT][:MAX_POOLS]
    if pools and price > 0:
        ranges = play(
            [_zone(one, price, knowledge) for one in pools],
            policy_of(spec.spot, knowledge),
            length=length,
            deadline=deadline,
            start=start,
            usual=knowledge.usual,
            badness=knowledge.badness,
            only_spot=spec.spot.policy == "spot",
        )
    else:
        hours = length + start
        ranges = Ranges(
            costs=(hours, hours),
            ends=(hours, hours),
            on_demand=0.0 if pools else hours,
            num_losses=0.0,
            late_share=float(hours > deadline),
        )
    an_hour = spec.nodes.max * price
    return Forecast(
        cost=(an_hour * ranges.costs[0], an_hour * ranges.costs[1]),
        on_demand_cost=an_hour * (length + start),
        currency=offers[0].currency,
        end_hours=ranges.ends,
        on_demand_hours=ranges.on_demand,
        num_losses=ranges.num_losses,
        late_share=ranges.late_share,
    )


def least_on_demand_price(offers: Sequence[Offer]) -> float:
    """Return the least on-demand price of a node per hour, even if the job's policy excludes on-demand."""
    found = [one.price_per_hour for one in offers if one.market is Market.ON_DEMAND]
    return min(found or [one.on_demand_price_per_hour for one in offers])


def _zone(offer: Offer, price: float, knowledge: Knowledge) -> Zone:
    losses = knowledge.loss_factor(pool(offer.zone, offer.instance_type))
    return Zone(knowledge.usual.scaled(losses, knowledge.gain_factor), offer.price_per_hour / price)
