"""Ranges of a job's cost and end over many random markets. This module does no I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cloudspot.market.hazards import Hazards, usual_elsewhere
from cloudspot.market.made_up import made_up
from cloudspot.market.policies import ELSEWHERE, LOG_BADNESS
from cloudspot.market.replay import SimulatedJob, replay
from cloudspot.market.situation import ON_DEMAND, Floats, Ints, MarketPolicy, Situation

NUM_RUNS: Final = 200
_TICKS_A_LENGTH: Final = 150
_MIN_TICK_HOURS: Final = 1 / 60
_MAX_TICK_HOURS: Final = 0.5
_MAX_TICKS: Final = 1500


@dataclass(frozen=True)
class Zone:
    """A zone with spot machines."""

    hazards: Hazards
    price: float
    """The price as a share of the on-demand price."""


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """The results of the runs, in hours; ranges extend from the 10th to the 90th percentile.

    A bound is ``inf`` if the run at that percentile was still waiting when it was given up.
    """

    costs: tuple[float, float]
    """The range of costs, in on-demand hours."""
    ends: tuple[float, float]
    on_demand: float
    """The mean time on demand."""
    num_losses: float
    """The mean number of losses."""
    late_share: float


def play(
    zones: Sequence[Zone],
    policy: MarketPolicy,
    *,
    length: float,
    deadline: float,
    start: float,
    usual: Hazards,
    badness: float,
    only_spot: bool,
) -> Ranges:
    """Return the results of the policy; times are in hours, and ``badness`` is defined in ``Situation``.

    A job that accepts ``only_spot`` machines is given up after five times its length plus a day.
    """
    horizon = 5 * length + 24 if only_spot else min(deadline, 3 * length + 4)
    tick = min(max(length / _TICKS_A_LENGTH, _MIN_TICK_HOURS), _MAX_TICK_HOURS)
    tick = max(tick, horizon / _MAX_TICKS)
    markets = [
        made_up(
            zone.hazards,
            num_ticks=int(horizon / tick) + 1,
            tick_hours=tick,
            num_zones=1,
            num_runs=NUM_RUNS,
            seed=number,
        )
        for number, zone in enumerate(zones)
    ]
    prices = np.array([[zone.price] for zone in zones])
    job = SimulatedJob(length=length, deadline=deadline, overhead=start, spot_price=prices)
    played = replay(
        np.concatenate(markets, axis=1), tick, job, _Player(policy, horizon, usual, badness), usual
    )
    # The end and the cost of a spot-only job are unknown if it was given up.
    is_open = only_spot & (played.ends > horizon)
    return Ranges(
        costs=_range(np.where(is_open, np.inf, played.costs)),
        ends=_range(np.where(is_open, np.inf, played.ends)),
        on_demand=0.0 if only_spot else float(played.on_demand_hours.mean()),
        num_losses=float(played.reclaims.mean()),
        late_share=float(played.is_late.mean()),
    )


@dataclass(frozen=True)
class _Player:
    """Wraps a policy so that every run ends and plans are made for one market only, which is far faster."""

    policy: MarketPolicy
    horizon: float
    usual: Hazards
    badness: float

    def choose(self, situation: Situation) -> Ints:
        held, num_zones = situation.held, len(situation.is_up)
        if situation.hours >= self.horizon:
            return np.full_like(held, ON_DEMAND)
        likely = usual_elsewhere(self.usual, num_zones) if num_zones > 1 else 0.0
        # These are grid points for which plans exist. The deadline policy squares the likelihood first.
        elsewhere = min(ELSEWHERE, key=lambda one: abs(one - likely**2)) ** 0.5
        badness = 2.0 ** min(LOG_BADNESS, key=lambda one: abs(one - np.log2(self.badness)))
        return self.policy.choose(
            dataclasses.replace(
                situation, badness=np.full(len(held), badness), elsewhere=np.full(len(held), elsewhere)
            )
        )


def _range(values: Floats) -> tuple[float, float]:
    low, high = (np.quantile(values, share, method="nearest") for share in (0.1, 0.9))
    return float(low), float(high)
