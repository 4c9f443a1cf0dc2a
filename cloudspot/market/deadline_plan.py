"""The least expected cost of a job until its deadline, for each of its possible states.

This module does no I/O.

The job holds nothing, an on-demand machine or a spot machine; the market is in one of eight states (capacity
or none, by age); and the job has some *slack*, which is the time to the deadline minus the remaining work and
the rest of the held machine's start. Waiting and each start use up slack; training does not. A job that
always has enough slack for one more start on demand cannot be late, so plans never go below that.

The dynamic program is solved backwards from the deadline, for each state and slack, using the hazards of the
market. Because slack, unlike work, remains constant while the job trains, the grid can be fine where
precision matters: near the length of one start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cloudspot.market.hazards import AGE_EDGES_HOURS, NUM_AGES, Hazards, mean_hours
from cloudspot.market.situation import Bools, Floats

NOTHING: Final = 0
ON_DEMAND: Final = 1
SPOT: Final = 2
_LATE: Final = 1e4
"""The cost of a state from which even on-demand machines miss the deadline."""
WAIT_PRICE: Final = 1e-3
"""The cost of an hour of waiting, so that of two equally cheap plans the one that ends earlier is chosen."""
_STEP_HOURS: Final = 0.1
_MIN_STEPS: Final = 100
_MAX_STEPS: Final = 600
_SLACKS_A_START: Final = 4
"""The number of grid points of slack within the length of one start."""


@dataclass(frozen=True)
class Outlook:
    """The parameters of a plan; times are hours, and prices are shares of the on-demand price."""

    hazards: Hazards
    num_zones: int
    """The number of zones with spot machines."""
    elsewhere: float
    """The probability that another zone has capacity when the job's own zone loses it."""
    deadline_hours: float
    max_slack_hours: float
    start_hours: float
    """The time during which a new machine is paid for but does not train yet."""
    move_hours: float
    """The pause in training if the next machine has already started when it takes over."""
    spot_price: float


@dataclass(frozen=True, eq=False)
class Plan:
    """The least expected cost of every state, in on-demand hours."""

    outlook: Outlook
    step_hours: float
    slacks: Floats
    """The grid, in ascending order; it includes 0 and the lengths of one and two starts."""
    values: Floats
    """An array of shape [steps + 1, 3 holdings, 8 market states, slacks], from now to the deadline."""
    model: _Model

    def costs(
        self, hours: float, holding: NDArray[np.intp], market: NDArray[np.intp], slack: Floats
    ) -> Floats:
        """Return the total cost of holding nothing, on-demand or spot next, as an array of shape [3, N].

        ``market`` is the age class of the market's state, plus ``NUM_AGES`` if there is capacity.
        """
        place = np.clip(np.searchsorted(self.slacks, slack, side="right") - 1, 0, len(self.slacks) - 2)
        low, high = self.slacks[place], self.slacks[place + 1]
        share = np.clip((slack - low) / (high - low), 0.0, 1.0)
        table = self._choices(hours)
        found: Floats = (1 - share) * table[:, holding, market, place]
        found += share * table[:, holding, market, place + 1]
        return found

    def _choices(self, hours: float) -> Floats:
        steps, num = hours / self.step_hours, self.model.num_start_steps
        index = int(min(steps, len(self.values) - num - 2))
        share = min(steps - index, 1.0)
        following = (1 - share) * self.values[index + 1 : index + num + 1]
        following += share * self.values[index + 2 : index + num + 2]
        return self.model.choices(following, self.outlook.deadline_hours - hours)


@lru_cache(maxsize=32)
def solve(outlook: Outlook) -> Plan:
    """Return the plan; recent plans are cached, because a driver asks for the same plan at each look."""
    num_steps = int(np.clip(np.ceil(outlook.deadline_hours / _STEP_HOURS), _MIN_STEPS, _MAX_STEPS))
    step = outlook.deadline_hours / num_steps
    model = _Model(outlook, step)
    # A start may extend beyond the deadline, where the cost is 0.
    values = np.zeros((num_steps + model.num_start_steps + 1, 3, 2 * NUM_AGES, len(model.slacks)))
    for index in range(num_steps - 1, -1, -1):
        left = outlook.deadline_hours - index * step
        values[index] = model.choices(values[index + 1 :], left).min(axis=0)
        values[index][:, :, model.slacks >= left - 1e-9] = 0.0
    return Plan(outlook, step, model.slacks, values, model)


