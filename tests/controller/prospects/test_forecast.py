"""What a job is expected to cost and when it ends: exactly where nothing is left to chance, within bounds else."""

import math

import pytest

from cloudspot.controller.prospects.forecast import forecast
from cloudspot.market.hazards import NUM_AGES, Hazards, Tally
from cloudspot.market.knowledge import Knowledge

HOUR = 3600.0
CALM = Knowledge(usual=Hazards((1e-9,) * NUM_AGES, (1e3,) * NUM_AGES))
"""Spot machines come at once and are never taken."""
EMPTY = Knowledge(usual=Hazards((1e3,) * NUM_AGES, (1e-9,) * NUM_AGES))
"""There are none."""


@pytest.fixture
def expect(records):
    """``expect(knowledge, ...)`` of ten hours of training, after starts of half an hour, at 1 and 4 an hour."""

    def play(knowledge=CALM, *, length=10.0, nodes=1, offers=None, **spot):
        offers = offers or [records.offer(price=1.0), records.offer(market="on-demand", price=4.0)]
        spec = records.spec(nodes=nodes, spot={"policy": "spot-then-on-demand", **spot})
        return forecast(spec, offers, knowledge, length_seconds=length * HOUR, start_seconds=0.5 * HOUR)

    return play


def test_on_demand_nothing_is_left_to_chance(records, expect):
    offers = [records.offer(market="on-demand", price=4.0), records.offer("b", market="on-demand", price=5.0)]
    found = expect(policy="on-demand", offers=offers, nodes=3)
    assert found.cost == (126.0, 126.0)  # 3 nodes for 10.5 hours at 4
    assert found.on_demand_cost == 126.0
    assert found.end_hours == (10.5, 10.5)
    assert (found.on_demand_hours, found.num_losses, found.late_share) == (10.5, 0.0, 0.0)


@pytest.mark.parametrize("policy", ["spot", "spot-then-on-demand"])
def test_where_no_spot_machine_is_ever_lost_it_costs_its_hours_on_spot(expect, policy):
    found = expect(policy=policy, nodes=2)
    assert found.cost == pytest.approx((21.0, 21.0))
    assert found.on_demand_cost == pytest.approx(84.0)
    assert found.end_hours == pytest.approx((10.5, 10.5))
    assert (found.on_demand_hours, found.num_losses) == (0.0, 0.0)


@pytest.mark.full
def test_where_there_is_no_spot_machine_the_fallback_costs_as_on_demand_and_spot_alone_is_open(expect):
    found = expect(EMPTY)
    assert found.cost == pytest.approx((42.0, 42.0), rel=0.05)
    assert found.on_demand_hours == pytest.approx(10.5, rel=0.05)
    alone = expect(EMPTY, policy="spot")
    assert (alone.cost, alone.end_hours) == ((math.inf, math.inf), (math.inf, math.inf))
    assert alone.on_demand_hours == 0.0


@pytest.mark.full
def test_a_deadline_is_kept_and_costs_less_than_on_demand(expect):
    found = expect(Knowledge(), policy="deadline", deadline="16h")
    assert found.late_share == 0.0
    assert found.end_hours[1] <= 16.0
    assert found.cost[0] < found.cost[1] <= 42.0 + 8.0


def test_a_range_is_in_order_and_begins_with_no_loss_at_the_least(expect):
    found = expect(Knowledge())
    assert 10.5 <= found.cost[0] < found.cost[1] <= 55.0
    assert 10.5 <= found.end_hours[0] < found.end_hours[1]
    assert found.num_losses > 1.0
    assert found.on_demand_hours > 0.0


@pytest.mark.full
def test_what_was_learned_of_the_pools_counts(records, expect):
    steady = Knowledge({"a/big": Tally(up_hours=(1, 3, 20, 400))})
    awful = Knowledge({"a/big": Tally(losses=(400, 0, 0, 0), up_hours=(40, 0, 0, 0))})
    assert expect(steady).num_losses < expect(Knowledge()).num_losses / 4
    assert expect(awful).on_demand_hours > 1.5 * expect(Knowledge()).on_demand_hours


@pytest.mark.full
def test_each_pool_has_its_price(records, expect):
    both = [
        records.offer("a", price=1.0),
        records.offer("b", price=2.0),
        records.offer(market="on-demand", price=4.0),
    ]
    assert expect(offers=both).cost == pytest.approx((10.5, 10.5))
    assert expect(offers=both[1:]).cost == pytest.approx((21.0, 21.0))


def test_without_an_offer_on_demand_the_list_price_tells_what_that_would_cost(records, expect):
    found = expect(policy="spot", offers=[records.offer(price=1.0)])
    assert found.on_demand_cost == pytest.approx(3.0 * 10.5)
    assert found.cost == pytest.approx((10.5, 10.5))


def test_machines_that_cost_nothing_have_a_forecast(records, expect):
    found = expect(offers=[records.offer(price=0.0, on_demand_price_per_hour=0.0)])
    assert (found.cost, found.end_hours) == ((0.0, 0.0), (10.5, 10.5))


@pytest.mark.full
def test_the_same_arguments_give_the_same_forecast(expect):
    assert expect(Knowledge()) == expect(Knowledge())


@pytest.mark.full
@pytest.mark.parametrize("length", [0.01, 1.0, 1000.0])
def test_any_length_is_played_in_few_steps(records, expect, length):
    found = expect(Knowledge(), length=length, policy="spot")
    assert found.end_hours[0] >= length
