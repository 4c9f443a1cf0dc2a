"""The example that FSDP shards over two nodes, reclaimed in the middle, ends with the weights of an undisturbed run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from acting_user import EXAMPLES, User
from safetensors.torch import load_file

RUN = (
    "run",
    "--provider",
    "local",
    str(EXAMPLES / "fsdp" / "job.toml"),
    "--set",
    'run.env.OMP_NUM_THREADS="1"',
)
NUM_STEPS = 230


def run(user: User, name: str, *sets: str) -> dict[str, torch.Tensor]:
    """Run the job to its end, and return its weights."""
    user.cloudspot(*RUN, "--name", name, *(word for each in sets for word in ("--set", each)))
    shown = user.show(name, "--verify")
    assert (shown["state"], shown["step"]) == ("succeeded", NUM_STEPS)
    assert shown["last_commit"]["verified"] is True
    assert (shown["final"]["weights_sha256"], shown["final"]["are_weights_sharded"]) == (
        None,
        len(shown["generations"][-1]["nodes"]) > 1,
    )
    path = user.home / f"{name}.safetensors"
    user.cloudspot("checkpoints", "export", name, "--to", str(path))
    return load_file(path)


@pytest.fixture
def calm(user: User) -> dict[str, torch.Tensor]:
    """The weights of the job that nothing disturbs."""
    return run(user, "calm", "providers.local.reclaims=[]")


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [(1,), (0,), (0, 1)], ids=str)
@pytest.mark.parametrize("notice", ["10s", "0s"])
def test_a_reclaim_of_a_sharded_job_changes_no_bit(
    user: User, calm: dict[str, torch.Tensor], ranks: tuple[int, ...], notice: str
) -> None:
    tables = (f'{{launch=1, rank={rank}, after_steps=100, notice="{notice}"}}' for rank in ranks)
    found = run(user, "hit", f"providers.local.reclaims=[{', '.join(tables)}]")
    assert found.keys() == calm.keys()
    assert [name for name, tensor in found.items() if not torch.equal(tensor, calm[name])] == []
    shown = user.show("hit")
    # Who was taken is replaced, and who was not goes on.
    left = [f"1.{rank}" for rank in (0, 1) if rank not in ranks]
    assert shown["generations"][-1]["nodes"] == [*left, *(f"2.{rank}" for rank in range(len(ranks)))]
    if notice != "0s":
        assert (len(shown["notices"]), shown["steps_lost"]) == (len(ranks), 0)


@pytest.mark.soak
def test_the_survivor_of_a_sharded_job_goes_on_with_all_of_it(user: User, tmp_path: Path) -> None:
    reclaim = 'providers.local.reclaims=[{launch=1, rank=1, after_steps=200, notice="0s"}]'
    user.cloudspot(*RUN, "--name", "smaller", "--set", "nodes={min=1, max=2}", "--set", reclaim)
    shown = user.show("smaller", "--verify")
    assert (shown["state"], len(shown["launches"])) == ("succeeded", 1)
    assert [each["nodes"] for each in shown["generations"]] == [["1.0", "1.1"], ["1.0"]]
    [path] = (user.home / "store" / "jobs" / "smaller" / "manifests").glob(f"*-{shown['step']:012d}")
    assert len(json.loads(path.read_text())["parts"]) == 1
    assert shown["metrics"]["accuracy"] > 0.9
