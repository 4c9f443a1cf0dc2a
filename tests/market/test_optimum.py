"""The bound that no policy can beat, against an exact search of small cases."""

from __future__ import annotations

from functools import cache
from math import inf

import numpy as np
import pytest

from cloudspot.market.hazards import DEFAULT
from cloudspot.market.made_up import made_up
from cloudspot.market.optimum import optimum
from cloudspot.market.policies import Deadline, Greedy, SpotThenOnDemand, UniformProgress
from cloudspot.market.replay import SimulatedJob, replay


def exact(is_up, tick_hours, job):
    """Return the least cost of one run by trying everything; all times are whole ticks."""
    work, overhead = round(job.length / tick_hours), round(job.overhead / tick_hours)
    last = round(job.deadline / tick_hours)

    @cache
    def least(tick, held, starting, left):
        if left == 0:
            return 0.0
        if last - tick < left:
            return inf
        found = least(tick + 1, "nothing", 0, left)
        for choice in ("on-demand", *np.flatnonzero(is_up[tick]).tolist()):
            begun = starting if choice == held else overhead
            after = (begun - 1, left) if begun else (0, left - 1)
            rate = 1.0 if choice == "on-demand" else job.spot_price
            found = min(found, rate * tick_hours + least(tick + 1, choice, *after))
        return found

    return least(0, "nothing", 0, work)


@pytest.mark.full
@pytest.mark.parametrize("zones", [1, 2])
@pytest.mark.parametrize("overhead", [0, 1, 2])
@pytest.mark.parametrize(("length", "slack"), [(6, 3), (48, 8), (60, 20)])
def test_it_is_below_an_exact_search_and_near_it_in_jobs_of_many_starts(length, slack, overhead, zones):
    tick = 0.25
    job = SimulatedJob(
        length=length * tick, deadline=(length + slack) * tick, overhead=overhead * tick, spot_price=0.3
    )
    num_ticks = length + slack
    is_up = made_up(DEFAULT, num_ticks=num_ticks, tick_hours=tick, num_zones=zones, num_runs=30, seed=length)
    found = optimum(is_up, tick, job)
    true = np.array([exact(is_up[:, :, run], tick, job) for run in range(30)])
    assert (found <= true + 1e-9).all()
    if overhead == 0:
        assert found == pytest.approx(true)
    elif length > 6:
        assert (true - found).mean() <= 0.02 * overhead * true.mean()


@pytest.mark.full
@pytest.mark.parametrize("zones", [1, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize(("deadline", "overhead"), [(13.0, 0.3), (18.03, 0.05), (15.0, 0.5)])
def test_no_policy_beats_it(deadline, overhead, zones):
    """The deadline need not be a whole number of ticks."""
    job = SimulatedJob(length=12.0, deadline=deadline, overhead=overhead, spot_price=0.3)
    is_up = made_up(DEFAULT, num_ticks=200, tick_hours=0.1, num_zones=zones, num_runs=100, seed=2)
    bound = optimum(is_up, 0.1, job)
    for policy in (
        Greedy(DEFAULT),
        UniformProgress(DEFAULT),
        SpotThenOnDemand(DEFAULT, 0.5),
        Deadline(DEFAULT),
    ):
        found = replay(is_up, 0.1, job, policy, DEFAULT)
        assert not found.is_late.any()
        assert (bound <= found.costs + 1e-9).all(), policy
    assert bound.mean() > 12 * 0.3


def test_where_spot_is_always_up_it_is_spots_price_of_the_work_and_a_start():
    job = SimulatedJob(length=10.0, deadline=14.0, overhead=0.5, spot_price=0.3)
    found = optimum(np.ones((60, 1, 4), bool), 0.25, job)
    assert found.tolist() == pytest.approx([10.5 * 0.3] * 4, rel=0.02)


def test_a_part_of_a_tick_before_the_deadline_counts():
    """Spot comes after an hour, and does all of the work in the hour and 0.2 h that are left."""
    job = SimulatedJob(length=1.2, deadline=2.2, overhead=0.0, spot_price=0.3)
    is_up = np.array([False, False, True, True, True])[:, np.newaxis, np.newaxis]
    assert optimum(is_up, 0.5, job)[0] <= 1.2 * 0.3 + 1e-9


def test_where_there_is_no_spot_it_is_on_demands():
    job = SimulatedJob(length=10.0, deadline=14.0, overhead=0.5, spot_price=0.3)
    found = optimum(np.zeros((60, 1, 4), bool), 0.25, job)
    assert found.tolist() == pytest.approx([10.5] * 4, rel=0.06)
    assert (found <= 10.5).all()
