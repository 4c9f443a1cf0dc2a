"""Machines that die without a word while other frameworks drive the loop, or the script fetches its own batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.jobs.acting_user import User
from support.jobs.deadly_training import Training, rescue_of
from support.jobs.first_in_full import first_in_full

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]
LOOPS = ["steps", "accelerate", "transformers", "lightning", "nccl"]
STEPS = 60
"""Of two ranks; three epochs of 160 samples in batches of 4 each."""


class LoopTraining(Training):
    """A job of the script in ``jobs/survivors_of_loops``."""

    job = "survivors_of_loops"
    patience = 400.0
    """Each start imports a large library."""

    def samples(self, rank: int) -> list[Any]:
        """Return the steps that a rank has made and the samples of each, in the order in which it made them."""
        paths = sorted(self.trace.glob(f"*-{rank}.samples"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[list[Any]]]:
    """``samples(loop)``: those of each rank's steps, where nothing disturbs them."""
    known: dict[str, list[list[Any]]] = {}

    def find(loop: str) -> list[list[Any]]:
        if loop not in known:
            user = User(tmp_path_factory.mktemp("calm"))
            calm = LoopTraining(user, "calm", LOOP=loop, SECONDS=0)
            calm.end()
            assert "if a machine is lost without notice" not in user.output(calm.cli)
            known[loop] = [calm.samples(rank) for rank in range(2)]
            user.close()
        return known[loop]

    return find


@pytest.mark.parametrize("rank", first_in_full(0, 1))
@pytest.mark.parametrize("loop", LOOPS)
def test_a_lost_rank_goes_on_with_the_samples_that_it_would_have_had(
    user: User, samples: Callable[[str], list[list[Any]]], loop: str, rank: int
) -> None:
    hit = LoopTraining(user, "hit", LOOP=loop)
    hit.await_step(27)  # in the second epoch
    hit.kill_machine(rank)
    hit.end()
    hit.check_no_step_twice()
    assert rescue_of(hit).lost == (rank,)
    for each, calm in enumerate(samples(loop)):
        made = hit.samples(each)
        assert [step for step, _ in calm] == [*range(STEPS)]
        # The rank that was killed may have made the last step before without noting it.
        assert len(made) >= STEPS - 1
        assert made == [one for one in calm if one[0] in {step for step, _ in made}]


def test_of_ranks_that_hold_different_weights_nothing_is_saved_even_if_one_alone_is_left(user: User) -> None:
    hit = LoopTraining(user, "hit", LOOP="local_sgd")
    hit.await_step(10)
    hit.kill_machine(1)
    hit.end()
    assert "nothing was saved after the loss: the ranks have not held the same weights" in user.output(
        hit.cli
    )
    assert [(one.step, one.rescue) for one in user.history("hit").commits] == [(STEPS, None)]


def test_a_watchdog_that_ends_the_last_survivor_costs_the_steps_since_the_newest_checkpoint(
    user: User,
) -> None:
    """Where the job file asks NCCL for it."""
    hit = LoopTraining(user, "hit", sets=('run.env.TORCH_NCCL_ASYNC_ERROR_HANDLING="3"',), LOOP="nccl")
    hit.await_step(10)
    hit.kill_machine(1)
    hit.end()
    assert [(one.step, one.rescue) for one in user.history("hit").commits] == [(STEPS, None)]
