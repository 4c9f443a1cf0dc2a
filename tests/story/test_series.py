"""Metrics over steps, out of a log in which steps were made again."""

import itertools
import json
import math

import pytest

from cloudspot.model import LogRecord
from cloudspot.story.series import MetricSeries


class Log:
    """Writes lines of metrics, one a second after the start, and feeds them to a series."""

    def __init__(self, records, series):
        self.records = records
        self.series = series
        self.seq = 0

    def line(self, text, *, stream="1-0", source="metrics"):
        record = LogRecord(
            stream=stream, seq=self.seq, time=self.records.at(self.seq), text=text, source=source
        )
        self.seq += 1
        return self.series.add(record)

    def figures(self, step, at, stream="1-0", **values):
        time = self.records.at(at).timestamp()
        return self.line(json.dumps({"step": step, "time": time, "values": values}), stream=stream)


@pytest.fixture
def series():
    return MetricSeries()


@pytest.fixture
def log(records, series):
    return Log(records, series)


def points(curve):
    return list(zip(curve.steps, curve.values, strict=True))


def test_a_curve_has_each_logged_value_at_its_step_and_time(log, series, records):
    log.figures(0, 10, loss=2.0, rate=0.1)
    log.figures(10, 20, loss=1.5)
    assert series.names() == ("loss", "rate")
    assert points(series.curve("loss")) == [(0, 2.0), (10, 1.5)]
    assert list(series.curve("loss").times) == [records.at(10).timestamp(), records.at(20).timestamp()]
    assert points(series.curve("rate")) == [(0, 0.1)]
    assert series.newest() == {"loss": 1.5, "rate": 0.1}
    assert series.lost("loss") == ()
    assert len(series.curve("other")) == 0


def test_of_two_values_of_one_step_the_later_stands(log, series):
    log.figures(3, 10, loss=2.0)
    log.figures(3, 11, loss=1.0, accuracy=0.5)
    assert points(series.curve("loss")) == [(3, 1.0)]


def test_steps_that_were_made_again_have_the_newer_generations_value(log, series):
    for step in (0, 10, 20, 30):
        log.figures(step, step, loss=step)
    for step in (20, 30, 40):
        log.figures(step, 100 + step, loss=-step, stream="2-0")
    assert points(series.curve("loss")) == [(0, 0), (10, 10), (20, -20), (30, -30), (40, -40)]
    assert [points(lost) for lost in series.lost("loss")] == [[(20, 20), (30, 30)]]
    assert series.newest() == {"loss": -40}


def test_a_second_generation_of_the_same_machine_replaces_the_first_ones_steps_too(log, series):
    for at, step in enumerate((0, 10, 20, 5, 15)):
        log.figures(step, at, loss=at)
    assert points(series.curve("loss")) == [(0, 0), (5, 3), (15, 4)]
    assert [points(lost) for lost in series.lost("loss")] == [[(10, 1), (20, 2)]]


def test_known_generations_tell_from_which_step_on_was_lost(log, series, records):
    for step in (0, 12, 24, 27):
        log.figures(step, 30 + step, loss=step)
    log.figures(35, 130, loss=-35, stream="2-0")
    # By the steps alone nothing is known to be lost: the new generation logs at other steps.
    assert [step for step, _ in points(series.curve("loss"))] == [0, 12, 24, 27, 35]
    series.know(
        [records.generation(1, at=20), records.generation(2, launch=2, restored=(1, 25), at=100)],
    )
    assert [step for step, _ in points(series.curve("loss"))] == [0, 12, 24, 35]
    assert [points(lost) for lost in series.lost("loss")] == [[(27, 27)]]


def test_a_generation_that_has_logged_nothing_yet_has_made_what_it_goes_back_behind_lost(
    log, series, records
):
    for step in (0, 10, 20):
        log.figures(step, 30 + step, loss=step)
    series.know([records.generation(1, at=20), records.generation(2, restored=(1, 10), at=60)])
    assert points(series.curve("loss")) == [(0, 0)]
    log.figures(10, 70, loss=-10)
    assert points(series.curve("loss")) == [(0, 0), (10, -10)]


def test_a_zombie_of_an_older_launch_adds_nothing(log, series, records):
    series.know([records.generation(1, at=0), records.generation(2, launch=2, restored=(1, 10), at=50)])
    log.figures(5, 10, loss=5)
    log.figures(10, 60, loss=-10, stream="2-0")
    log.figures(11, 61, loss=666, stream="1-0")
    log.figures(12, 62, loss=-12, stream="2-0")
    assert points(series.curve("loss")) == [(5, 5), (10, -10), (12, -12)]
    assert [points(lost) for lost in series.lost("loss")] == [[(11, 666)]]


