"""What each market policy chooses, sentence by sentence; and that none makes a job late."""

from __future__ import annotations

import numpy as np
import pytest
from support.records.situations import at

from cloudspot.market.hazards import DEFAULT
from cloudspot.market.policies import (
    Deadline,
    Greedy,
    OnDemand,
    SpotThenOnDemand,
    UniformProgress,
    best_zones,
    return_pays,
)
from cloudspot.market.replay import SimulatedJob, replay
from cloudspot.market.situation import NOTHING, ON_DEMAND

POLICIES = [
    OnDemand(),
    Greedy(DEFAULT),
    UniformProgress(DEFAULT),
    SpotThenOnDemand(DEFAULT, 0.5),
    Deadline(DEFAULT),
]
WITH_A_DEADLINE = [one for one in POLICIES if not isinstance(one, OnDemand)]


def by_name(policy):
    return type(policy).__name__


def choice(policy, **fields):
    return policy.choose(at(**fields))[0]


# --- the rules ------------------------------------------------------------------------------------


def test_on_demand_takes_nothing_else():
    assert choice(OnDemand(), is_up=[True]) == ON_DEMAND


def test_greedy_takes_spot_whenever_there_is_some_and_otherwise_waits():
    policy = Greedy(DEFAULT)
    assert choice(policy, is_up=[True]) == 0
    assert choice(policy, is_up=[False]) == NOTHING
    assert choice(policy, is_up=[False, True]) == 1
    assert choice(policy, is_up=[True, True], held=1) == 1


@pytest.mark.parametrize(
    "policy", [Greedy(DEFAULT), UniformProgress(DEFAULT), SpotThenOnDemand(DEFAULT, 99.0)]
)
def test_rules_buy_on_demand_from_where_another_loss_would_make_the_job_late(policy):
    # 10 h of work, two starts and a look: 11.1 h.
    late, in_time = {"hours": 8.91, "is_up": [True]}, {"hours": 8.89, "is_up": [True]}
    assert choice(policy, **in_time) == 0
    assert choice(policy, **late) == ON_DEMAND
    assert choice(policy, **late, held=0) == 0, "spot is held until it is lost"
    assert choice(policy, **late, held=ON_DEMAND) == ON_DEMAND


def test_spot_then_on_demand_waits_and_then_buys():
    policy = SpotThenOnDemand(DEFAULT, 0.5)
    assert choice(policy, is_up=[True]) == 0
    assert choice(policy, is_up=[False], idle_hours=0.4) == NOTHING
    assert choice(policy, is_up=[False], idle_hours=0.5) == ON_DEMAND
    assert choice(policy, is_up=[True], held=0) == 0


def test_spot_then_on_demand_returns_when_that_pays():
    policy = SpotThenOnDemand(DEFAULT, 0.5)
    assert choice(policy, held=ON_DEMAND, work_left=8.0, ages=[5.0]) == 0
    assert choice(policy, held=ON_DEMAND, work_left=0.4, ages=[5.0]) == ON_DEMAND
    assert choice(policy, held=ON_DEMAND, work_left=8.0, ages=[0.0], loss_factors=[9.0]) == ON_DEMAND
    assert choice(policy, held=ON_DEMAND, work_left=8.0, is_up=[False]) == ON_DEMAND


def test_returning_pays_if_the_saving_until_the_loss_is_more_than_the_starts():
    def pays(**fields):
        return return_pays(at(held=ON_DEMAND, **fields), np.array([0]), DEFAULT)[0]

    # To the end of the work, before which no loss is expected: 0.7 an hour against a standstill of 0.5 h.
    assert pays(work_left=0.75, loss_factors=[1e-9])
    assert not pays(work_left=0.7, loss_factors=[1e-9])
    # The new machine starts beside the old one: only its own price is paid, and the standstill is short.
    assert pays(work_left=0.5, loss_factors=[1e-9], move_hours=0.1)
    assert not pays(work_left=8.0, prices=[0.99])
    assert not return_pays(at(is_up=[False]), np.array([NOTHING]), DEFAULT)[0]


def test_uniform_progress_keeps_to_the_line():
    policy = UniformProgress(DEFAULT)
    behind = {"hours": 4.0, "work_left": 8.1}  # the line is at 2 h of work
    on_it = {"hours": 4.0, "work_left": 8.0}
    ahead = {"hours": 4.0, "work_left": 7.5}  # where the line is two starts later
    assert choice(policy, **behind, is_up=[True]) == 0
    assert choice(policy, **behind, is_up=[False]) == ON_DEMAND
    assert choice(policy, **on_it, is_up=[False]) == NOTHING
    assert choice(policy, **on_it, is_up=[True], held=ON_DEMAND) == ON_DEMAND
    assert choice(policy, **ahead, is_up=[True], held=ON_DEMAND) == 0
    assert choice(policy, **{**ahead, "work_left": 7.6}, is_up=[True], held=ON_DEMAND) == ON_DEMAND
    assert choice(policy, **ahead, is_up=[False], held=ON_DEMAND) == ON_DEMAND
    assert choice(policy, **behind, is_up=[True], held=0) == 0


def test_a_deadline_is_planned_with_the_price_of_the_cheapest_zone():
    """Offers that nobody would buy, such as the same machine with more memory, make spot no dearer."""
    tight = {"deadline": 13.0, "start_hours": 0.2, "move_hours": 0.2}
    assert choice(Deadline(DEFAULT), is_up=[True, False], prices=[0.3, 0.3], **tight) == 0
    assert choice(Deadline(DEFAULT), is_up=[True, False], prices=[0.3, 40.0], **tight) == 0