class _Model:
    """One step of the job and of its market."""

    def __init__(self, outlook: Outlook, step: float) -> None:
        self._step = step
        self._outlook = outlook
        self.slacks = slacks = _grid(outlook)
        self.num_start_steps = num = max(1, round(outlook.start_hours / step))
        self._wait = _Shift(slacks, step)
        self._start = _Shift(slacks, outlook.start_hours)
        self._move = _Shift(slacks, outlook.move_hours)
        self._partly_started = [_Shift(slacks, outlook.start_hours * (one + 1) / num) for one in range(num)]
        self._partly_moved = [_Shift(slacks, outlook.move_hours * (one + 1) / num) for one in range(num)]
        self._free, self._kept, self._lost = _transitions(outlook, step)
        self._has_capacity: Bools = np.repeat([False, True], NUM_AGES)[:, np.newaxis]
        is_safe = slacks >= outlook.start_hours - 1e-9
        # A job that holds nothing, or a spot machine, needs enough slack for one start.
        self._unsafe = np.where(is_safe, 0.0, _LATE)

    def choices(self, following: Floats, left: float) -> Floats:
        """Return the total cost of each choice: [3 choices, 3 holdings, 8 market states, slacks].

        ``following`` holds the least cost one step later, two steps later and so on until a start has ended;
        ``left`` is the time to the deadline in hours.
        """
        outlook, soon = self._outlook, following[0]
        costs = np.empty((3, *soon.shape))
        run = np.clip(left - self.slacks, 0.0, self._step)
        nothing = self._free @ soon[NOTHING] + self._unsafe
        on_demand = self._free @ soon[ON_DEMAND] + run
        spot = self._kept @ soon[SPOT] + self._lost @ soon[NOTHING] + outlook.spot_price * run
        # A machine bought beside the old one starts while the old one still trains.
        beside = outlook.start_hours - outlook.move_hours
        costs[NOTHING, :] = self._wait(nothing) + WAIT_PRICE * self._step
        costs[ON_DEMAND, NOTHING] = self._start(on_demand)
        costs[ON_DEMAND, ON_DEMAND] = on_demand
        costs[ON_DEMAND, SPOT] = self._move(on_demand) + beside
        costs[SPOT, NOTHING] = self._started(following, self._partly_started, spot)
        costs[SPOT, ON_DEMAND] = self._started(following, self._partly_moved, spot)
        costs[SPOT, ON_DEMAND] += beside * outlook.spot_price
        costs[SPOT, SPOT] = np.where(self._has_capacity, spot, _LATE)
        return costs

    def _started(self, following: Floats, shifts: Sequence[_Shift], spot: Floats) -> Floats:
        """Return the cost of starting on spot, where the machine may be lost in any step of the start."""
        if self.num_start_steps == 1:
            cost = shifts[-1](spot + self._unsafe)
        else:
            cost, kept = 0.0, np.eye(2 * NUM_AGES)
            price = self._outlook.spot_price * self._step
            for later, shift in zip(following, shifts, strict=False):
                cost = cost + shift(kept @ self._lost @ later[NOTHING])
                cost = cost + price * kept.sum(axis=1, keepdims=True)
                kept = kept @ self._kept
            cost = cost + shifts[-1](kept @ following[self.num_start_steps - 1][SPOT] + self._unsafe)
        return np.where(self._has_capacity, cost, _LATE)


class _Shift:
    """Looks up values at a smaller slack."""

    def __init__(self, slacks: Floats, by: float) -> None:
        target = slacks - by
        self._place = np.clip(np.searchsorted(slacks, target + 1e-9, side="right") - 1, 0, len(slacks) - 2)
        low, high = slacks[self._place], slacks[self._place + 1]
        self._share = np.clip((target - low) / (high - low), 0.0, 1.0)
        self._late = np.where(target < -1e-9, _LATE, 0.0)

    def __call__(self, values: Floats) -> Floats:
        low, high = values[..., self._place], values[..., self._place + 1]
        found: Floats = low + self._share * (high - low) + self._late
        return found


def _grid(outlook: Outlook) -> Floats:
    """Return slacks that are dense up to the length of three starts, and then increasingly sparse."""
    start, largest = outlook.start_hours, max(outlook.max_slack_hours, 4 * outlook.start_hours)
    fine = np.arange(0, 3 * _SLACKS_A_START + 1) * (start / _SLACKS_A_START)
    coarse = [fine[-1]]
    width = start / _SLACKS_A_START
    while coarse[-1] < largest:
        width = min(max(width * 1.1, 0.04), 0.02 * coarse[-1] + 0.04)
        coarse.append(coarse[-1] + width)
    return np.unique([*fine, *coarse])


def _transitions(outlook: Outlook, step: float) -> tuple[Floats, Floats, Floats]:
    """Return a step's market transitions: all, and those without and with a loss of the job's zone."""
    loss, gain = np.array(outlook.hazards.loss), np.array(outlook.hazards.gain)
    ages: Floats = np.append(np.diff((0.0, *AGE_EDGES_HOURS)), np.inf)
    older = 1 - np.exp(-step / ages)
    upward = np.diag(1 - older) + np.diag(older[:-1], k=1)
    lost = 1 - np.exp(-loss * step)
    gained = 1 - np.exp(-gain * step * outlook.num_zones**0.3)
    up_hours, elsewhere = mean_hours(loss), outlook.elsewhere
    kept, gone, down = (np.zeros((2 * NUM_AGES, 2 * NUM_AGES)) for _ in range(3))
    kept[NUM_AGES:, NUM_AGES:] = (1 - lost)[:, np.newaxis] * upward
    gone[NUM_AGES:, NUM_AGES:] = (lost * elsewhere)[:, np.newaxis] * (up_hours / up_hours.sum())
    gone[NUM_AGES:, 0] = lost * (1 - elsewhere)
    down[:NUM_AGES, :NUM_AGES] = (1 - gained)[:, np.newaxis] * upward
    down[:NUM_AGES, NUM_AGES] = gained
    return kept + gone + down, kept, gone
