"""Simulate the cost and the end of a job under each policy, over many runs. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from cloudspot.market.hazards import Hazards
from cloudspot.market.optimum import optimum
from cloudspot.market.plugin_policy import plugin_policy
from cloudspot.market.policies import Deadline, Greedy, OnDemand, SpotThenOnDemand, UniformProgress
from cloudspot.market.replay import Replay, SimulatedJob, replay
from cloudspot.market.situation import Bools, Floats, MarketPolicy

OPTIMUM: Final = "optimum"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a policy's runs: means, and the range from the 10th to the 90th percentile.

    Costs are shares of the on-demand cost. ``optimum``, which is only a bound, leaves the optional fields
    None.
    """

    mean_cost: float
    cost_range: tuple[float, float]
    late: int
    reclaims: float | None = None
    starts: float | None = None
    spot_hours: float | None = None
    on_demand_hours: float | None = None
    idle_hours: float | None = None
    """The mean time without a machine."""
    end_hours: float | None = None
    end_range: tuple[float, float] | None = None


def policies(hazards: Hazards, max_wait_hours: float) -> Mapping[str, MarketPolicy]:
    """Return the policies by name."""
    return {
        "on-demand": OnDemand(),
        "greedy": Greedy(hazards),
        "uniform-progress": UniformProgress(hazards),
        "spot-then-on-demand": SpotThenOnDemand(hazards, max_wait_hours),
        "deadline": Deadline(hazards),
    }


def num_ticks_needed(job: SimulatedJob, tick_hours: float) -> int:
    """Return the maximum number of market ticks that a run uses: those to the deadline, and two starts."""
    return int(np.ceil((job.deadline + 2 * job.overhead) / tick_hours - 1e-9)) + 1


def simulate(
    is_up: Bools,
    tick_hours: float,
    job: SimulatedJob,
    *,
    names: Iterable[str],
    hazards: Hazards,
    max_wait_hours: float,
) -> Mapping[str, Outcome]:
    """Return each policy's outcome, in the order of ``names``; ``is_up`` is as in ``replay``."""
    known = policies(hazards, max_wait_hours)
    outcomes = {}
    for name in names:
        if name == OPTIMUM:
            costs = optimum(is_up, tick_hours, job) / job.length
            outcomes[name] = Outcome(mean_cost=float(costs.mean()), cost_range=_range(costs), late=0)
        else:
            policy = known.get(name) or plugin_policy(name, {}, hazards)
            outcomes[name] = _outcome(replay(is_up, tick_hours, job, policy, hazards), job.length)
    return outcomes


def _outcome(runs: Replay, length: float) -> Outcome:
    return Outcome(
        mean_cost=float(runs.costs.mean() / length),
        cost_range=_range(runs.costs / length),
        late=int(runs.is_late.sum()),
        reclaims=float(runs.reclaims.mean()),
        starts=float(runs.starts.mean()),
        spot_hours=float(runs.spot_hours.mean()),
        on_demand_hours=float(runs.on_demand_hours.mean()),
        idle_hours=max(0.0, float((runs.ends - runs.spot_hours - runs.on_demand_hours).mean())),
        end_hours=float(runs.ends.mean()),
        end_range=_range(runs.ends),
    )


def _range(values: Floats) -> tuple[float, float]:
    return float(np.percentile(values, 10)), float(np.percentile(values, 90))
