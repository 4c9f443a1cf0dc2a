"""The built-in market policies: simple rules, and a plan for the deadline. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cloudspot.market import deadline_plan
from cloudspot.market.deadline_plan import Outlook, Plan, solve
from cloudspot.market.hazards import NUM_AGES, Hazards, age_index, expected_changes, hours_until_change
from cloudspot.market.situation import NOTHING, ON_DEMAND, Bools, Floats, Ints, Situation

ELSEWHERE = (0.0, 0.3, 0.55, 0.75, 0.9, 1.0)
"""The probabilities of capacity in another zone for which plans are made."""
LOG_BADNESS = (-1.5, 0.0, 1.5)
"""The values of ``badness`` for which plans are made, as binary logarithms."""
MAX_ZONES = 9
"""The maximum number of zones that counts for the return of capacity; larger numbers were not measured."""
OUTLOOK_HOURS = 8.0
"""The period over which zones are compared by their expected losses."""


@dataclass(frozen=True)
class OnDemand:
    """Chooses only on-demand machines."""

    def choose(self, situation: Situation) -> Ints:
        """Return on-demand."""
        return np.full_like(situation.held, ON_DEMAND)


@dataclass(frozen=True)
class Greedy:
    """Chooses spot whenever it is available, and else waits until only on-demand meets the deadline."""

    hazards: Hazards

    def choose(self, situation: Situation) -> Ints:
        """Return spot, or ``NOTHING``."""
        zones = best_zones(situation, self.hazards)
        held = situation.held
        return _in_time(situation, np.where(held == NOTHING, zones, held))


@dataclass(frozen=True)
class SpotThenOnDemand:
    """Chooses on-demand when spot was unavailable for a while; returns to spot when that pays off."""

    hazards: Hazards
    max_wait: float
    """Hours."""

    def choose(self, situation: Situation) -> Ints:
        """Return spot if it is available; otherwise the held machine, or on-demand after the wait."""
        zones, held = best_zones(situation, self.hazards), situation.held
        without = np.where(situation.idle_hours >= self.max_wait, ON_DEMAND, NOTHING)
        without = np.where(zones != NOTHING, zones, without)
        returning = np.where(return_pays(situation, zones, self.hazards), zones, ON_DEMAND)
        return _in_time(situation, np.where(held >= 0, held, np.where(held == ON_DEMAND, returning, without)))


@dataclass(frozen=True)
class UniformProgress:
    """Keeps the work done in proportion to the time passed; see "Can't Be Late" (NSDI 2024), section 4.

    Spot is chosen whenever it is available, and held until it is lost. Without spot, on-demand is chosen when
    the job is behind schedule, and released when the job is two starts ahead of schedule and spot is
    available.
    """

    hazards: Hazards

    def choose(self, situation: Situation) -> Ints:
        """Return the choice that keeps the job on schedule."""
        pace = situation.length / situation.deadline
        done = situation.length - situation.work_left
        zones, held = best_zones(situation, self.hazards), situation.held
        is_behind = done < pace * situation.hours - 1e-9
        is_ahead = done >= pace * (situation.hours + 2 * situation.start_hours)
        without = np.where(zones != NOTHING, zones, np.where(is_behind, ON_DEMAND, NOTHING))
        on_demand = np.where((zones != NOTHING) & is_ahead, zones, ON_DEMAND)
        return _in_time(situation, np.where(held >= 0, held, np.where(held == ON_DEMAND, on_demand, without)))


@dataclass(frozen=True)
class Deadline:
    """Finishes by the deadline at the least expected cost: see ``deadline_plan``."""

    hazards: Hazards

    def choose(self, situation: Situation) -> Ints:
        """Return the cheapest choice that keeps enough slack for a start on demand."""
        zones, held = best_zones(situation, self.hazards), situation.held
        zone = np.where(held >= 0, held, zones)
        age = np.take_along_axis(situation.ages, np.maximum(zone, 0)[np.newaxis], axis=0)[0]
        down = situation.ages.min(axis=0)
        market = np.where(zone != NOTHING, age_index(age) + NUM_AGES, age_index(down))
        holding = np.where(held >= 0, deadline_plan.SPOT, held - NOTHING)
        slack = situation.slack
        nothing, on_demand, spot = self._costs(situation, holding, market)
        nothing = np.where(slack - situation.look_hours >= situation.start_hours, nothing, np.inf)
        spot = np.where(zone != NOTHING, spot, np.inf)
        choices = np.stack([np.full_like(held, NOTHING), np.full_like(held, ON_DEMAND), zone])
        found = np.argmin([nothing, on_demand, spot], axis=0)
        return np.take_along_axis(choices, found[np.newaxis], axis=0)[0]

    def _costs(self, situation: Situation, holding: Ints, market: Ints) -> Floats:
        """Return the total cost of each choice, as an array of shape [3, N], interpolated between plans."""
        totals = np.zeros((3, len(holding)))
        several = len(situation.is_up) > 1
        # Zones fail one after another, so a zone that is up when another one is lost may not last for a whole
        # start.
        lasting = situation.elsewhere**2
        for elsewhere, likely in _nearest(lasting, ELSEWHERE if several else (0.0, 1.0)):
            for log_badness, weight in _nearest(np.log2(situation.badness), LOG_BADNESS):
                share = likely * weight
                (runs,) = np.nonzero(share > 1e-9)
                if len(runs):
                    plan = self._plan(situation, elsewhere, 2.0**log_badness)
                    costs = plan.costs(situation.hours, holding[runs], market[runs], situation.slack[runs])
                    totals[:, runs] += share[runs] * costs
        return totals

    def _plan(self, situation: Situation, elsewhere: float, badness: float) -> Plan:
        return solve(
            Outlook(
                hazards=self.hazards.scaled(badness**0.5, badness**-0.5),
                num_zones=min(len(situation.is_up), MAX_ZONES),
                elsewhere=elsewhere,
                deadline_hours=situation.deadline,
                max_slack_hours=max(0.0, situation.deadline - situation.length),
                start_hours=situation.start_hours,
                move_hours=situation.move_hours,
                # The price is rounded so that small changes do not require a new plan.
                spot_price=round(float(situation.prices.min(axis=0).mean()), 3),
            )
        )


def _nearest(values: Floats, grid: Sequence[float]) -> Iterator[tuple[float, Floats]]:
    """Yield each point of the grid with its weight for each value, for linear interpolation."""
    inside = np.clip(values, grid[0], grid[-1])
    for index, point in enumerate(grid):
        yield point, np.interp(inside, grid, np.eye(len(grid))[index])


def best_zones(situation: Situation, hazards: Hazards) -> Ints:
    """Return, for each run, the cheapest zone that is up, including the cost of starts after losses.

    The result is ``NOTHING`` if no zone is up.
    """
    losses = situation.loss_factors * expected_changes(hazards.loss, situation.ages, OUTLOOK_HOURS)
    cost = situation.prices * (1 + situation.start_hours * losses / OUTLOOK_HOURS)
    zones = np.argmin(np.where(situation.is_up, cost, np.inf), axis=0)
    return np.where(situation.is_up.any(axis=0), zones, NOTHING)


def return_pays(situation: Situation, zones: Ints, hazards: Hazards) -> Bools:
    """Return for which runs a return to spot in these zones pays off; False for ``NOTHING``.

    Returning saves the price difference until the expected loss of the machine or the end of the job. It
    costs a start, which either is paid in addition to on-demand or pauses the training, and another start if
    the machine is lost.
    """
    picked, runs = zones.clip(0), np.arange(len(zones))
    price, age = situation.prices[picked, runs], situation.ages[picked, runs]
    factor = situation.loss_factors[picked, runs]
    kept = hours_until_change(hazards.loss, age, situation.work_left, factor)
    beside = situation.start_hours - situation.move_hours
    lost = 1 - np.exp(-factor * expected_changes(hazards.loss, age, situation.work_left))
    cost = beside * price + situation.move_hours + lost * situation.start_hours
    found: Bools = (zones != NOTHING) & ((1 - price) * kept > cost)
    return found


def _in_time(situation: Situation, choice: Ints) -> Ints:
    """Return the choice, or on-demand where another loss would make the job late; spot is held until lost."""
    margin = situation.hours_left - situation.look_hours - situation.work_left - 2 * situation.start_hours
    held = situation.held
    return np.where(margin < 1e-9, np.where(held >= 0, held, ON_DEMAND), choice)
