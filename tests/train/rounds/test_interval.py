"""The moment of the next save."""

import math

import pytest

from cloudspot.train.handoff import Tuning, write_tuning
from cloudspot.train.rounds.interval import Pace, auto_interval


def test_auto_is_youngs_formula_between_its_bounds():
    day = 1 / 86400
    assert auto_interval(stall_seconds=0.1, upload_seconds=2, losses_per_second=day) == pytest.approx(
        math.sqrt(2 * 0.1 * 86400)
    )


@pytest.mark.parametrize(
    ("stall", "upload", "losses", "expected"),
    [
        (0.001, 0, 1 / 86400, 30.0),  # never shorter than 30 s
        (0.001, 100, 1 / 86400, 150.0),  # nor than 1.5 uploads
        (60.0, 1, 1 / 86400, 1800.0),  # never longer than 30 min
        (60.0, 2000, 1 / 86400, 3000.0),  # but for uploads that take longer
        (0.1, 1, 0.0, 1800.0),  # no loss is expected
    ],
)
def test_auto_keeps_its_bounds(stall, upload, losses, expected):
    assert auto_interval(stall_seconds=stall, upload_seconds=upload, losses_per_second=losses) == expected


def test_nothing_is_due_before_the_agent_has_spoken(tmp_path):
    pace = Pace(tmp_path, now=0.0)
    assert not pace.is_due(1e9)


def test_the_clock_starts_with_the_session_and_again_with_each_save(tmp_path):
    write_tuning(tmp_path, Tuning(interval_seconds=10.0, upload_seconds=0.0, losses_per_second=0.0))
    pace = Pace(tmp_path, now=100.0)
    assert not pace.is_due(109.9)
    assert pace.is_due(110.0)
    pace.saved(112.0, stall_seconds=0.1)
    assert not pace.is_due(121.9)
    assert pace.is_due(122.0)


def test_a_save_that_could_not_be_is_due_again_a_second_later(tmp_path):
    write_tuning(tmp_path, Tuning(interval_seconds=10.0, upload_seconds=0.0, losses_per_second=0.0))
    pace = Pace(tmp_path, now=0.0)
    assert pace.is_due(10.0)
    pace.asked(10.0)
    assert not pace.is_due(10.5)
    assert pace.is_due(11.0)


def test_a_save_that_came_to_nothing_is_due_again_at_once(tmp_path):
    write_tuning(tmp_path, Tuning(interval_seconds=10.0, upload_seconds=0.0, losses_per_second=0.0))
    pace = Pace(tmp_path, now=0.0)
    pace.saved(12.0, stall_seconds=0.1)
    assert not pace.is_due(14.0)
    pace.hasten()
    assert pace.is_due(14.0)
    pace.saved(15.0, stall_seconds=0.1)
    assert not pace.is_due(16.0)


def test_auto_follows_the_measured_stall_and_the_tuning(tmp_path):
    write_tuning(tmp_path, Tuning(interval_seconds=None, upload_seconds=4.0, losses_per_second=1 / 86400))
    pace = Pace(tmp_path, now=0.0)
    pace.is_due(0.0)
    pace.saved(0.0, stall_seconds=2.0)
    assert pace.interval_seconds() == pytest.approx(math.sqrt(2 * 2.0 * 86400))
    write_tuning(tmp_path, Tuning(interval_seconds=None, upload_seconds=900.0, losses_per_second=1 / 86400))
    pace.is_due(5.0)
    assert pace.interval_seconds() == 1350.0


def test_a_tuning_that_cannot_be_read_leaves_the_last_one_standing(tmp_path):
    write_tuning(tmp_path, Tuning(interval_seconds=10.0, upload_seconds=0.0, losses_per_second=0.0))
    pace = Pace(tmp_path, now=0.0)
    assert pace.is_due(10.0)
    (tmp_path / "tuning.json").write_text("{")
    assert pace.is_due(20.0)
