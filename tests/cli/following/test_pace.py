"""How fast, and how long still."""

from datetime import datetime, timedelta, timezone

import pytest

from cloudspot.cli.following.pace import Point, origin, seconds_left, sight, steps_per_second, with_point
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.layout.records import Phase

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


def point(seconds, step, generation=1):
    return Point(generation, NOON + timedelta(seconds=seconds), step)


def after(*points):
    known = ()
    for each in points:
        known = with_point(known, each)
    return known


def test_the_rate_is_that_of_the_last_minute():
    points = after(*(point(5 * n, 10 * n) for n in range(100)), point(505, 5000))
    assert (points[0].at - NOON).total_seconds() == 440
    assert steps_per_second(points) == pytest.approx((5000 - 880) / 65)


def test_one_word_tells_no_rate_and_neither_do_two_in_a_moment():
    assert steps_per_second(()) is None
    assert steps_per_second(after(point(0, 5))) is None
    assert steps_per_second(after(point(0, 5), point(1, 50))) is None


def test_a_word_that_was_heard_before_changes_nothing():
    points = after(point(0, 0), point(5, 10), point(5, 10), point(5, 10))
    assert points == (point(0, 0), point(5, 10))


def test_a_restart_begins_anew():
    points = after(point(0, 0), point(50, 500), point(55, 480, generation=2), point(60, 490, generation=2))
    assert steps_per_second(points) == 2.0
    assert after(point(0, 0), point(50, 500), None) == ()


def test_a_training_that_stands_has_no_rate_after_a_while():
    points = after(point(0, 100), *(point(5 * n, 200) for n in range(1, 30)))
    assert steps_per_second(points) == 0.0
    assert seconds_left(200, 1000, 0.0) is None


def test_what_is_left_takes_as_long_as_the_rate_says():
    assert seconds_left(250, 1000, 2.5) == 300.0
    assert seconds_left(1001, 1000, 2.5) == 0.0
    assert seconds_left(250, None, 2.5) is None
    assert seconds_left(250, 1000, None) is None


def read(jobs, **beat):
    jobs.submit("a-1")
    jobs.add_intent("a-1", 1, minutes=0)
    jobs.claim("a-1", 1, minutes=0.5)
    jobs.add_generation("a-1", 1, minutes=1)
    jobs.add_heartbeat("a-1", 1, step=17, minutes=2, **beat)
    return HistoryReader(jobs.store, "a-1").read()


def test_a_node_that_trains_tells_how_far_it_is(jobs):
    history = read(jobs)
    assert (sight(history).generation, sight(history).step) == (1, 17)
    assert sight(history).at == history.launches[0].heartbeats[0].at
    assert origin(history) is None


@pytest.mark.parametrize("beat", [{"has_session": False}, {"generation": 0}, {"state": "uploading"}])
def test_a_node_that_does_not_train_or_count_tells_nothing(jobs, beat):
    assert sight(read(jobs, **beat)) is None


def test_where_the_loop_began_is_a_point_too(jobs):
    phases = (
        Phase(state="running", generation=1, at=NOON),
        Phase(state="training", generation=1, at=NOON + timedelta(seconds=9)),
    )
    assert origin(read(jobs, phases=phases)) == point(9, 0)