def test_lines_of_an_older_launch_that_come_late_take_their_place(log, series):
    log.figures(10, 60, loss=-10, stream="2-0")
    for step in (0, 5, 10):
        log.figures(step, step, loss=step, stream="1-0")
    assert points(series.curve("loss")) == [(0, 0), (5, 5), (10, -10)]


def test_a_node_that_goes_on_beside_newer_ones_stays_on_the_curve(log, series, records):
    generations = [
        records.generation(1, seats=[(1, 0), (1, 1)], at=0),
        records.generation(2, seats=[(1, 1), (2, 0)], restored=(1, 15), at=50),
        records.generation(3, seats=[(1, 1), (3, 0)], restored=(2, 25), at=90),
    ]
    series.know(generations)
    for step, at in ((0, 1), (10, 11), (20, 21), (22, 60)):
        log.figures(step, at, loss=step, stream="1-0")
    for step, at in ((15, 61), (20, 66), (30, 76), (25, 95), (35, 99)):
        log.figures(step, at, loss=-step, stream="1-1")
    # Node 2.0 was the first to speak of step 31, by a clock that is behind; then it was left out.
    log.figures(31, 40, loss=31, stream="2-0")
    assert points(series.curve("loss")) == [(0, 0), (10, 10), (15, -15), (20, -20), (25, -25), (35, -35)]
    assert sorted(step for lost in series.lost("loss") for step in lost.steps) == [20, 22, 30, 31]


def test_what_an_excluded_node_made_is_lost_from_the_furthest_step_gone_back_to(log, series, records):
    for step in (0, 10, 20, 30):
        log.figures(step, step, loss=step)
    generations = [
        records.generation(1, at=0),
        records.generation(2, launch=2, restored=(1, 25), at=50),
        records.generation(3, launch=2, restored=(1, 5), at=60),
    ]
    series.know(generations)
    assert points(series.curve("loss")) == [(0, 0)]


def test_the_first_rank_may_move_to_another_node_of_the_launch(log, series):
    log.figures(10, 20, loss=10, stream="1-1")
    log.figures(0, 10, loss=0, stream="1-0")
    log.figures(12, 12, loss=12, stream="1-0")
    assert points(series.curve("loss")) == [(0, 0), (10, 10)]


def test_what_is_not_finite_is_kept(log, series):
    log.figures(0, 0, loss=math.nan)
    log.figures(1, 1, loss=math.inf)
    log.figures(2, 2, loss=-math.inf)
    curve = series.curve("loss")
    assert math.isnan(curve.values[0])
    assert list(curve.values[1:]) == [math.inf, -math.inf]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "half a li",
        "3",
        "null",
        "[]",
        '{"step": 1}',
        '{"step": "1", "time": 1, "values": {"loss": 1}}',
        '{"step": 1.5, "time": 1, "values": {"loss": 1}}',
        '{"step": true, "time": 1, "values": {"loss": 1}}',
        '{"step": -1, "time": 1, "values": {"loss": 1}}',
        '{"step": 9999999999999999999, "time": 1, "values": {"loss": 1}}',
        '{"step": 1, "time": null, "values": {"loss": 1}}',
        '{"step": 1, "time": 1, "values": [1]}',
        '{"step": 1, "time": 1, "values": {"loss": 1' + "0" * 400 + "}}",
        "[" * 100_000,
    ],
)
def test_a_malformed_line_is_counted_and_passed_over(log, series, text):
    assert log.line(text) is True
    log.figures(1, 1, loss=1.0)
    assert points(series.curve("loss")) == [(1, 1.0)]
    assert series.num_malformed == 1


def test_a_value_that_is_no_number_is_passed_over(log, series):
    log.figures(1, 1, loss=1.0, note="text", flag=True, nothing=None)
    assert series.names() == ("loss",)
    assert series.num_malformed == 0


def test_lines_of_other_sources_are_no_metrics(log, series):
    assert log.line('{"step": 1, "time": 1, "values": {"loss": 1}}', source="train") is False
    assert series.names() == ()


@pytest.mark.parametrize("max_points", [2, 3, 7, 100])
def test_a_bounded_series_keeps_the_first_and_the_newest_point_and_some_between(records, max_points):
    log = Log(records, MetricSeries(max_points=max_points))
    for step in range(1000):
        log.figures(step, step, loss=float(step))
        steps = list(log.series.curve("loss").steps)
        assert len(steps) <= max_points
        assert (steps[0], steps[-1]) == (0, step)
        assert steps == sorted(set(steps))
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    assert len(set(gaps[:-1])) <= 1  # Evenly spread, but for the newest.
    assert max_points < 7 or len(steps) >= max_points // 2


def test_a_bound_below_two_points_is_refused():
    with pytest.raises(ValueError, match="max_points must be >= 2: got 1"):
        MetricSeries(max_points=1)
