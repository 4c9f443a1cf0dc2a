"""Sharded models in several ranks, gloo on the CPU: a reclaim in the middle, and worlds of other sizes."""

import json
from pathlib import Path

import pytest
import torch

from cloudspot.train import handoff
from cloudspot.train.state.checkpoint import Checkpoint
from cloudspot.train.state.torchfile import write_torch_file

pytestmark = pytest.mark.full


SCRIPT = Path(__file__).parent / "jobs" / "sharded.py"
NUM_STEPS = 24


class Trainer:
    """Runs the script, and keeps what it tells: the loss of each step, and the last state put together."""

    def __init__(self, courier, directory):
        self._courier = courier
        self.results = directory
        self.results.mkdir()

    def run(self, layout, num_ranks, *options, restore=None):
        """Run on a node for each rank."""
        options = ("--layout", layout, "--results", str(self.results), *options)
        statuses = self._courier.run_nodes(SCRIPT, *options, num_nodes=num_ranks, restore=restore)
        assert statuses == [0] * num_ranks
        losses = json.loads((self.results / "losses.json").read_text())
        return {int(step): loss for step, loss in losses.items()}

    def drain(self, layout, num_ranks, *options, at):
        """Reclaim the last rank's machine at a step; return the step of the checkpoint, and where it is.

        That machine has handed its shards to the others.
        """
        losses = self.run(layout, num_ranks, "--drain-at", str(at), *options)
        step = self._courier.drained()["step"]
        assert {rank: self._courier.drained(rank)["step"] for rank in range(num_ranks)} == dict.fromkeys(
            range(num_ranks), step
        )
        assert sorted(losses) == list(range(step))
        assert sorted(self._courier.seals()[step]) == list(range(max(1, num_ranks - 1)))
        return step, self._courier.carry(step), losses


@pytest.fixture
def trainer(courier, tmp_path):
    return Trainer(courier, tmp_path / "results")


def all_state(directory):
    """Return every tensor of a checkpoint, put together, and each rank's random state."""
    checkpoint = Checkpoint(directory)
    names = [item["name"] for part in parts_of(directory) for item in part["seal"]["items"]]
    ranks = [checkpoint.rank_state(rank)["random"]["torch"] for rank in range(checkpoint.world_size)]
    return {name: checkpoint.item(name) for name in names}, ranks


def parts_of(directory):
    return json.loads((directory / handoff.RESTORE_MANIFEST).read_text())["parts"]


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [name for name, tensor in one.items() if not torch.equal(tensor, other[name])] == []


@pytest.mark.parametrize(
    ("layout", "num_ranks", "options"),
    [
        ("fsdp", 2, ()),
        pytest.param("fsdp", 4, (), marks=pytest.mark.soak),
        pytest.param("fsdp", 2, ("--accumulate", "4"), marks=pytest.mark.soak),
        pytest.param("hsdp", 4, (), marks=pytest.mark.soak),
        pytest.param("tp", 2, (), marks=pytest.mark.soak),
        pytest.param("both", 4, (), marks=pytest.mark.soak),
    ],
)
def test_a_reclaim_changes_no_bit(courier, trainer, tmp_path, layout, num_ranks, options):
    options = ("--dropout", "0.2", *options)
    calm = trainer.run(layout, num_ranks, *options)
    expected, expected_ranks = all_state(courier.carry(NUM_STEPS))
    assert len(calm) == NUM_STEPS
    step, restore, before = trainer.drain(layout, num_ranks, *options, at=9)
    assert 10 <= step < NUM_STEPS
    assert before == {each: calm[each] for each in range(step)}
    assert trainer.run(layout, num_ranks, *options, restore=restore) == {
        each: calm[each] for each in range(step, NUM_STEPS)
    }
    last = courier.carry(NUM_STEPS)
    found, ranks = all_state(last)
    assert_same(found, expected)
    assert ranks == expected_ranks
    # What one process reads is what the ranks put together.
    write_torch_file(last, tmp_path / "model.pt", objects=["model"], nested=False)
    exported = torch.load(tmp_path / "model.pt")
    assert_same(exported, torch.load(trainer.results / "state.pt"))
    final = courier.final()
    assert (final["weights_sha256"], final["are_weights_sharded"]) == (None, True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(("fsdp", 4), ("fsdp", 2), marks=pytest.mark.full),
        pytest.param(("fsdp", 2), ("fsdp", 4), marks=pytest.mark.soak),
        pytest.param(("fsdp", 2), ("none", 1), marks=pytest.mark.soak),
        pytest.param(("none", 1), ("fsdp", 2), marks=pytest.mark.soak),
        pytest.param(("fsdp", 4), ("both", 4), marks=pytest.mark.soak),
        pytest.param(("both", 4), ("fsdp", 2), marks=pytest.mark.soak),
        pytest.param(("both", 4), ("tp", 2), marks=pytest.mark.soak),
        pytest.param(("hsdp", 4), ("fsdp", 4), marks=pytest.mark.soak),
    ],
)
def test_the_loss_goes_on_in_another_world(courier, trainer, old, new):
    step, restore, before = trainer.drain(*old, at=9)
    saved, _ = all_state(restore)
    after = trainer.run(*new, restore=restore)
    assert sorted(before | after) == list(range(NUM_STEPS))
    calm = trainer.run("none", 1)
    assert before | after == pytest.approx(calm, rel=2e-5)
    assert max(calm.values()) - min(calm.values()) > 0.5
    assert step >= 10
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32, torch.bfloat16, torch.int64}
