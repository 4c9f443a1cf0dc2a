"""The plan for a deadline, against a slow search that tries every choice in every state."""

from __future__ import annotations

from functools import cache
from math import exp, inf

import numpy as np
import pytest

from cloudspot.market import deadline_plan
from cloudspot.market.deadline_plan import NOTHING, ON_DEMAND, SPOT, WAIT_PRICE, Outlook, solve
from cloudspot.market.hazards import AGE_EDGES_HOURS, DEFAULT, NUM_AGES, mean_hours

STEP = 0.1
START_STEPS = 2


def outlook(**fields):
    """Return a job of ten hours, in steps of 0.1 h; a start takes two."""
    values = {
        "hazards": DEFAULT,
        "num_zones": 1,
        "elsewhere": 0.0,
        "deadline_hours": 10.0,
        "max_slack_hours": 0.6,
        "start_hours": START_STEPS * STEP,
        "move_hours": START_STEPS * STEP,
        "spot_price": 0.3,
    }
    return Outlook(**{**values, **fields})


def slow_search(one):
    """Return the least cost of each choice in a state: (step, holding, market, slack in steps) -> 3 costs."""
    last = round(one.deadline_hours / STEP)
    widths = [high - low for low, high in zip((0.0, *AGE_EDGES_HOURS), AGE_EDGES_HOURS, strict=False)]
    fresh = mean_hours(one.hazards.loss) / mean_hours(one.hazards.loss).sum()

    def older(age):
        """Yield the next ages with their chances."""
        share = 1 - exp(-STEP / widths[age]) if age < NUM_AGES - 1 else 0.0
        return [(age, 1 - share), (age + 1, share)] if share else [(age, 1.0)]

    def next_markets(market):
        """Return what comes without and with a loss of the own zone: (market, chance)."""
        age = market % NUM_AGES
        if market < NUM_AGES:
            found = 1 - exp(-one.hazards.gain[age] * STEP * one.num_zones**0.3)
            return [(NUM_AGES, found), *((to, (1 - found) * p) for to, p in older(age))], []
        lost = 1 - exp(-one.hazards.loss[age] * STEP)
        kept = [(to + NUM_AGES, (1 - lost) * p) for to, p in older(age)]
        gone = [(0, lost * (1 - one.elsewhere))]
        gone += [(to + NUM_AGES, lost * one.elsewhere * fresh[to]) for to in range(NUM_AGES)]
        return kept, gone

    @cache
    def least(step, holding, market, slack):
        if slack >= last - step:
            return 0.0  # there is no work left
        return min(choices(step, holding, market, slack))

    def hour(step, slack):
        return min(STEP, max(0.0, (last - step - slack) * STEP))

    def mean(markets, step, holding, slack):
        return sum(p * least(step, holding, to, slack) for to, p in markets if p)

    def wait(step, market, slack):
        if slack - 1 < START_STEPS:
            return inf
        kept, gone = next_markets(market)
        return WAIT_PRICE * STEP + mean(kept + gone, step + 1, NOTHING, slack - 1)

    def on_demand(step, market, slack):
        if slack < 0:
            return inf
        kept, gone = next_markets(market)
        return hour(step, slack) + mean(kept + gone, step + 1, ON_DEMAND, slack)

    def begin(step, market, slack):
        """Start on spot, which may be lost in each step of the start."""
        if market < NUM_AGES or slack - START_STEPS < START_STEPS:
            return inf
        cost, now = 0.0, {market: 1.0}
        for index in range(START_STEPS):
            after = {}
            for at, chance in now.items():
                kept, gone = next_markets(at)
                cost += chance * one.spot_price * STEP
                cost += chance * mean(gone, step + index + 1, NOTHING, slack - index - 1)
                for to, p in kept:
                    after[to] = after.get(to, 0.0) + chance * p
            now = after
        return cost + mean(now.items(), step + START_STEPS, SPOT, slack - START_STEPS)

    @cache
    def choices(step, holding, market, slack):
        if holding == SPOT and market >= NUM_AGES:
            kept, gone = next_markets(market)
            keep = one.spot_price * hour(step, slack)
            keep += mean(kept, step + 1, SPOT, slack) + mean(gone, step + 1, NOTHING, slack)
        elif holding == SPOT:
            keep = inf
        else:
            keep = begin(step, market, slack)
        bought = on_demand(step, market, slack if holding == ON_DEMAND else slack - START_STEPS)
        return wait(step, market, slack), bought, keep

    return choices


