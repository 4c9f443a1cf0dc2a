"""Replay a policy in known markets, tick by tick, for many runs at once. This module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloudspot.market.hazards import Hazards, age_index, usual_elsewhere
from cloudspot.market.situation import (
    NOTHING,
    ON_DEMAND,
    Bools,
    Floats,
    Ints,
    MarketPolicy,
    Situation,
    compared,
)

UNKNOWN_AGE_HOURS = 1.0
"""The assumed age of a zone's state when a job begins."""


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A job; times are in hours, and prices are shares of the on-demand price."""

    length: float
    """How long it would train on machines that are never reclaimed."""
    deadline: float
    overhead: float
    """The time before a new machine trains, including after a move."""
    spot_price: float | Floats
    """A single price, or an array of shape [Z, 1] with a price for each zone."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The results of each run; arrays are of shape [N]."""

    costs: Floats
    """The costs in on-demand hours."""
    ends: Floats
    """The end of each run, in hours since it began."""
    spot_hours: Floats
    on_demand_hours: Floats
    starts: Ints
    reclaims: Ints
    is_late: Bools


class _Watch:
    """Each run's observations of its zones since it began."""

    def __init__(self, is_up: Bools, usual: Hazards) -> None:
        num_zones, num_runs = is_up.shape
        self.ages = np.full((num_zones, num_runs), UNKNOWN_AGE_HOURS)
        self._usual = np.array([usual.gain, usual.loss])
        self._usual_elsewhere = usual_elsewhere(usual, num_zones)
        self._is_up = is_up
        self._losses, self._usual_losses = np.zeros((2, num_zones, num_runs))
        self._gains, self._usual_gains, self._had_another = np.zeros((3, num_runs))

    def see(self, is_up: Bools, tick_hours: float) -> None:
        """Add the state of the zones one tick later."""
        was_up, self._is_up = self._is_up, is_up
        usual = self._usual[was_up.astype(int), age_index(self.ages)] * tick_hours
        is_lost = was_up & ~is_up
        self._losses += is_lost
        self._usual_losses += np.where(was_up, usual, 0.0)
        self._gains += (is_up & ~was_up).sum(axis=0)
        self._usual_gains += np.where(was_up, 0.0, usual).sum(axis=0)
        self._had_another += (is_lost & is_up.any(axis=0)).sum(axis=0)
        self.ages = np.where(is_up == was_up, self.ages + tick_hours, 0.0)

    @property
    def loss_factors(self) -> Floats:
        return compared(self._losses, self._usual_losses, doubt=2.0)

    @property
    def badness(self) -> Floats:
        losses, usual = self._losses.sum(axis=0), self._usual_losses.sum(axis=0)
        return compared(losses, usual) / compared(self._gains, self._usual_gains)

    @property
    def elsewhere(self) -> Floats:
        return (self._had_another + 2.0 * self._usual_elsewhere) / (self._losses.sum(axis=0) + 2.0)


def replay(
    is_up: Bools, tick_hours: float, job: SimulatedJob, policy: MarketPolicy, usual: Hazards
) -> Replay:
    """Return the results of the policy; ``is_up`` has shape [ticks, zones, runs], from each run's start on.

    A machine that is lost has already delivered all its training. After the last tick there is no capacity.
    ``usual`` gives the hazards with which a run compares its observations.

    Raises:
        ValueError: the policy chose a zone without capacity.
    """
    _, num_zones, num_runs = is_up.shape
    prices = np.full((num_zones, num_runs), job.spot_price)
    held, runs = np.full(num_runs, NOTHING), np.arange(num_runs)
    work_left, starting = np.full(num_runs, job.length), np.zeros(num_runs)
    idle, costs, spot_hours, on_demand_hours = np.zeros((4, num_runs))
    starts, reclaims = np.zeros((2, num_runs), int)
    ends = np.full(num_runs, np.inf)
    watch = _Watch(is_up[0], usual)
    tick = 0
    while not np.isfinite(ends).all():
        now_up = is_up[tick] if tick < len(is_up) else np.zeros((num_zones, num_runs), bool)
        if tick:
            watch.see(now_up, tick_hours)
        is_going = np.isinf(ends)
        is_lost = (held >= 0) & ~now_up[held.clip(0), runs]
        reclaims += is_lost & is_going
        held, starting = np.where(is_lost, NOTHING, held), np.where(is_lost, 0.0, starting)
        situation = Situation(
            hours=tick * tick_hours,
            length=job.length,
            deadline=job.deadline,
            start_hours=job.overhead,
            move_hours=job.overhead,
            look_hours=tick_hours,
            work_left=work_left,
            starting=starting,
            held=held,
            idle_hours=idle,
            is_up=now_up,
            ages=watch.ages,
            loss_factors=watch.loss_factors,
            badness=watch.badness,
            elsewhere=watch.elsewhere,
            prices=prices,
        )
        choice = np.where(is_going, policy.choose(situation), NOTHING)
        if not now_up[choice.clip(0), runs][choice >= 0].all():
            raise ValueError("the policy chose a zone without capacity")
        is_new = (choice != held) & (choice != NOTHING)
        starts += is_new
        starting = np.where(is_new, job.overhead, np.where(choice == NOTHING, 0.0, starting))
        used = np.where(choice == NOTHING, 0.0, np.minimum(tick_hours, starting + work_left))
        work_left = work_left - np.maximum(used - starting, 0.0)
        starting = np.maximum(starting - used, 0.0)
        idle = np.where(choice == NOTHING, idle + tick_hours, 0.0)
        spot_hours += np.where(choice >= 0, used, 0.0)
        on_demand_hours += np.where(choice == ON_DEMAND, used, 0.0)
        costs += used * np.where(choice >= 0, prices[choice.clip(0), runs], 1.0)
        ends = np.where(is_going & (work_left <= 1e-9), tick * tick_hours + used, ends)
        held = choice
        tick += 1
    return Replay(
        costs=costs,
        ends=ends,
        spot_hours=spot_hours,
        on_demand_hours=on_demand_hours,
        starts=starts,
        reclaims=reclaims,
        is_late=ends > job.deadline + 1e-6,
    )
