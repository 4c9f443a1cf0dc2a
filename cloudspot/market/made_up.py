"""Random markets that follow given hazards, for use without a trace."""

from __future__ import annotations

import numpy as np

from cloudspot.market.hazards import AGE_EDGES_HOURS, NUM_AGES, Hazards, age_index, mean_hours
from cloudspot.market.situation import Bools


def made_up(
    hazards: Hazards, *, num_ticks: int, tick_hours: float, num_zones: int, num_runs: int, seed: int
) -> Bools:
    """Return whether there is capacity, as an array of shape [ticks, zones, runs]; the zones are independent.

    Each zone starts from its long-term distribution. The same arguments give the same market.
    """
    chance = np.random.default_rng(seed)
    shape = (num_zones, num_runs)
    rates = np.array([hazards.gain, hazards.loss])
    hours = np.array([mean_hours(hazards.gain), mean_hours(hazards.loss)])
    is_up = chance.random(shape) < hours[1].sum() / hours.sum()
    # Initial ages are drawn in proportion to the mean time in each age class.
    shares = hours.cumsum(axis=1) / hours.sum(axis=1, keepdims=True)
    index = (chance.random(shape)[..., np.newaxis] > shares[is_up.astype(int)]).sum(axis=-1)
    ages = np.array((0.0, *AGE_EDGES_HOURS))[index.clip(0, NUM_AGES - 1)]
    availability: Bools = np.empty((num_ticks, *shape), bool)
    for tick in range(num_ticks):
        availability[tick] = is_up
        changes = 1 - np.exp(-rates[is_up.astype(int), age_index(ages)] * tick_hours)
        is_changing = chance.random(shape) < changes
        is_up, ages = is_up ^ is_changing, np.where(is_changing, 0.0, ages + tick_hours)
    return availability
