"""The rates at which spot capacity is lost and returns, and the counts from which they are estimated.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

AGE_EDGES_HOURS: Final = (0.25, 1.0, 4.0)
"""The boundaries between age classes: a zone that has just changed is more likely to change again."""
NUM_AGES: Final = len(AGE_EDGES_HOURS) + 1
OWN_WEIGHT_HOURS: Final = 2.0
"""A zone is assumed to resemble the others until it has been observed for about this long at an age."""

_Counts = Annotated[tuple[float, ...], msgspec.Meta(min_length=NUM_AGES, max_length=NUM_AGES)]
_ZERO: Final = (0.0,) * NUM_AGES


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The observed changes of a market and the time observed, by the age of its state.

    Tallies can be added: the tally of two jobs, or of two zones, is the sum of both.
    """

    losses: _Counts = _ZERO
    """The number of changes from capacity to none."""
    up_hours: _Counts = _ZERO
    gains: _Counts = _ZERO
    """The number of changes from no capacity to some."""
    down_hours: _Counts = _ZERO

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            losses=_sum(self.losses, other.losses),
            up_hours=_sum(self.up_hours, other.up_hours),
            gains=_sum(self.gains, other.gains),
            down_hours=_sum(self.down_hours, other.down_hours),
        )


class Hazards(msgspec.Struct, frozen=True):
    """The expected changes per hour, by the age of the state."""

    loss: _Counts
    gain: _Counts

    def scaled(self, loss: float, gain: float) -> Hazards:
        """Return the hazards multiplied by the two factors."""
        return Hazards(tuple(loss * one for one in self.loss), tuple(gain * one for one in self.gain))


def age_index(age_hours: float | NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the age class of each age, where 0 is the youngest."""
    return np.searchsorted(AGE_EDGES_HOURS, age_hours, side="right")


def total(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of the tallies."""
    return sum(tallies, Tally())


def estimate(tally: Tally, prior: Hazards | None = None, weight_hours: float = OWN_WEIGHT_HOURS) -> Hazards:
    """Return the hazards estimated from a tally; the prior counts as ``weight_hours`` of observation.

    Without a prior, the mean over all ages of the state replaces it.
    """
    return Hazards(
        _rates(tally.losses, tally.up_hours, prior.loss if prior else None, weight_hours),
        _rates(tally.gains, tally.down_hours, prior.gain if prior else None, weight_hours),
    )


def _rates(
    changes: Sequence[float], hours: Sequence[float], prior: Sequence[float] | None, weight: float
) -> tuple[float, ...]:
    if prior is None:
        prior = ((sum(changes) + 1.0) / (sum(hours) + 2.0),) * NUM_AGES
    return tuple(
        (seen + weight * before) / (watched + weight)
        for seen, watched, before in zip(changes, hours, prior, strict=True)
    )


def _sum(left: Sequence[float], right: Sequence[float]) -> tuple[float, ...]:
    return tuple(one + other for one, other in zip(left, right, strict=True))


def tally_of(is_up: NDArray[np.bool_], tick_hours: float) -> Tally:
    """Return the tally of one zone's trace, which has the shape [ticks]."""
    changes: NDArray[np.intp] = np.flatnonzero(np.diff(is_up)) + 1
    newest: NDArray[np.intp] = np.zeros(len(is_up), int)
    newest[changes] = changes
    ages = age_index((np.arange(len(is_up)) - np.maximum.accumulate(newest)) * tick_hours)[:-1]
    is_changing, state = is_up[1:] != is_up[:-1], is_up[:-1]

    def count(mask: NDArray[np.bool_]) -> tuple[float, ...]:
        return tuple(float(one) for one in np.bincount(ages[mask], minlength=NUM_AGES))

    def hours(mask: NDArray[np.bool_]) -> tuple[float, ...]:
        return tuple(one * tick_hours for one in count(mask))

    return Tally(
        losses=count(state & is_changing),
        up_hours=hours(state),
        gains=count(~state & is_changing),
        down_hours=hours(~state),
    )


def expected_changes(
    rates: Sequence[float], ages_hours: NDArray[np.float64], hours: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the expected number of changes from each age on, if the state lasted for ``hours``."""
    edges = np.array((0.0, *AGE_EDGES_HOURS))
    sums = np.concatenate([[0.0], np.cumsum(np.diff(edges) * rates[:-1])])

    def up_to(age: NDArray[np.float64]) -> NDArray[np.float64]:
        index = age_index(age)
        return sums[index] + (age - edges[index]) * np.array(rates)[index]

    return up_to(ages_hours + hours) - up_to(ages_hours)


def changes_within(rates: Sequence[float], hours: float) -> float:
    """Return the expected number of changes in the first ``hours`` of a state, if it lasted that long."""
    return float(expected_changes(rates, np.zeros(1), hours)[0])


def hours_until_change(
    rates: Sequence[float],
    ages_hours: NDArray[np.float64],
    until_hours: NDArray[np.float64],
    factor: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the mean remaining time of a state at each age, counted up to ``until_hours``.

    The rates are multiplied by ``factor``. All arrays are of shape [N].
    """
    hours, reached, age = np.zeros_like(ages_hours), np.ones_like(ages_hours), ages_hours
    left = until_hours
    for rate, end in zip(rates, (*AGE_EDGES_HOURS, np.inf), strict=True):
        spent = np.clip(np.minimum(left, end - age), 0.0, None)
        stays = np.exp(-rate * factor * spent)
        hours = hours + reached * (1 - stays) / (rate * factor)
        reached, age, left = reached * stays, age + spent, left - spent
    return hours


def usual_elsewhere(hazards: Hazards, num_zones: int) -> float:
    """Return the probability that another zone has capacity when one zone loses it.

    The exponent reflects that zones partly fail together. It fits one machine type in nine zones of a large
    cloud in 2023 (skypilot-org/spot-traces; docs/market.md names the data set).
    """
    up, down = mean_hours(hazards.loss).sum(), mean_hours(hazards.gain).sum()
    return float(1 - (down / (up + down)) ** ((num_zones - 1) ** 0.8))


def mean_hours(rates: Sequence[float]) -> NDArray[np.float64]:
    """Return the mean time that a state spends in each age class before it changes."""
    reached, hours = 1.0, []
    for rate, begin, end in zip(rates, (0.0, *AGE_EDGES_HOURS), (*AGE_EDGES_HOURS, np.inf), strict=True):
        stays = np.exp(-rate * (end - begin))
        hours.append(reached * (1 - stays) / rate)
        reached *= stays
    return np.array(hours)


DEFAULT: Final = estimate(
    Tally(
        losses=(73, 54, 44, 31),
        up_hours=(42.6, 76.2, 142.5, 169.9),
        gains=(83, 70, 37, 14),
        down_hours=(42.2, 59.0, 75.0, 102.3),
    )
)
"""The hazards assumed for an unknown market, measured with one V100 machine in each of four zones of a large
cloud over 7.4 days in April 2023. Source: github.com/skypilot-org/spot-traces; docs/market.md names the data
set."""
