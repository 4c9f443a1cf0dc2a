"""What is left to train: by the pace so far, and how sure that is."""

import pytest

from cloudspot.controller.assess.measured import doubt_seconds, seconds_to_go


@pytest.fixture
def trained(records):
    """``trained(at, ...)`` returns a job of 1000 steps with a commit each 10 steps, at these seconds."""

    def make(*at, beat_step=None, launches=None, generations=None):
        step = 10 * len(at) if beat_step is None else beat_step
        beat = records.heartbeat(at=at[-1], step=step, steps_total=1000, restored_step=0)
        return records.history(
            *(launches or [records.launch(heartbeats={0: beat})]),
            generations=generations or [records.generation(1)],
            commits=[records.commit(1, 10 * (index + 1), at=one) for index, one in enumerate(at)],
        )

    return make


def test_steps_that_are_all_alike_leave_no_doubt(records, trained):
    history = trained(30, 50, 70, 90, 110)
    assert seconds_to_go(records.spec(), history) == pytest.approx(950 * 2.0)
    assert doubt_seconds(history) == 0.0


def test_the_more_they_have_varied_the_more_time_is_kept_back(records, trained):
    even, uneven = trained(30, 49, 70, 89, 110), trained(30, 40, 70, 80, 110)
    assert seconds_to_go(records.spec(), uneven) == pytest.approx(1900.0)
    # 40 steps in four intervals, each 10 s off: a variance of 10 a step; 50 are done, and 950 are left.
    assert doubt_seconds(uneven) == pytest.approx(2 * (10.0 * 950 * (1 + 950 / 50)) ** 0.5)
    assert 0 < doubt_seconds(even) == pytest.approx(doubt_seconds(uneven) / 10)


def test_the_longer_it_has_trained_and_the_less_is_left_the_smaller_the_doubt(trained):
    at = [30.0]
    while len(at) < 90:
        at.append(at[-1] + (10 if len(at) % 2 else 30))
    assert doubt_seconds(trained(*at)) < doubt_seconds(trained(*at[:20])) / 5


def test_without_three_intervals_the_newest_heartbeat_tells_all(records, trained):
    history = trained(30, 40, 70, beat_step=45)
    assert seconds_to_go(records.spec(), history) == pytest.approx(970 * (70 - 10) / 45)
    assert doubt_seconds(history) == 0.0


def test_while_few_steps_are_known_what_the_job_file_says_counts_if_it_is_longer(records, trained):
    few, more = trained(30, 40, 70, beat_step=45), trained(30, 50, 70, 90, 110)
    length = {"spot": {"policy": "deadline", "deadline": 9000.0, "length": 5000.0}}
    assert seconds_to_go(records.spec(**length), few) == pytest.approx(970 / 1000 * 5000.0)
    assert seconds_to_go(records.spec(**length), more) == pytest.approx(1900.0)
    shorter = {"spot": {**length["spot"], "length": 100.0}}
    assert seconds_to_go(records.spec(**shorter), few) == pytest.approx(970 * (70 - 10) / 45)


def test_what_a_fork_began_with_tells_no_pace(records):
    history = records.history(records.launch(), commits=[records.commit(3, 50, at=1.0)])
    assert doubt_seconds(history) == 0.0


def test_the_pace_of_other_machines_does_not_count(records):
    def launch(number, type_, beat):
        intent = records.intent(number, offer=records.offer(instance_type=type_))
        return records.launch(number, intent=intent, heartbeats={0: beat})

    slow = records.heartbeat(instance_id="i-1-0", at=500, step=50, steps_total=1000, restored_step=0)
    fast = records.heartbeat(instance_id="i-2-0", at=600, step=100, steps_total=1000, restored_step=50)
    before = [records.commit(1, 10 * n, at=100 * n) for n in range(1, 6)]
    after = [records.commit(2, 50 + 10 * n, at=510 + 10 * n) for n in range(1, 8)]
    generations = [records.generation(1), records.generation(2, launch=2)]

    def left(second):
        launches = launch(1, "a", slow), launch(2, second, fast)
        history = records.history(*launches, generations=generations, commits=[*before, *after])
        return seconds_to_go(records.spec(), history)

    assert left("b") < 0.5 * left("a")
