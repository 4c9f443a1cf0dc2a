"""What offers come to with their losses, by numbers from a calculation by hand."""

import math

import pytest

from cloudspot.controller.supply.expected_losses import expected_offers
from cloudspot.market.hazards import NUM_AGES, Hazards, Tally
from cloudspot.market.knowledge import Knowledge

STEADY = Hazards((0.5,) * NUM_AGES, (2.0,) * NUM_AGES)
"""A loss in two hours, at any age."""


def test_a_spot_machine_costs_another_start_after_each_loss_and_one_on_demand_does_not(records):
    spot, on_demand = expected_offers(
        [records.offer(market="on-demand", price=3.0), records.offer(price=1.0)],
        Knowledge(usual=STEADY),
        start_seconds=720.0,
    )
    assert spot.hours_until_loss == pytest.approx(2.0)
    assert spot.losses_per_day == pytest.approx(12.0)
    assert spot.effective_price == pytest.approx(1.0 + 0.2 / 2)
    assert spot.price_share == pytest.approx(1 / 3)
    assert (on_demand.hours_until_loss, on_demand.losses_per_day) == (math.inf, 0.0)
    assert (on_demand.effective_price, on_demand.price_share) == (3.0, 1.0)


def test_what_was_seen_of_a_pool_counts_with_two_usual_losses_beside_it(records):
    """Eight hours would usually have brought 4 losses: with 16, the factor is (16 + 2) / (4 + 2) = 3."""
    seen = Tally(losses=(16, 0, 0, 0), up_hours=(8, 0, 0, 0), down_hours=(0, 4, 0, 0))
    knowledge = Knowledge({"a/big": seen}, STEADY)
    (other, lossy) = expected_offers(
        [records.offer("a", price=1.0), records.offer("b", price=1.01)], knowledge, 720.0
    )
    assert lossy.hours_until_loss == pytest.approx(2.0 / 3)
    assert lossy.effective_price == pytest.approx(1.3)
    assert (lossy.watched_hours, lossy.num_losses) == (12.0, 16.0)
    assert other.offer.zone == "b"
    assert (other.watched_hours, other.hours_until_loss) == (0.0, pytest.approx(2.0))


def test_a_pool_is_one_machine_type_in_one_zone(records):
    knowledge = Knowledge({"a/big": Tally(up_hours=(0, 0, 0, 100))}, STEADY)
    found = expected_offers(
        [records.offer("a"), records.offer("b"), records.offer("a", instance_type="small")], knowledge, 60.0
    )
    assert [one.watched_hours for one in found] == [100.0, 0.0, 0.0]


def test_offers_are_ordered_by_market_and_then_by_what_they_come_to(records):
    offers = [
        records.offer("c", market="on-demand", price=0.1),
        records.offer("a", price=2.0),
        records.offer("b", price=1.0),
    ]
    assert [one.offer.zone for one in expected_offers(offers, Knowledge(), 60.0)] == ["b", "a", "c"]


def test_a_machine_that_is_free_on_demand_has_no_share(records):
    (found,) = expected_offers([records.offer(price=0.0, on_demand_price_per_hour=0.0)], Knowledge(), 60.0)
    assert (found.price_share, found.effective_price) == (None, 0.0)
