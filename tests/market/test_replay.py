"""Policies played through known markets, against what a pencil says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from cloudspot.market.hazards import DEFAULT
from cloudspot.market.replay import UNKNOWN_AGE_HOURS, SimulatedJob, replay
from cloudspot.market.situation import NOTHING, ON_DEMAND

JOB = SimulatedJob(length=2.0, deadline=6.0, overhead=0.5, spot_price=0.25)
"""In ticks of half an hour: four of work, and one for each start."""


@dataclass
class Script:
    """Chooses what it is told, and keeps what it was shown."""

    choices: list

    def __post_init__(self):
        self.seen = []

    def choose(self, situation):
        self.seen.append(situation)
        choice = self.choices[min(len(self.seen), len(self.choices)) - 1]
        return np.broadcast_to(choice, situation.held.shape).copy()


def play(zones, choices, job=JOB, tick_hours=0.5):
    """Play one run; ``zones`` has a string for each, with a ``1`` where it is up."""
    is_up = np.array([[letter == "1" for letter in zone] for zone in zones]).T[:, :, np.newaxis]
    script = Script(choices)
    return replay(is_up, tick_hours, job, script, DEFAULT), script.seen


def values(found):
    return {
        name: getattr(found, name).tolist()
        for name in ("costs", "ends", "spot_hours", "on_demand_hours", "starts", "reclaims", "is_late")
    }


def test_spot_that_is_kept_costs_its_price_for_the_work_and_one_start():
    found, _ = play(["111111"], [0])
    assert values(found) == {
        "costs": [2.5 * 0.25],
        "ends": [2.5],
        "spot_hours": [2.5],
        "on_demand_hours": [0.0],
        "starts": [1],
        "reclaims": [0],
        "is_late": [False],
    }


def test_a_loss_costs_another_start_and_what_was_trained_is_kept():
    # Two ticks on spot (a start and half an hour of work), one without a machine, then on demand.
    found, seen = play(["110000"], [0, 0, NOTHING, ON_DEMAND])
    assert values(found) == {
        "costs": [2 * 0.5 * 0.25 + (0.5 + 1.5)],
        "ends": [0.5 * 3 + 2.0],
        "spot_hours": [1.0],
        "on_demand_hours": [2.0],
        "starts": [2],
        "reclaims": [1],
        "is_late": [False],
    }
    assert [one.held.tolist() for one in seen[:4]] == [[NOTHING], [0], [NOTHING], [NOTHING]]
    assert [one.work_left.tolist() for one in seen[:4]] == [[2.0], [2.0], [1.5], [1.5]]
    assert [one.idle_hours.tolist() for one in seen[:4]] == [[0.0], [0.0], [0.0], [0.5]]


def test_a_start_that_is_lost_is_paid_and_begins_again():
    found, seen = play(
        ["10111111"], [0, NOTHING, 0], SimulatedJob(length=1.0, deadline=9.0, overhead=1.0, spot_price=0.5)
    )
    assert found.costs.tolist() == [(0.5 + 2.0) * 0.5]
    assert found.ends.tolist() == [3.0]
    assert [one.starting.tolist() for one in seen[:4]] == [[0.0], [0.0], [0.0], [0.5]]


def test_a_start_that_is_given_up_is_not_under_way_any_more():
    job = SimulatedJob(length=1.0, deadline=9.0, overhead=1.0, spot_price=0.5)
    _, seen = play(["1111111111"], [0, NOTHING, NOTHING, 0], job)
    assert [one.starting.tolist() for one in seen[:5]] == [[0.0], [0.5], [0.0], [0.0], [0.5]]


def test_a_move_costs_a_start_and_no_reclaim():
    found, _ = play(["111111", "111111"], [0, 0, 1])
    assert (found.costs.tolist(), found.starts.tolist(), found.reclaims.tolist()) == ([3.0 * 0.25], [2], [0])


def test_the_last_tick_is_paid_as_far_as_it_is_used():
    found, _ = play(["1111"], [0], SimulatedJob(length=0.6, deadline=9.0, overhead=0.1, spot_price=1.0))
    assert found.costs.tolist() == pytest.approx([0.7])
    assert found.ends.tolist() == pytest.approx([0.7])


def test_who_ends_after_the_deadline_is_late():
    found, _ = play(["0"], [NOTHING] * 8 + [ON_DEMAND])
    assert (found.ends.tolist(), found.is_late.tolist()) == ([4.0 + 2.5], [True])
    found, _ = play(["0"], [NOTHING] * 7 + [ON_DEMAND])
    assert (found.ends.tolist(), found.is_late.tolist()) == ([6.0], [False])


def test_a_zone_without_capacity_cannot_be_chosen():
    for zones, choice in ((["0"], 0), (["1", "0"], 1)):
        with pytest.raises(ValueError, match="the policy chose a zone without capacity"):
            play(zones, [choice])


def test_after_the_last_tick_there_is_no_capacity():
    with pytest.raises(ValueError, match="without capacity"):
        play(["111"], [0])
    found, _ = play(["111"], [0, 0, 0, ON_DEMAND])
    assert (found.reclaims.tolist(), found.on_demand_hours.tolist()) == ([1], [1.5])


def test_a_run_sees_the_ages_from_its_begin_on():
    _, seen = play(["1101111", "0000000"], [NOTHING, NOTHING, ON_DEMAND])
    assert [one.ages[:, 0].tolist() for one in seen[:4]] == [
        [UNKNOWN_AGE_HOURS] * 2,
        [UNKNOWN_AGE_HOURS + 0.5] * 2,
        [0.0, UNKNOWN_AGE_HOURS + 1.0],
        [0.0, UNKNOWN_AGE_HOURS + 1.5],
    ]
    assert [one.hours for one in seen[:3]] == [0.0, 0.5, 1.0]


def test_a_market_worse_than_usual_is_told_as_such():
    bad, good = ["10" * 20], ["1" * 40]
    job = SimulatedJob(length=2.0, deadline=30.0, overhead=0.5, spot_price=0.25)
    for zones, is_worse in ((bad, True), (good, False)):
        _, seen = play(zones, [NOTHING] * 38 + [ON_DEMAND], job)
        assert seen[0].loss_factors.tolist() == [[1.0]]
        assert seen[0].badness.tolist() == [1.0]
        assert (seen[30].loss_factors[0, 0] > 1) == is_worse
        assert (seen[30].badness[0] > 1) == is_worse or zones == bad  # it also comes back sooner


def test_another_zone_that_is_up_at_each_loss_makes_one_likely():
    job = SimulatedJob(length=2.0, deadline=30.0, overhead=0.5, spot_price=0.25)
    likely = []
    for other in ("1" * 40, "0" * 40):
        _, seen = play(["10" * 20, other], [NOTHING] * 38 + [ON_DEMAND], job)
        likely.append(seen[30].elsewhere[0])
    assert likely[0] > seen[0].elsewhere[0] > likely[1]


def test_runs_are_played_apart():
    is_up = np.array([[True, False, True]] * 8)[:, np.newaxis]

    class TakeIt:
        def choose(self, situation):
            return np.where(situation.is_up[0], 0, ON_DEMAND)

    found = replay(is_up, 0.5, JOB, TakeIt(), DEFAULT)
    assert found.costs.tolist() == [0.625, 2.5, 0.625]
