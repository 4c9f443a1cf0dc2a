"""A policy played through made-up markets: exact where nothing is left to chance."""

import math

import pytest

from cloudspot.market import policies
from cloudspot.market.forecast import Zone, play
from cloudspot.market.hazards import DEFAULT, NUM_AGES, Hazards
from cloudspot.market.policies import Deadline, Greedy, OnDemand, SpotThenOnDemand

CALM = Hazards((1e-9,) * NUM_AGES, (1e3,) * NUM_AGES)
EMPTY = Hazards((1e3,) * NUM_AGES, (1e-9,) * NUM_AGES)


def ranges(hazards, policy, *, deadline=math.inf, price=0.25, badness=1.0, num_zones=1):
    return play(
        [Zone(hazards, price)] * num_zones,
        policy,
        length=8.0,
        deadline=deadline,
        start=0.5,
        usual=DEFAULT,
        badness=badness,
        only_spot=isinstance(policy, Greedy),
    )


def test_in_a_calm_market_the_start_and_the_length_are_paid_at_the_zones_price():
    found = ranges(CALM, Greedy(DEFAULT))
    assert found.costs == pytest.approx((8.5 / 4, 8.5 / 4))
    assert found.ends == pytest.approx((8.5, 8.5))
    assert (found.on_demand, found.num_losses, found.late_share) == (0.0, 0.0, 0.0)


def test_on_demand_costs_its_hours_in_any_market():
    for hazards in (CALM, EMPTY, DEFAULT):
        found = ranges(hazards, OnDemand())
        assert (found.costs, found.on_demand) == (pytest.approx((8.5, 8.5)), pytest.approx(8.5))


@pytest.mark.full
def test_without_spot_a_job_that_takes_nothing_else_is_given_up_and_its_cost_is_open():
    found = ranges(EMPTY, Greedy(DEFAULT))
    assert (found.costs, found.ends) == ((math.inf, math.inf), (math.inf, math.inf))


def test_without_spot_the_wait_is_added_to_the_time_on_demand():
    found = ranges(EMPTY, SpotThenOnDemand(DEFAULT, max_wait=1.0))
    assert found.costs == pytest.approx((8.5, 8.5))
    assert found.ends == pytest.approx((9.5, 9.5), abs=0.1)


@pytest.mark.full
@pytest.mark.parametrize("badness", [0.2, 1.0, 5.0])
def test_a_deadline_is_planned_for_once_and_kept(monkeypatch, badness):
    planned, solve = [], policies.solve

    def counted(outlook):
        planned.append(outlook)
        return solve(outlook)

    monkeypatch.setattr(policies, "solve", counted)
    found = ranges(DEFAULT, Deadline(DEFAULT), deadline=12.0, badness=badness, num_zones=3)
    assert found.late_share == 0.0
    assert found.ends[1] <= 12.0
    assert len(set(planned)) == 1
