"""Markets that follow given hazards."""

from __future__ import annotations

import numpy as np
import pytest

from cloudspot.market.hazards import DEFAULT, Hazards, estimate, mean_hours, tally_of, total
from cloudspot.market.made_up import made_up


@pytest.mark.full
def test_a_made_up_market_tells_the_hazards_that_it_was_made_of():
    hazards = Hazards((1.5, 0.8, 0.4, 0.1), (0.9, 0.6, 0.3, 0.2))
    is_up = made_up(hazards, num_ticks=40_000, tick_hours=0.01, num_zones=1, num_runs=60, seed=0)
    tally = total(tally_of(is_up[:, 0, run], 0.01) for run in range(60))
    found = estimate(tally, weight_hours=0.0)
    assert found.loss == pytest.approx(hazards.loss, rel=0.06)
    assert found.gain == pytest.approx(hazards.gain, rel=0.06)


def test_it_begins_as_if_it_had_gone_on_for_long():
    is_up = made_up(DEFAULT, num_ticks=2, tick_hours=0.05, num_zones=2, num_runs=20_000, seed=5)
    up, down = mean_hours(DEFAULT.loss).sum(), mean_hours(DEFAULT.gain).sum()
    assert is_up[0].mean() == pytest.approx(up / (up + down), abs=0.01)
    # Old states among them: far fewer change than of those that have just begun.
    lost = (is_up[0] & ~is_up[1]).sum() / is_up[0].sum()
    assert lost == pytest.approx(0.05 * sum(np.array(DEFAULT.loss) * mean_hours(DEFAULT.loss)) / up, rel=0.15)


def test_zones_and_runs_know_nothing_of_one_another():
    is_up = made_up(DEFAULT, num_ticks=400, tick_hours=0.25, num_zones=2, num_runs=300, seed=1).astype(float)
    one, other = is_up[::40, 0].ravel(), is_up[::40, 1].ravel()
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.08


def test_the_same_seed_gives_the_same_market():
    same = {"num_ticks": 50, "tick_hours": 0.1, "num_zones": 2, "num_runs": 5}
    first, again, other = (made_up(DEFAULT, **same, seed=seed) for seed in (7, 7, 8))
    assert first.shape == (50, 2, 5)
    assert (first == again).all()
    assert (first != other).any()
