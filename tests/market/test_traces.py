"""Recorded markets, read from files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cloudspot.errors import SpecError
from cloudspot.market.traces import Market, read_market, windows


@pytest.fixture
def trace(tmp_path):
    def write(name, data, gap_seconds):
        path = tmp_path / name
        path.write_text(
            json.dumps({"metadata": {"gap_seconds": gap_seconds, "x": 1}, "data": data, "prices": []})
        )
        return path

    return write


def test_each_file_is_a_zone_that_is_up_where_it_has_enough_machines(trace):
    market = read_market([trace("a", [0, 1, 2], 3600), trace("b", [3, 0, 1], 3600)], num_nodes=2)
    assert market.is_up.tolist() == [[False, True], [False, False], [True, False]]
    assert (market.tick_hours, market.hours) == (1.0, 3.0)


def test_what_was_seen_goes_on_until_the_next_look(trace):
    market = read_market([trace("a", [1, 0, 1, 1], 90), trace("b", [1, 0, 0, 1, 0, 1, 1, 1], 60)])
    # Looks at 0, 90, 180 and 270 s, in ticks of 60 s, until 360 s.
    assert market.is_up[:, 0].tolist() == [True, True, False, True, True, True]
    assert market.is_up[:, 1].tolist() == [True, False, False, True, False, True]
    assert market.tick_hours == pytest.approx(1 / 60)


@pytest.mark.parametrize("gap_seconds", [5e-324, 1e-9, 0.0, -60.0, 86401.0, 1e308])
def test_a_gap_that_no_recorder_has_is_refused_in_one_line(trace, gap_seconds):
    with pytest.raises(SpecError, match=r"is not a trace.*gap_seconds"):
        read_market([trace("a", [1, 0, 1], gap_seconds)])


def test_windows_begin_at_different_places_and_keep_the_zones_together():
    is_up = np.random.default_rng(0).random((50, 3)) < 0.5
    found = windows(Market(is_up, 0.5), num_ticks=10, num_runs=20, seed=4)
    assert found.shape == (10, 3, 20)
    places = [
        next(at for at in range(41) if (is_up[at : at + 10] == found[:, :, run]).all()) for run in range(20)
    ]
    assert len(set(places)) == 20


def test_there_are_no_more_windows_than_places():
    is_up = np.arange(12)[:, np.newaxis] % 5 < 2
    found = windows(Market(is_up, 1.0), num_ticks=10, num_runs=300, seed=0)
    assert found.shape == (10, 1, 3)
    assert [found[:, 0, run].tolist() for run in range(3)] == [
        is_up[at : at + 10, 0].tolist() for at in range(3)
    ]
