"""A job that was reclaimed or killed ends with the very weights of one that was not (protocol P6)."""

from __future__ import annotations

import random

import pytest
from support.jobs.acting_user import User

from cloudspot.jobstore.layout import keys

SETS = ("procs_per_node=2", 'run.env.TINY_EPOCHS="12"', 'run.env.TINY_STEP_SECONDS="0.02"')
NUM_STEPS = 12 * 10
SOAK_SEEDS = tuple(range(100, 120))


def planned(after_steps: int, notice: str) -> str:
    """Return the override that reclaims the first machine at a step."""
    return f'providers.local.reclaims=[{{launch=1, after_steps={after_steps}, notice="{notice}"}}]'


@pytest.fixture
def weights(undisturbed) -> str:
    """The weights' hash of the job that nothing disturbs."""
    shown = undisturbed(SETS)
    assert shown["steps_total"] == NUM_STEPS
    return shown["final"]["weights_sha256"]


def check(user: User, weights: str, seed: int, notice: str) -> None:
    """Reclaim the job at a random step, and compare its end with the undisturbed one's."""
    step = random.Random(seed).randrange(2, NUM_STEPS - 40)
    check_reclaim(user, weights, step, notice)


def check_reclaim(user: User, weights: str, step: int, notice: str, *sets: str) -> None:
    user.run_tiny("hit", sets=(*SETS, *sets, planned(step, notice)))
    shown = user.show("hit", "--verify")
    assert shown["state"] == "succeeded"
    assert [one["name"] for one in shown["nodes"]] == ["1.0", "2.0"]
    assert shown["last_commit"]["verified"] is True
    assert shown["final"]["weights_sha256"] == weights
    if notice != "0s":
        assert shown["steps_lost"] == 0
        assert len(shown["notices"]) == 1


@pytest.mark.full
def test_two_nodes_of_which_one_has_a_notice_change_no_bit(user: User, undisturbed) -> None:
    sets = ("nodes=2", 'run.env.TINY_EPOCHS="6"')
    calm = undisturbed(sets)
    user.run_tiny("hit", sets=(*sets, planned(20, "8s")))
    shown = user.show("hit", "--verify")
    assert shown["state"] == "succeeded"
    trained = [one["nodes"] for one in shown["generations"] if not one["is_holding"]]
    assert trained == [["1.0", "1.1"], ["1.1", "2.0"]]
    assert (shown["steps_lost"], len(shown["notices"])) == (0, 1)
    assert shown["last_commit"]["verified"] is True
    assert shown["final"]["weights_sha256"] == calm["final"]["weights_sha256"]


@pytest.mark.full
def test_a_reclaim_with_notice_changes_no_bit(user: User, weights: str) -> None:
    check(user, weights, 1, "8s")


@pytest.mark.full
def test_a_notice_in_a_long_evaluation_of_one_rank_loses_no_step(user: User, weights: str) -> None:
    """The other rank waits for it in a collective, and is ended when its part is sealed."""
    check_reclaim(user, weights, 40, "8s", 'run.env.TINY_EVALUATE_AT="40"')


@pytest.mark.full
def test_a_machine_killed_without_notice_resumes_from_a_compressed_checkpoint(
    user: User, weights: str
) -> None:
    sets = ('checkpoint.compression="zstd"', 'checkpoint.interval="300ms"')
    check_reclaim(user, weights, 70, "0s", *sets)
    assert user.history("hit").generations[-1].restore_from is not None
    listed = [meta.key for meta in user.store.list_objects(keys.checkpoints_prefix("hit"))]
    assert any(key.endswith(".z") for key in listed)


@pytest.mark.soak
def test_a_machine_killed_without_notice_changes_no_bit(user: User, weights: str) -> None:
    check(user, weights, 2, "0s")


@pytest.mark.soak
@pytest.mark.parametrize("notice", ["8s", "0s"])
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_soak_of_moments(user: User, weights: str, seed: int, notice: str) -> None:
    check(user, weights, seed, notice)