@pytest.mark.parametrize("spot_price", [0.3, 0.8])
@pytest.mark.parametrize(("num_zones", "elsewhere"), [(1, 0.0), (3, 0.6)])
@pytest.mark.parametrize("slack", [2, 4, 6])
def test_each_choice_costs_what_a_slow_search_finds(slack, num_zones, elsewhere, spot_price):
    one = outlook(num_zones=num_zones, elsewhere=elsewhere, spot_price=spot_price)
    plan, search = solve(one), slow_search(one)
    compared = 0
    for hours in (0.0, 5.0, 9.0):
        for holding in (NOTHING, ON_DEMAND, SPOT):
            markets = np.arange(NUM_AGES if holding == SPOT else 0, 2 * NUM_AGES)
            found = plan.costs(
                hours, np.full(len(markets), holding), markets, np.full(len(markets), slack * STEP)
            )
            for index, market in enumerate(markets):
                true = search(round(hours / STEP), holding, int(market), slack)
                for value, expected in zip(found[:, index], true, strict=True):
                    if expected == inf:
                        assert value > 1000
                    else:
                        assert value == pytest.approx(expected, rel=1e-6, abs=1e-9)
                        compared += 1
    assert compared > 30


@pytest.mark.parametrize("start_hours", [0.0, 0.02, 0.2, 1.0])
def test_no_plan_is_ever_late(start_hours):
    """Whatever is held, from the slack of one start on the best choice is not the price of being late."""
    plan = solve(outlook(start_hours=start_hours, move_hours=start_hours, max_slack_hours=5.0))
    slacks = np.array([start_hours, 1.5 * start_hours, 3.0 * start_hours + 0.3, 5.0])
    for hours in (0.0, 3.3, 8.0):
        for holding in (NOTHING, ON_DEMAND, SPOT):
            for market in range(NUM_AGES if holding == SPOT else 0, 2 * NUM_AGES):
                same = np.full(len(slacks), holding), np.full(len(slacks), market)
                assert (plan.costs(hours, *same, slacks).min(axis=0) <= 11.0).all()


def test_nothing_that_can_be_lost_is_chosen_without_the_slack_for_a_start():
    plan = solve(outlook(max_slack_hours=5.0))
    holding, market = np.array([NOTHING]), np.array([NUM_AGES])
    tight, ample = (plan.costs(5.0, holding, market, np.array([slack]))[:, 0] for slack in (0.39, 0.41))
    assert tight[SPOT] > 1000
    assert ample[SPOT] < 10
    # Even if it is hardly ever lost in the little time that is left.
    oldest = np.array([2 * NUM_AGES - 1])
    assert plan.costs(9.4, holding, oldest, np.array([0.35]))[SPOT, 0] > 1000
    waiting = [plan.costs(5.0, holding, market, np.array([slack]))[NOTHING, 0] for slack in (0.29, 0.35)]
    assert waiting[0] > 1000
    assert waiting[1] < 10


def test_more_slack_never_costs_more():
    plan = solve(outlook(max_slack_hours=5.0))
    slacks = np.linspace(0.2, 5.0, 60)
    for market in range(2 * NUM_AGES):
        found = plan.costs(0.0, np.full(60, NOTHING), np.full(60, market), slacks).min(axis=0)
        assert (np.diff(found) <= 1e-9).all()


def test_what_starts_beside_the_old_machine_costs_less_slack():
    """A move that stops the training for less than a start pays both machines meanwhile."""
    near = solve(outlook(move_hours=0.05, max_slack_hours=5.0))
    far = solve(outlook(max_slack_hours=5.0))
    state = (np.array([SPOT]), np.array([NUM_AGES + 1]), np.array([0.21]))
    moved, stopped = (plan.costs(3.0, *state)[ON_DEMAND, 0] for plan in (near, far))
    assert moved == pytest.approx(stopped, abs=0.05)
    tight = (np.array([SPOT]), np.array([NUM_AGES + 1]), np.array([0.1]))
    assert near.costs(3.0, *tight)[ON_DEMAND, 0] < 10
    assert far.costs(3.0, *tight)[ON_DEMAND, 0] > 1000


def test_the_same_question_is_solved_once():
    deadline_plan.solve.cache_clear()
    assert solve(outlook()) is solve(outlook())
    assert deadline_plan.solve.cache_info().misses == 1
