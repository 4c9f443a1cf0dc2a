"""Many runs of a job under each policy, and what is told of them."""

from __future__ import annotations

import numpy as np
import pytest

from cloudspot.market.hazards import DEFAULT
from cloudspot.market.made_up import made_up
from cloudspot.market.replay import SimulatedJob
from cloudspot.market.simulation import num_ticks_needed, simulate

NAMES = ("on-demand", "greedy", "uniform-progress", "spot-then-on-demand", "deadline", "optimum")
JOB = SimulatedJob(length=10.0, deadline=14.0, overhead=0.2, spot_price=0.3)


def outcomes(is_up, names=NAMES, job=JOB):
    return simulate(is_up, 0.1, job, names=names, hazards=DEFAULT, max_wait_hours=0.2)


@pytest.mark.full
def test_each_policy_has_its_outcome_in_the_order_asked_for():
    is_up = made_up(DEFAULT, num_ticks=146, tick_hours=0.1, num_zones=2, num_runs=60, seed=0)
    found = outcomes(is_up, ["optimum", "deadline", "greedy"])
    assert list(found) == ["optimum", "deadline", "greedy"]
    assert found["optimum"].mean_cost < found["deadline"].mean_cost < found["greedy"].mean_cost
    for one in found.values():
        low, high = one.cost_range
        assert low <= one.mean_cost <= high


def test_costs_are_shares_of_the_work_on_demand():
    found = outcomes(np.zeros((146, 1, 5), bool), ["on-demand"])["on-demand"]
    assert found.mean_cost == pytest.approx(1.02)
    assert found.cost_range == pytest.approx((1.02, 1.02))
    assert (found.starts, found.reclaims, found.spot_hours) == (1.0, 0.0, 0.0)
    assert found.idle_hours == pytest.approx(0.0, abs=1e-9)
    assert found.on_demand_hours == pytest.approx(10.2)
    assert found.end_hours == pytest.approx(10.2)


@pytest.mark.full
def test_the_range_is_from_the_tenth_to_the_ninetieth_percentile():
    # Eleven runs; the number of ticks on spot before it is gone for good grows by ten a run.
    is_up = np.arange(146)[:, np.newaxis, np.newaxis] < 10 * np.arange(11)
    found = outcomes(is_up, ["spot-then-on-demand"])["spot-then-on-demand"]
    each = [outcomes(is_up[:, :, [run]], ["spot-then-on-demand"])["spot-then-on-demand"] for run in range(11)]
    costs = sorted(one.mean_cost for one in each)
    assert found.cost_range == pytest.approx((costs[1], costs[9]))
    assert found.mean_cost == pytest.approx(sum(costs) / 11)


def test_who_is_late_is_counted():
    job = SimulatedJob(length=10.0, deadline=10.1, overhead=0.2, spot_price=0.3)
    assert outcomes(np.zeros((106, 1, 7), bool), ["on-demand"], job)["on-demand"].late == 7


def test_a_run_needs_the_time_to_its_deadline_and_for_being_late():
    assert num_ticks_needed(JOB, 0.1) == 145
    assert num_ticks_needed(JOB, 24.0) == 2
