"""Machines that die without a word while they train a sharded model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.jobs.acting_user import User
from support.jobs.deadly_training import Training, rescue_of
from support.jobs.first_in_full import first_in_full

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]
STEPS = 30
NUM_RANKS = 4


class ShardedTraining(Training):
    """A job of the script in ``jobs/survivors_of_shards``: two machines with two processes each."""

    job = "survivors_of_shards"
    patience = 300.0

    def losses(self, rank: int) -> list[Any]:
        """Return the steps that a rank has made, each with its loss, in the order in which it made them."""
        paths = sorted(self.trace.glob(f"*-{rank}.losses"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[list[Any]]]:
    """``losses(layout)``: those of each rank's steps, where nothing disturbs them."""
    known: dict[str, list[list[Any]]] = {}

    def find(layout: str) -> list[list[Any]]:
        if layout not in known:
            user = User(tmp_path_factory.mktemp("calm"))
            calm = ShardedTraining(user, "calm", LAYOUT=layout, SECONDS=0)
            calm.end()
            assert "if a machine is lost without notice" not in user.output(calm.cli)
            known[layout] = [calm.losses(rank) for rank in range(NUM_RANKS)]
            user.close()
        return known[layout]

    return find


@pytest.mark.parametrize("machine", first_in_full(0, 1))
@pytest.mark.parametrize("layout", ["hsdp", "tp"])
def test_a_machine_costs_no_step_if_another_has_a_replica_of_each_of_its_parts(
    user: User, losses: Callable[[str], list[list[Any]]], layout: str, machine: int
) -> None:
    hit = ShardedTraining(user, "hit", LAYOUT=layout)
    hit.await_step(10)
    hit.kill_machine(2 * machine)
    hit.end()
    hit.check_no_step_twice()
    rescue = rescue_of(hit)
    assert (rescue.lost, rescue.is_exact) == ((2 * machine, 2 * machine + 1), True)
    for rank, calm in enumerate(losses(layout)):
        made = hit.losses(rank)
        assert len(made) >= STEPS - 1  # the last one before the death may be unnoted
        assert made == [one for one in calm if one[0] in {step for step, _ in made}]


def test_a_model_that_is_sharded_over_all_ranks_says_so_and_goes_on_from_its_interval_saves(
    user: User,
) -> None:
    hit = ShardedTraining(user, "hit", sets=('checkpoint.interval="2s"',), LAYOUT="fsdp")
    hit.await_step(20)
    hit.kill_machine(2)
    hit.end()
    told = user.output(hit.cli)
    assert (
        "if a machine is lost without notice, the steps since the newest checkpoint are repeated: each rank holds a part"
        " of the state"
    ) in told
    assert "nothing was saved after the loss: only ranks that were lost held a part of the state" in told
    history = user.history("hit")
    assert not any(one.rescue for one in history.commits)
    resumed_at = min(min(made) for made in hit.steps(len(history.generations)).values())
    assert resumed_at > 0
    assert resumed_at in {one.step for one in history.commits}