# --- the plan -------------------------------------------------------------------------------------


@pytest.mark.full
def test_deadline_waits_with_much_slack_and_buys_with_little():
    policy = Deadline(DEFAULT)
    assert choice(policy, is_up=[False]) == NOTHING
    assert choice(policy, is_up=[False], deadline=10.8) == ON_DEMAND
    assert choice(policy, is_up=[True], deadline=11.1) == 0


@pytest.mark.full
def test_deadline_never_gives_up_the_slack_of_one_start():
    policy = Deadline(DEFAULT)
    # A start uses 0.5 h of the slack, and another one may be needed after a loss.
    assert choice(policy, is_up=[True], deadline=11.1) == 0
    assert choice(policy, is_up=[True], deadline=10.8) == ON_DEMAND
    assert choice(policy, is_up=[False], deadline=10.55) == ON_DEMAND
    assert choice(policy, is_up=[True], held=0, deadline=10.2) == 0


@pytest.mark.full
def test_deadline_returns_to_spot_when_it_has_the_slack():
    policy = Deadline(DEFAULT)
    assert choice(policy, held=ON_DEMAND, is_up=[True], deadline=15.0) == 0
    assert choice(policy, held=ON_DEMAND, is_up=[True], deadline=10.9) == ON_DEMAND
    assert choice(policy, held=ON_DEMAND, is_up=[False], deadline=10.9) == ON_DEMAND


def test_deadline_counts_on_other_zones_if_they_are_likely():
    tight = {"is_up": [False, False, False], "ages": [0.1] * 3, "hours": 0.0, "deadline": 12.2}
    policy = Deadline(DEFAULT)
    held = [policy._costs(at(**tight, elsewhere=share), np.array([0]), np.array([0])) for share in (0.0, 1.0)]
    assert held[1].min() < held[0].min()


@pytest.mark.full
def test_a_bad_market_is_planned_as_one():
    policy = Deadline(DEFAULT)
    costs = [
        policy._costs(at(deadline=13.0, badness=badness), np.array([0]), np.array([4])).min()
        for badness in (0.2, 1.0, 1.5, 5.0, 50.0)
    ]
    assert costs[:4] == sorted(costs[:4])
    assert costs[4] == pytest.approx(costs[3], rel=0.2), "beyond the worst plan there is none"


# --- zones ----------------------------------------------------------------------------------------


def test_the_best_zone_is_up_and_costs_least_with_the_starts_after_its_losses():
    def best(**fields):
        return best_zones(at(**fields), DEFAULT)[0]

    assert best(is_up=[False, False]) == NOTHING
    assert best(is_up=[False, True]) == 1
    assert best(is_up=[True, True], ages=[0.0, 9.0]) == 1, "an old one is lost later"
    assert best(is_up=[True, True], loss_factors=[3.0, 1.0]) == 1
    assert best(is_up=[True, True], prices=[0.3, 0.2]) == 1
    assert best(is_up=[True, True], prices=[0.3, 0.3], ages=[9.0, 9.0]) == 0


def test_a_dear_zone_is_worth_it_if_the_cheap_one_is_lost_often():
    for factor, expected in ((1.0, 0), (30.0, 1)):
        found = best_zones(at(is_up=[True, True], prices=[0.3, 0.33], loss_factors=[factor, 1.0]), DEFAULT)
        assert found[0] == expected


# --- nobody is late -------------------------------------------------------------------------------


def markets(tick_hours, num_ticks):
    """Yield markets that are made to hurt, of shape [ticks, zones, runs]."""
    ticks = np.arange(num_ticks)[:, np.newaxis]
    periods = np.arange(1, 60)
    yield (ticks // periods % 2 == 0)[:, np.newaxis]  # on and off
    yield (ticks % (periods + 1) == 0)[:, np.newaxis]  # lost at once
    yield (ticks < periods * 4)[:, np.newaxis]  # up, and then never again
    chance = np.random.default_rng(1)
    yield chance.random((num_ticks, 3, 60)) < chance.random(60)
    yield np.repeat(chance.random((num_ticks // 10 + 1, 2, 60)) < 0.5, 10, axis=0)[:num_ticks]


@pytest.mark.full
@pytest.mark.parametrize("policy", WITH_A_DEADLINE, ids=by_name)
@pytest.mark.parametrize(
    ("length", "deadline", "overhead"),
    [
        (6.0, 6.5, 0.25),
        (6.0, 7.0, 0.02),
        pytest.param(6.0, 6.31, 0.3, marks=pytest.mark.full),
        pytest.param(6.0, 9.0, 0.7, marks=pytest.mark.full),
        pytest.param(6.0, 12.0, 0.0, marks=pytest.mark.full),
        pytest.param(1.0, 12.0, 0.2, marks=pytest.mark.full),
    ],
)
def test_nobody_is_late_where_on_demand_is_in_time(policy, length, deadline, overhead):
    job = SimulatedJob(length=length, deadline=deadline, overhead=overhead, spot_price=0.3)
    for is_up in markets(0.1, 130):
        found = replay(is_up, 0.1, job, policy, DEFAULT)
        assert not found.is_late.any()
