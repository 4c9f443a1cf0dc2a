"""A market policy that a plugin brings: found by its name, given its options, and told of its mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support.records.situations import at

from cloudspot.calls.guard import Guard
from cloudspot.errors import PluginError, SpecError
from cloudspot.market import plugin_policy as module
from cloudspot.market.hazards import DEFAULT
from cloudspot.market.made_up import made_up
from cloudspot.market.plugin_policy import PluginPolicy, plugin_policy
from cloudspot.market.replay import SimulatedJob
from cloudspot.market.simulation import num_ticks_needed, simulate
from cloudspot.market.situation import NOTHING, ON_DEMAND

ROOT = Path(__file__).parents[2]


def capped(**options):
    return plugin_policy("capped", options, DEFAULT)


def test_the_page_shows_the_policy_that_is_tested_here():
    page = (ROOT / "docs" / "market.md").read_text()
    (shown,) = re.findall(r"```python\n(import msgspec.*?)```", page, re.DOTALL)
    module_text = (ROOT / "tests" / "plugins" / "toy" / "cloudspot_capped.py").read_text()
    assert module_text.partition('"""\n\n')[2] == shown


def test_it_chooses_by_its_options():
    dear = at(prices=[0.6])
    assert capped().choose(dear) == [NOTHING]
    assert capped(max_share=0.7).choose(dear) == [0]
    assert capped().choose(at(prices=[0.4, 0.3], is_up=[True, True])) == [1]
    assert capped().choose(at(hours=9.5, prices=[0.6])) == [ON_DEMAND]


def test_options_that_it_does_not_know_are_refused_by_name():
    with pytest.raises(SpecError, match=r"^spot\.options\.max_share: expected a number, got "):
        capped(max_share="half")
    with pytest.raises(SpecError, match=r"^spot\.options.*\bmax_price\b"):
        capped(max_price=1.0)


@pytest.mark.full
def test_a_simulation_plays_it_beside_the_others():
    job = SimulatedJob(length=12.0, deadline=24.0, overhead=0.1, spot_price=0.3)
    is_up = made_up(
        DEFAULT,
        num_ticks=num_ticks_needed(job, 0.1),
        tick_hours=0.1,
        num_zones=1,
        num_runs=50,
        seed=1,
    )
    found = simulate(
        is_up, 0.1, job, names=["capped", "on-demand", "optimum"], hazards=DEFAULT, max_wait_hours=0.1
    )
    costs = {name: one.mean_cost for name, one in found.items()}
    assert costs["optimum"] <= costs["capped"] < costs["on-demand"]
    assert found["capped"].late == 0


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (np.array([2]), "it chose 2; there are 2 zones"),
        (np.array([-3]), "it chose -3; there are 2 zones"),
        (np.array([1]), "it chose zone 1, which has no capacity"),
        (np.array([0, 0]), "it returned int64 of shape (2,), not (1,) integers"),
        (np.array([0.0]), "it returned float64 of shape (1,), not (1,) integers"),
        (None, "PluginPolicy.choose() returned None, not ndarray"),
        (ZeroDivisionError("by zero"), "PluginPolicy.choose() raised ZeroDivisionError: by zero"),
    ],
)
def test_a_choice_that_no_driver_can_follow_is_its_mistake(monkeypatch, choice, message):
    class Wrong(PluginPolicy):
        name = "wrong"

        def choose(self, situation):
            if isinstance(choice, Exception):
                raise choice
            return choice

    guard = Guard('market policy "wrong"')
    monkeypatch.setattr(module, "_maker_of", lambda name: lambda make: guard.enter(make(Wrong), PluginPolicy))
    with pytest.raises(PluginError) as error:
        plugin_policy("wrong", {}, DEFAULT).choose(at(is_up=[True, False]))
    assert str(error.value).startswith(f'market policy "wrong" is broken: {message}')


def test_a_zone_that_is_held_may_be_named_whatever_it_has_to_give():
    held = at(is_up=[True, False], held=1)
    assert capped().choose(held) == [1]


def test_a_name_that_no_plugin_brings_is_refused_with_advice():
    with pytest.raises(
        PluginError, match=r'^no market policy "caped" is installed; did you mean "capped"\?$'
    ):
        plugin_policy("caped", {}, DEFAULT)
