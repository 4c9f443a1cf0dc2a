"""Whole jobs that train on a GPU: `pytest -m gpu`. One GPU is enough."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.jobs.acting_user import EXAMPLES, User, wait_for
from support.jobs.marks import is_marked

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu() -> None:
    """Fail without a GPU, where the examples would train on the CPU."""
    import torch

    assert torch.cuda.is_available(), "there is no GPU"


ON_GPU = ('run.env.CUDA_VISIBLE_DEVICES="0"', 'run.env.TINY_TELL_DEVICE="1"', 'run.env.TINY_EPOCHS="5"')
CALM = "providers.local.reclaims=[]"
STEPS_OF_ONE_NODE = 5 * 20


def reclaim(node: int, after_steps: int, notice: str = "10s") -> str:
    return (
        f'providers.local.reclaims=[{{launch=1, rank={node}, after_steps={after_steps}, notice="{notice}"}}]'
    )


def log_of(user: User, job_id: str) -> str:
    return user.cloudspot("logs", job_id, "--source", "train").stdout


def succeeded(user: User, job_id: str) -> dict[str, Any]:
    shown = user.show(job_id, "--verify")
    assert shown["state"] == "succeeded"
    assert shown["last_commit"]["verified"] is True
    return shown


def test_a_notice_costs_no_step_and_no_bit(user: User, undisturbed) -> None:
    calm = undisturbed(ON_GPU)
    user.run_tiny("hit", sets=(*ON_GPU, reclaim(0, 40)))
    hit = succeeded(user, "hit")
    assert (len(hit["nodes"]), len(hit["notices"]), hit["steps_lost"]) == (2, 1, 0)
    assert hit["steps_total"] == STEPS_OF_ONE_NODE
    assert hit["final"]["weights_sha256"] == calm["final"]["weights_sha256"]
    assert log_of(user, "hit").count("trains on cuda:0 with cpu:gloo,cuda:nccl") == 2


@pytest.mark.parametrize("has_fork_server", [True, False])
def test_a_killed_trainer_goes_on_with_the_same_bits(user: User, undisturbed, has_fork_server: bool) -> None:
    calm = undisturbed(ON_GPU)
    user.start_tiny("hit", sets=(*ON_GPU, f"run.fork_server={str(has_fork_server).lower()}"))
    wait_for("a commit", lambda: list(user.home.glob("store/jobs/hit/manifests/*")))
    (worker,) = user.home.glob("machines/*/node/generations/000001/worker-0.pid")
    pid = int(worker.read_text())
    assert is_marked(pid, "RANK", "0")
    os.kill(pid, signal.SIGKILL)
    wait_for("the end", lambda: user.show("hit")["state"] == "succeeded")
    hit = succeeded(user, "hit")
    assert len(hit["nodes"]) == 1
    assert hit["final"]["weights_sha256"] == calm["final"]["weights_sha256"]
    assert log_of(user, "hit").count("trains on cuda:0") == 2
    assert "not forked" not in user.cloudspot("logs", "hit", "--source", "agent").stdout


def test_two_machines_that_share_a_gpu_train_with_gloo(user: User) -> None:
    for name, reclaims in (("calm", CALM), ("hit", reclaim(1, 20))):
        user.run_tiny(name, sets=(*ON_GPU, "nodes=2", reclaims))
    calm, hit = succeeded(user, "calm"), succeeded(user, "hit")
    assert (len(calm["nodes"]), len(hit["nodes"]), hit["steps_lost"]) == (2, 3, 0)
    assert hit["final"]["weights_sha256"] == calm["final"]["weights_sha256"]
    log = log_of(user, "calm")
    assert log.count("trains on cuda:0 with cpu:gloo,cuda:gloo") == 2
    assert log.count("several training processes share a GPU") == 1


def test_more_processes_than_gpus_are_told_what_to_do(user: User) -> None:
    user.run_tiny("many", sets=(*ON_GPU, "procs_per_node=9"), status=None)
    assert user.show("many")["state"] == "failed"
    assert "lower procs_per_node, or set CUDA_VISIBLE_DEVICES to an empty string" in log_of(user, "many")


@pytest.mark.parametrize(
    ("example", "sets"),
    [("digits", ()), ("hf-trainer", ()), ("lightning", ()), ("tinygpt", ()), ("fsdp", ("nodes=1",))],
)
def test_an_example_loses_no_step(user: User, example: str, sets: tuple[str, ...]) -> None:
    words = [word for each in sets for word in ("--set", each)]
    if "nodes=1" in sets:
        words += ["--set", reclaim(0, 100)]
    file = Path(EXAMPLES / example / "job.toml")
    user.cloudspot("run", "--provider", "local", str(file), "--name", "hit", *words)
    hit = succeeded(user, "hit")
    assert (len(hit["notices"]), hit["steps_lost"]) == (1, 0)
