"""The open questions: each has an id of its own, and what the emulations do otherwise is asked for by one."""

import importlib
import re

import pytest

from cloudspot.emulation.cloud import EmulatedCloud
from cloudspot.registry import sandbox_class
from cloudspot_prove.clouds import CLOUDS
from cloudspot_prove.questions import STEPS, questions_of


@pytest.mark.parametrize("provider", CLOUDS)
def test_each_question_has_an_id_of_its_own_and_steps_that_exist(provider):
    found = questions_of(provider)
    assert len({one.id for one in found}) == len(found)
    assert all(re.fullmatch(rf"{provider}-[a-z-]+", one.id) for one in found)
    assert all(one.steps and set(one.steps) <= set(STEPS) for one in found)
    assert all(one.text.endswith(("?", ".", "`", "minutes.")) or "?" in one.text for one in found)


@pytest.mark.parametrize("provider", CLOUDS)
def test_each_answer_is_to_a_question(provider):
    answers = importlib.import_module(f"cloudspot_prove.answers.{provider}").ANSWERS
    assert set(answers) <= {one.id for one in questions_of(provider)}


@pytest.mark.parametrize("provider", CLOUDS)
def test_what_an_emulation_does_otherwise_is_asked_for_by_a_question_that_is_answered(provider):
    answers = importlib.import_module(f"cloudspot_prove.answers.{provider}").ANSWERS
    contraries = sandbox_class(provider, EmulatedCloud).contraries
    assert contraries
    assert {one.question for one in contraries.values()} <= set(answers)


def test_there_are_fifteen_contraries_at_least():
    assert sum(len(sandbox_class(one, EmulatedCloud).contraries) for one in CLOUDS) >= 15
