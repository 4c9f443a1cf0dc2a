"""SIGKILL of the trainer, the agent, the command line and the machine, at random and at chosen moments."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from support.jobs.acting_user import User, kill, wait_for
from support.jobs.marks import fork_servers, is_marked

from cloudspot.host.process_marks import marked_processes
from cloudspot.local.machines import MachineDirectory
from cloudspot.local.processes import MARK
from cloudspot.train.handoff import read_progress

SETS = ('run.env.TINY_EPOCHS="12"', 'run.env.TINY_STEP_SECONDS="0.02"', "limits.max_restarts=5")
VICTIMS = ("trainer", "agent", "cli", "machine")
# Each create-only record of a job's life. With the one commit at its end the journal has the same numbers
# each time.
SETS_AT_PUTS = (*SETS, 'checkpoint.interval="1h"')
PUTS = {
    "intent": "jobs/*/journal/00000001",
    "slot": "jobs/*/launches/000001/nodes/0000",
    "generation": "jobs/*/journal/00000002",
    "chunk": "jobs/*/checkpoints/*/chunks/*",
    "part": "jobs/*/checkpoints/*/parts/*",
    "manifest": "jobs/*/manifests/*",
    "commit": "jobs/*/journal/00000003",
    "exit": "jobs/*/nodes/*/exit.json",
    "finished": "jobs/*/journal/00000004",
}
CI_PUTS = (
    ("commit", "before"),
    *(pytest.param(*put, marks=pytest.mark.full) for put in (("intent", "after"), ("exit", "after"))),
)
SOAK_PUTS = tuple((put, when) for put in PUTS for when in ("before", "after"))


def check_end(user: User, job_id: str) -> None:
    """Check what must hold whatever was killed: succeeded, every commit verifies, nothing is left."""
    shown = user.show(job_id, "--verify")
    assert shown["state"] == "succeeded"
    assert shown["last_commit"]["step"] == shown["steps_total"]
    checkpoints = json.loads(user.cloudspot("checkpoints", "verify", job_id, "--json").stdout)
    assert checkpoints
    assert all(checkpoint["verified"] for checkpoint in checkpoints)
    for machine in map(MachineDirectory, user.machines()):
        wait_for(f"the end of {machine.id}", lambda m=machine: not marked_processes(MARK, m.mark))


def command_lines(machine: Path) -> dict[int, str]:
    """Return the machine's processes with their command lines."""
    found = {}
    for pid in marked_processes(MARK, MachineDirectory(machine).mark):
        try:
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def pick(user: User, victim: str, cli: int) -> list[int]:
    """Return the processes to kill."""
    if victim == "cli":
        return [cli]
    machine = user.machines()[-1]
    if victim == "machine":
        supervisor = MachineDirectory(machine).supervisor()
        assert supervisor is not None
        return [supervisor.pid, *marked_processes(MARK, MachineDirectory(machine).mark)]
    lines = command_lines(machine)
    if victim == "agent":
        return [pid for pid, line in lines.items() if "cloudspot.agent" in line]
    return [pid for pid, line in lines.items() if "train.py" in line and is_marked(pid, "RANK", "0")]


def run_with_kill(user: User, victim: str, seed: int) -> None:
    """Kill the victim once at a random moment of the training; half of the moments lie inside a save."""
    rng = random.Random(seed)
    inside_save = rng.random() < 0.5
    cli = user.start_tiny("hit", sets=(*SETS, 'checkpoint.interval="400ms"'))
    generations = user.home / "machines"
    wait_for("the first step", lambda: list(generations.glob("*/node/generations/*/progress-0")))
    time.sleep(rng.uniform(0.0, 2.5))
    if inside_save:
        wait_for(
            "a seal",
            lambda: list(generations.glob("*/node/generations/*/seals/*.json")) or cli.poll() is not None,
        )
    for pid in pick(user, victim, cli.pid):
        kill(pid)
    if victim == "cli":
        cli.wait()
        user.cloudspot("attach", "hit")
        assert len(user.machines()) == 1
    else:
        wait_for("the end of the run", lambda: cli.poll() is not None, seconds=150)
        assert cli.returncode == 0, user.output(cli)[-6000:]
    check_end(user, "hit")


@pytest.mark.costly
@pytest.mark.parametrize(
    "victim",  # the trainer's are among the random faults
    [VICTIMS[1], *(pytest.param(victim, marks=pytest.mark.full) for victim in VICTIMS[2:])],
)
def test_a_kill_at_a_random_moment_ends_in_success(user: User, victim: str) -> None:
    run_with_kill(user, victim, seed=VICTIMS.index(victim))


@pytest.mark.full
def test_a_killed_fork_server_ends_no_training_and_is_replaced_at_the_next_start(user: User) -> None:
    cli = user.start_tiny("forked", sets=(*SETS, 'checkpoint.interval="300ms"'))
    machines = user.home / "machines"

    def step(generation: int) -> int:
        found = machines.glob(f"*/node/generations/{generation:06d}")
        return max((one.step for path in found if (one := read_progress(path, 0))), default=0)

    begun = wait_for("the first step", lambda: step(1))
    [node] = machines.glob("*/node")
    [server] = fork_servers(node)
    kill(server)
    wait_for("more steps of the same generation", lambda: step(1) > begun + 30)
    for pid in pick(user, "trainer", cli.pid):
        kill(pid)
    wait_for("the next generation", lambda: step(2))
    [other] = fork_servers(node)
    assert other != server
    wait_for("the end of the run", lambda: cli.poll() is not None, seconds=150)
    assert cli.returncode == 0, user.output(cli)[-6000:]
    check_end(user, "forked")
    assert [one.why for one in user.history("forked").generations] == ["first", "trainer-failed"]
    assert "the fork server has ended: another one starts" in user.cloudspot("logs", "forked").stdout


@pytest.mark.soak
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("seed", range(100, 110))
def test_soak_of_kills(user: User, victim: str, seed: int) -> None:
    run_with_kill(user, victim, seed)


def run_with_kill_at_put(user: User, put: str, when: str) -> None:
    """Kill whichever process puts the record, right before or right after it."""
    user.home.mkdir(exist_ok=True)
    hook = {"keys": PUTS[put], "when": when}
    (user.home / "plan.json").write_text(json.dumps({"hooks": [hook]}))
    store = f"drill://{user.home}/store"
    # The controller that was killed is followed by another, as cron would.
    for _ in range(3):
        words = ("attach", "hit", "--store", store)
        if not (user.home / "store" / "index" / "hit").exists():
            cli = user.run_tiny("hit", "--store", store, provider="drill", sets=SETS_AT_PUTS, status=None)
        else:
            cli = user.cloudspot(*words, status=None)
        if cli.returncode != -9:
            break
    assert cli.returncode == 0, cli.stdout[-6000:] + cli.stderr[-6000:]
    assert (user.home / "fired" / "hook-0").exists(), "the kill never happened"
    check_end(user, "hit")


@pytest.mark.full
@pytest.mark.parametrize(("put", "when"), CI_PUTS)
def test_a_kill_around_a_put_ends_in_success(user: User, put: str, when: str) -> None:
    run_with_kill_at_put(user, put, when)


@pytest.mark.soak
@pytest.mark.parametrize(("put", "when"), SOAK_PUTS)
def test_soak_of_kills_around_puts(user: User, put: str, when: str) -> None:
    run_with_kill_at_put(user, put, when)
