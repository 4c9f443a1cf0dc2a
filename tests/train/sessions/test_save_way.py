"""The way of a save: tried, compared by what saves have cost, and given up where it is unsafe."""

import pytest

from cloudspot.train.sessions import save_way
from cloudspot.train.sessions.save_way import SaveWay, Way


class Training:
    """Its boundaries, 1 s apart but for what saves cost."""

    def __init__(self, costs, *, step=lambda _number: 1.0):
        self.way = SaveWay()
        self._costs = costs
        self._now, self._number = 0.0, 0
        self._step = step
        self.way.pass_boundary(0.0)
        self.go_on()

    def go_on(self, num_steps=4, *, cost=0.0):
        for number in range(num_steps):
            self._number += 1
            self._now += self._step(self._number) + (cost if number == 0 else 0.0)
            self.way.pass_boundary(self._now)

    def save(self, *, has_stepped=True):
        chosen = self.way.choose(has_stepped=has_stepped)
        if chosen is Way.TRIAL:
            self.way.begin_trial(self._costs[Way.BOUNDARY])
            self.way.end_trial((), share=0.0)
        self.go_on(cost=self._costs[Way.BOUNDARY if chosen is Way.TRIAL else chosen])
        return chosen


CHEAP, DEAR = {Way.BOUNDARY: 0.2, Way.OVERLAPPED: 0.01}, {Way.BOUNDARY: 0.2, Way.OVERLAPPED: 0.3}


def test_the_first_save_is_a_trial_and_the_next_ones_are_overlapped():
    training = Training(CHEAP)
    assert [training.save() for _ in range(5)] == [Way.TRIAL, *[Way.OVERLAPPED] * 4]
    assert training.way.lost_seconds(Way.OVERLAPPED) == pytest.approx(0.01)
    assert training.way.lost_seconds(Way.BOUNDARY) == pytest.approx(0.2)
    assert training.way.lost_seconds(Way.TRIAL) == pytest.approx(0.2)


def test_a_save_that_is_lost_in_the_noise_costs_nothing():
    """A heartbeat with a cost below 0 cannot be read."""
    training = Training({Way.BOUNDARY: 0.2, Way.OVERLAPPED: -0.05})
    assert [training.save() for _ in range(3)] == [Way.TRIAL, Way.OVERLAPPED, Way.OVERLAPPED]
    assert training.way.lost_seconds(Way.OVERLAPPED) == 0.0


def test_where_they_cost_more_next_to_the_steps_saves_are_made_between_them():
    training = Training(DEAR)
    assert [training.save() for _ in range(6)] == [Way.TRIAL, *[Way.OVERLAPPED] * 3, *[Way.BOUNDARY] * 2]


def test_the_other_way_is_tried_again_now_and_then():
    training = Training(DEAR)
    ways = [training.save() for _ in range(4 + 2 * save_way.TRY_EVERY)]
    assert ways[4:].count(Way.OVERLAPPED) == 2


def test_a_cost_within_the_spread_of_the_steps_decides_nothing():
    training = Training(DEAR, step=lambda number: 1.0 + 0.5 * (number % 3 == 0))
    assert [training.save() for _ in range(6)] == [Way.TRIAL, *[Way.OVERLAPPED] * 5]


def test_without_a_step_of_an_optimizer_a_save_is_made_at_its_boundary():
    """Nobody would hold back what writes then, as the replay of a CUDA graph."""
    training = Training(CHEAP)
    assert training.save(has_stepped=False) is Way.BOUNDARY
    assert training.save() is Way.TRIAL
    assert training.save(has_stepped=False) is Way.BOUNDARY


def test_what_a_trial_finds_written_to_is_copied_at_the_boundary_or_all_if_it_is_much():
    way = SaveWay()
    way.choose(has_stepped=True)
    way.end_trial({"model/words"}, share=0.2)
    assert (way.excluded, way.obstacle) == ({"model/words"}, None)
    assert way.choose(has_stepped=True) is Way.OVERLAPPED
    way.end_trial({"model/more"}, share=0.6)
    assert way.obstacle == "model/more is written to before an optimizer steps"
    assert way.choose(has_stepped=True) is Way.BOUNDARY


def test_after_a_save_that_was_spoilt_the_next_one_is_made_at_its_boundary():
    way = SaveWay()
    way.choose(has_stepped=True)
    way.end_trial((), share=0.0)
    way.spoil(["model/weight"])
    assert [way.choose(has_stepped=True) for _ in range(2)] == [Way.BOUNDARY, Way.OVERLAPPED]
    assert way.excluded == {"model/weight"}
    way.spoil(["model/bias"])
    assert [way.choose(has_stepped=True) for _ in range(2)] == [Way.BOUNDARY, Way.BOUNDARY]
    assert way.obstacle == "model/bias was written to before an optimizer stepped"


def test_a_save_that_found_no_slot_costs_nothing():
    training = Training(CHEAP)
    training.save()
    assert training.way.choose(has_stepped=True) is Way.OVERLAPPED
    training.way.skip()
    training.go_on(cost=5.0)
    assert training.way.lost_seconds(Way.OVERLAPPED) is None
