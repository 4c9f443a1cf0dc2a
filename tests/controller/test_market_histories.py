"""Jobs in made-up markets: never late while on-demand is to be had, and no flapping."""

import os

import pytest
from support.worlds.market_histories import play

from cloudspot.controller.supply import policy, spot_market

pytestmark = pytest.mark.full


NUM_HISTORIES = 40
NUM_SOAK_HISTORIES = int(os.environ.get("CLOUDSPOT_SOAK_MARKETS", "10000"))


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.full) for first in range(10, NUM_HISTORIES, 10))]
)
def test_no_job_is_late_in_any_of_these_markets(first):
    """A violation is raised; that it can be, the next test shows."""
    found = [play(seed) for seed in range(first, first + 10)]
    assert {"spot", "on-demand"} <= {market for one in found for market in one.markets}


def test_a_driver_that_takes_a_job_for_half_as_long_is_late(monkeypatch):
    known = spot_market.assumed_seconds_to_go
    monkeypatch.setattr(spot_market, "assumed_seconds_to_go", lambda *job: known(*job) / 2)
    with pytest.raises(AssertionError, match="late, though on-demand was to be had"):
        for seed in (4, 13, *range(60)):
            play(seed)


def test_a_driver_that_forgets_when_it_last_moved_moves_too_often(monkeypatch):
    monkeypatch.setattr(policy, "_on_demand_price", lambda offers, hourly: 1.0)
    monkeypatch.setattr("cloudspot.controller.supply.needs.MARKET_MOVE_SECONDS", 0.0)
    monkeypatch.setattr("cloudspot.controller.supply.needs._is_cooling", lambda history, why, now: False)
    with pytest.raises(AssertionError, match="two moves to another market"):
        for seed in range(60):
            play(seed)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_no_job_is_late_in_any_of_many_markets():
    for seed in range(1000, 1000 + NUM_SOAK_HISTORIES):
        play(seed)
