"""A lost node is replaced by one machine while the others keep theirs, and no sample is left out or comes twice."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from e2e.test_several_nodes import check_replaced, reclaims
from support.jobs.acting_user import User

NUM_SAMPLES, BATCH_SIZE = 320, 16
SOAK_SEEDS = range(100, 105)


def settings(nodes: str, *, epochs: int, step_seconds: float = 0.05) -> tuple[str, ...]:
    """Return the overrides of a job that tells which samples each step trains on."""
    return (
        f"nodes={nodes}",
        f'run.env.TINY_EPOCHS="{epochs}"',
        f'run.env.TINY_STEP_SECONDS="{step_seconds}"',
        'run.env.TINY_EXACT="1"',
        'run.env.TINY_TELL_SAMPLES="1"',
    )


def run(user: User, sets: tuple[str, ...], *, last_step: int, notice: str, seed: int) -> dict[str, Any]:
    """Take a random one of the nodes at a random step, wait for the end, and tell how long training stood still."""
    rng = random.Random(seed)
    num_nodes = 4 if "4" in sets[0] else 2
    rank, step = rng.randrange(num_nodes), rng.randrange(5, last_step)
    user.run_tiny("hit", sets=(*sets, reclaims((rank,), step, notice)), timeout=400.0)
    shown = user.show("hit", "--verify")
    assert (shown["state"], shown["last_commit"]["verified"]) == ("succeeded", True)
    for older, newer, seconds in pauses(shown):
        print(f"from the last step of generation {older} to the first of generation {newer}: {seconds:.1f} s")
    check_replaced(shown, num_nodes=num_nodes, ranks=(rank,))
    check_samples(user, shown)
    return shown


def pauses(shown: Mapping[str, Any]) -> Iterator[tuple[int, int, float]]:
    """Yield pairs of generations that have trained, and for how many seconds nothing trained between them."""
    trained = [one for one in shown["generations"] if one["training_from"] is not None]
    for older, newer in pairwise(trained):
        ended, begun = (
            datetime.fromisoformat(moment) for moment in (older["training_until"], newer["training_from"])
        )
        yield older["generation"], newer["generation"], (begun - ended).total_seconds()


def check_samples(user: User, shown: Mapping[str, Any]) -> None:
    """Each epoch has trained on each sample once, in the steps that have not been made again.

    Where the nodes cannot share an epoch's rest evenly, its last step repeats fewer samples than there are nodes.
    A machine that is taken without notice takes the last lines of its log with it.
    """
    kept = {}
    for one in shown["generations"]:
        if not one["is_holding"]:
            begin = 0 if one["restored"] is None else one["restored"]["step"]
            kept.update(dict.fromkeys(range(begin, shown["steps_total"]), one))
    told: Counter[int] = Counter()
    epochs: dict[int, Counter[int]] = {}
    epoch_of: dict[int, int] = {}
    for line in user.cloudspot("logs", "hit", "--source", "train", "--json").stdout.splitlines():
        text = json.loads(line)["text"]
        if text.startswith("samples "):
            generation, step, epoch = map(int, text.split()[1:4])
            if kept[step]["generation"] == generation:
                told[step] += 1
                epoch_of[step] = epoch
                epochs.setdefault(epoch, Counter()).update(json.loads(text[text.index("[") :]))
    untold: Counter[int] = Counter()
    for step, one in kept.items():
        num_untold = len(one["nodes"]) - told[step]
        assert num_untold == 0 or (num_untold == 1 and one["generation"] == 1 and not shown["notices"]), step
        untold[epoch_of[step]] += BATCH_SIZE * num_untold
    most = max(len(one["nodes"]) for one in kept.values())
    is_shared_evenly = all(len(one["nodes"]) == most for one in kept.values())
    for epoch, trained in epochs.items():
        assert len(trained) == NUM_SAMPLES - untold[epoch]
        assert trained.total() - len(trained) < (1 if is_shared_evenly else most)


@pytest.mark.full
def test_of_four_nodes_one_is_taken_with_a_notice_and_three_stay(user: User) -> None:
    # Longer than the replacement takes to boot, also on a busy machine.
    sets = settings("4", epochs=32, step_seconds=0.2)
    shown = run(user, sets, last_step=60, notice="90s", seed=1)
    assert (len(shown["notices"]), shown["steps_lost"]) == (1, 0)
    assert [one["why"] for one in shown["launches"]] == ["first", "notice"]


@pytest.fixture
def weights(undisturbed) -> str:
    """The weights' hash of four nodes that nothing disturbs."""
    shown = undisturbed(settings("4", epochs=40, step_seconds=0.0))
    return str(shown["final"]["weights_sha256"])


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
@pytest.mark.parametrize("notice", ["10s", "0s"])
def test_four_nodes_of_which_one_is_replaced_end_with_the_same_weights(
    user: User, weights: str, notice: str, seed: int
) -> None:
    """Without notice the three others hold, as the job needs all four."""
    shown = run(user, settings("4", epochs=40), last_step=150, notice=notice, seed=seed)
    assert shown["final"]["weights_sha256"] == weights
    if notice != "0s":
        assert (len(shown["notices"]), shown["steps_lost"]) == (1, 0)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("nodes", "num_nodes", "epochs"), [("{min=1, max=2}", 2, 160), ("{min=2, max=4}", 4, 320)]
)
def test_where_fewer_suffice_a_node_lost_without_notice_is_bought_as_the_rest_of_the_job_is_long(
    user: User, nodes: str, num_nodes: int, epochs: int
) -> None:
    """The others wait up to a minute for a machine that is on its way, and go on without it otherwise."""
    shown = run(user, settings(nodes, epochs=epochs), last_step=60, notice="0s", seed=num_nodes)
    sizes = [len(one["nodes"]) for one in shown["generations"]]
    assert sizes in ([num_nodes, num_nodes], [num_nodes, num_nodes - 1, num_nodes])
    check_growth(shown, shown["launches"][1])


def check_growth(shown: Mapping[str, Any], growth: Mapping[str, Any]) -> None:
    """The one launch was made since it pays, and says how much."""
    assert (growth["why"], growth["num_nodes"], len(shown["nodes"])) == ("growth", 1, shown["nodes_max"] + 1)
    assert "node-hours" in growth["detail"]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_job_whose_lost_node_cannot_be_had_again_goes_on_smaller_and_grows_back(user: User) -> None:
    """There is no third machine while the doomed one runs, and a refused offer is left alone for a minute."""
    capacity = "providers.local.capacity={local-a=2, local-b=0}"
    sets = (*settings("{min=1, max=2}", epochs=320), capacity)
    shown = run(user, sets, last_step=60, notice="8s", seed=3)
    assert [len(one["nodes"]) for one in shown["generations"]] == [2, 1, 2]
    assert [one["why"] for one in shown["generations"]] == ["first", "regrouped", "joined"]
    assert shown["steps_lost"] == 0, "neither a notice nor who joins costs a step"
    check_growth(shown, shown["launches"][-1])
