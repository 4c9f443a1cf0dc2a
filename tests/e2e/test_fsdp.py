"""The example that FSDP shards over two nodes, reclaimed in the middle, ends with the weights of an undisturbed run."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.jobs.acting_user import EXAMPLES, User, has_ended, kill, supervisors_processes, wait_for
from support.records.stored_checkpoints import chunks_of, flip_bit, newest_manifests

pytestmark = pytest.mark.full


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


def test_nodes_of_a_sharded_job_read_their_own_part_and_go_back_when_one_finds_it_damaged(
    user: User,
) -> None:
    sets = ("providers.local.reclaims=[]", 'checkpoint={interval="1s", keep=10}', "limits.max_restarts=0")
    cli = user.start(*RUN, "--name", "hurt", *(word for each in sets for word in ("--set", each)))
    job = user.home / "store" / "jobs" / "hurt"
    wait_for("two checkpoints", lambda: len(newest_manifests(job)) > 1)
    user.cloudspot("preempt", "hurt", "--node", "1.0", "--no-notice")
    wait_for("the machine's end", lambda: any(map(has_ended, user.machines())))
    # The survivor had rank 1 and gets rank 0, whose part it has to read.
    newest, before = newest_manifests(job)[:2]
    flip_bit(next(chunk for chunk in chunks_of(newest) if chunk.parent.name == "0000"))
    assert cli.wait(120) == 0
    shown = user.show("hurt", "--verify")
    assert (shown["state"], shown["step"]) == ("succeeded", NUM_STEPS)
    steps = [int(path.name.partition("-")[2]) for path in (newest, before)]
    found, last = user.history("hurt").generations[-2:]
    assert [each.restore_from.step for each in (found, last)] == steps
    assert (found.skipped, [each.checkpoint.step for each in last.skipped]) == ((), steps[:1])
    assert last.why == "not-restored"  # which is no failure of the script
    log = user.cloudspot("logs", "hurt", "--source", "agent").stdout
    assert "does not match its checksum" in log
    read = re.findall(r"ranks (\d) read (\d+) of the (\d+) bytes of checkpoint \d+-(\d+)", log)
    shares = {rank: int(got) / int(size) for rank, got, size, step in read if int(step) == steps[1]}
    assert shares.keys() == {"0", "1"}
    assert all(0.4 < share < 0.6 for share in shares.values())


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 5.0])
def test_agents_that_are_killed_while_ranks_wait_for_their_parts_change_no_bit(
    user: User, calm: dict[str, torch.Tensor], seconds: float
) -> None:
    """The next agent of the machine answers the ranks that wait, or another generation starts."""
    reclaim = 'providers.local.reclaims=[{launch=1, rank=1, after_steps=100, notice="0s"}]'
    cli = user.start(*RUN, "--name", "hit", "--set", reclaim)
    job = user.home / "store" / "jobs" / "hit"

    def resumes() -> bool:
        generations = user.history("hit").generations if (job / "spec").exists() else ()
        return any(each.restore_from is not None and len(each.members) == 2 for each in generations)

    wait_for("the generation that resumes", resumes)
    time.sleep(seconds)
    for machine in user.machines():
        for pid in supervisors_processes(machine):
            if b"cloudspot.agent" in Path(f"/proc/{pid}/cmdline").read_bytes():
                kill(pid)
    assert cli.wait(180) == 0
    user.cloudspot("checkpoints", "export", "hit", "--to", str(user.home / "hit.safetensors"))
    found = load_file(user.home / "hit.safetensors")
    assert [name for name, tensor in found.items() if not torch.equal(tensor, calm[name])] == []


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
