"""Counts of what a market did, and the rates that they tell."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cloudspot.market.hazards import (
    AGE_EDGES_HOURS,
    DEFAULT,
    NUM_AGES,
    Hazards,
    Tally,
    age_index,
    estimate,
    expected_changes,
    hours_until_change,
    mean_hours,
    tally_of,
    total,
    usual_elsewhere,
)

RATES = (1.5, 0.7, 0.3, 0.2)


def rate_at(age):
    """Return the rate at an age, from the edges alone."""
    return RATES[sum(age >= edge for edge in AGE_EDGES_HOURS)]


def survival(begin, hours, factor=1.0, steps=20_000):
    """Return the chances that a state of this age lasts to the middles of many small steps, by summation."""
    width = hours / steps
    rates = np.array([rate_at(begin + (index + 0.5) * width) for index in range(steps)]) * factor
    passed = np.concatenate([[0.0], np.cumsum(rates * width)])
    return np.exp(-(passed[:-1] + passed[1:]) / 2), rates, width


def test_an_age_begins_at_its_edge():
    assert age_index(np.array([0.0, 0.24, 0.25, 1.0, 3.99, 4.0, 100.0])).tolist() == [0, 0, 1, 2, 2, 3, 3]


def test_a_trace_is_counted_by_the_age_of_its_state():
    # Down 2 h, up 6 h, down 1 h, up 1 h, in ticks of half an hour.
    is_up = np.array([False] * 4 + [True] * 12 + [False] * 2 + [True] * 2)
    tally = tally_of(is_up, 0.5)
    assert tally.down_hours == (1.0, 1.0, 1.0, 0.0)
    assert tally.up_hours == (1.0, 0.5, 3.0, 2.0)  # the last look tells of no time after it
    assert tally.gains == (0.0, 1.0, 1.0, 0.0)
    assert tally.losses == (0.0, 0.0, 0.0, 1.0)


def test_tallies_add_up():
    chance = np.random.default_rng(3)
    one, other = (tally_of(chance.random(500) < 0.5, 0.1) for _ in range(2))
    both = total([one, other])
    for field in ("losses", "up_hours", "gains", "down_hours"):
        sums = [a + b for a, b in zip(getattr(one, field), getattr(other, field), strict=True)]
        assert list(getattr(both, field)) == pytest.approx(sums)
    assert sum(both.up_hours) + sum(both.down_hours) == pytest.approx(2 * 49.9)
    assert total([]) == Tally()


def test_a_rate_is_changes_by_hours_once_there_are_many_hours():
    tally = Tally(
        losses=(2000, 1000, 500, 100), up_hours=(1e3,) * 4, gains=(10, 20, 30, 40), down_hours=(1e3,) * 4
    )
    found = estimate(tally)
    assert found.loss == pytest.approx((2.0, 1.0, 0.5, 0.1), rel=0.02)
    assert found.gain == pytest.approx((0.01, 0.02, 0.03, 0.04), rel=0.1)


def test_what_was_not_seen_is_the_priors_or_the_mean_of_its_state():
    assert estimate(Tally(), DEFAULT) == Hazards(pytest.approx(DEFAULT.loss), pytest.approx(DEFAULT.gain))
    seen = Tally(losses=(9, 0, 0, 0), up_hours=(3, 0, 0, 0))
    assert estimate(seen).loss == pytest.approx(((9 + 2 * 2.0) / (3 + 2), 2.0, 2.0, 2.0))
    halfway = estimate(seen, DEFAULT, weight_hours=3.0)
    assert halfway.loss == pytest.approx(((3 + DEFAULT.loss[0]) / 2, *DEFAULT.loss[1:]))


@pytest.mark.full
def test_expected_changes_are_the_integral_of_the_rate():
    ages = np.array([0.0, 0.2, 0.25, 0.9, 3.0, 10.0])
    for hours in (0.1, 2.0, 8.0):
        found = expected_changes(RATES, ages, hours)
        for age, value in zip(ages, found, strict=True):
            _, rates, width = survival(age, hours)
            assert value == pytest.approx(rates.sum() * width, rel=1e-3)


@pytest.mark.full
def test_the_hours_until_a_change_are_the_integral_of_the_survival():
    ages = np.array([0.0, 0.2, 0.25, 0.9, 3.0, 10.0])
    until = np.array([5.0, 0.1, 2.0, 8.0, 0.5, 20.0])
    factor = np.array([1.0, 2.0, 0.5, 1.0, 3.0, 0.1])
    found = hours_until_change(RATES, ages, until, factor)
    for age, hours, times, value in zip(ages, until, factor, found, strict=True):
        stays, _, width = survival(age, hours, times)
        assert value == pytest.approx(stays.sum() * width, rel=1e-3)


def test_the_mean_hours_of_an_age_are_those_of_the_survival_in_it():
    found = mean_hours(RATES)
    stays, _, width = survival(0.0, 60.0, steps=120_000)
    ages = (np.arange(len(stays)) + 0.5) * width
    for index, (begin, end) in enumerate(
        zip((0.0, *AGE_EDGES_HOURS), (*AGE_EDGES_HOURS, math.inf), strict=True)
    ):
        assert found[index] == pytest.approx(stays[(ages >= begin) & (ages < end)].sum() * width, rel=1e-3)
    assert len(found) == NUM_AGES


def test_a_single_zone_has_no_other_and_many_nearly_always_one():
    likely = [usual_elsewhere(DEFAULT, number) for number in (1, 2, 4, 9)]
    assert likely[0] == 0.0
    assert likely == sorted(likely)
    up, down = sum(mean_hours(DEFAULT.loss)), sum(mean_hours(DEFAULT.gain))
    assert likely[1] == pytest.approx(up / (up + down))
    assert 0.9 < likely[3] < 1.0


def test_scaled_hazards_are_multiplied():
    assert Hazards((1, 2, 3, 4), (4, 3, 2, 1)).scaled(2, 0.5) == Hazards((2, 4, 6, 8), (2, 1.5, 1, 0.5))
