"""A store that fails, goes away for a while, or loses its answers costs neither a line nor a commit."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest
from support.jobs.acting_user import User, has_ended, wait_for

from cloudspot.cli import exit_codes
from cloudspot.errors import TransientError
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink

pytestmark = pytest.mark.full


SETS = ('run.env.TINY_EPOCHS="10"', 'run.env.TINY_STEP_SECONDS="0.03"')
NUM_STEPS = 10 * 20
RECLAIM = 'providers.drill.reclaims=[{launch=1, after_steps=60, notice="9s"}]'


def step_lines(user: User, job_id: str) -> list[int]:
    """Return the steps that the training printed, in the order in which the log shows them.

    Of a line that a full disk has cut off, the number may not be there, or not all of it.
    """
    sink = ObjectStoreLogSink(user.store, job_id)
    found = []
    for stream in sink.streams():
        records = list(sink.read(stream))
        assert [record.seq for record in records] == list(range(len(records)))
        lines = (re.match(r"step (\d+) loss", record.text) for record in records)
        found += [int(line[1]) for line in lines if line is not None]
    return found


def run(user: User, plan: dict[str, object], *sets: str) -> None:
    """Run the job on a store with faults, and check that nothing was lost."""
    user.home.mkdir(exist_ok=True)
    (user.home / "plan.json").write_text(json.dumps(plan))
    store = f"drill://{user.home}/store"
    user.run_tiny("rough", "--store", store, provider="drill", sets=(*SETS, *sets))
    shown = user.show("rough", "--verify")
    assert shown["state"] == "succeeded"
    assert shown["last_commit"]["verified"] is True
    assert shown["last_commit"]["step"] == NUM_STEPS
    assert step_lines(user, "rough") == list(range(NUM_STEPS))


def test_calls_fail_and_answers_of_puts_are_lost(user: User) -> None:
    run(user, {"fail_every": 7, "lose_every": 4}, RECLAIM)


@pytest.mark.soak
@pytest.mark.parametrize("plan", [{"fail_every": 3}, {"fail_every": 5}, {"lose_every": 3}], ids=str)
def test_each_alone(user: User, plan: dict[str, object]) -> None:
    run(user, plan, RECLAIM)


@pytest.mark.parametrize("seconds", [10, pytest.param(30, marks=pytest.mark.soak)])
def test_an_outage_in_the_middle(user: User, seconds: int) -> None:
    # Long enough after the submission for the training to have begun.
    start = time.time() + 6.0
    run(user, {"outages": [{"start": start, "end": start + seconds}]})


def unmount(user: User, job_id: str) -> Path:
    """Take the store's directory away once the job has a commit; return where it is now."""
    wait_for("the submission", (user.store.root / "jobs" / job_id / "spec").exists)
    wait_for("a commit", lambda: user.history(job_id).head is not None)
    return user.store.root.rename(user.store.root.with_name("unmounted"))


def test_a_training_that_ends_while_its_store_is_not_mounted_is_delivered_when_it_is_back(user: User) -> None:
    cli = user.start_tiny("parted", sets=SETS)
    away = unmount(user, "parted")
    (machine,) = user.machines()
    wait_for("the end of the training", lambda: list(machine.glob("node/generations/*/exited-0")))
    log = machine / "node" / "logs" / "agent.log"
    wait_for("the agent's warning", lambda: "its disk is not mounted" in log.read_text())
    for command in (("ps",), ("show", "parted"), ("logs", "parted"), ("reconcile",)):
        refused = user.cloudspot(*command, status=TransientError.exit_code)
        assert "this version has submitted nothing to it yet, or its disk is not mounted" in refused.stderr
    assert not has_ended(machine)
    assert not user.store.root.exists()
    away.rename(user.store.root)
    wait_for("the end of the run", lambda: cli.poll() is not None)
    assert cli.returncode == 0, user.output(cli)[-6000:]
    shown = user.show("parted", "--verify")
    assert (shown["state"], shown["steps_lost"], len(user.machines())) == ("succeeded", 0, 1)
    assert shown["last_commit"]["step"] == NUM_STEPS
    assert step_lines(user, "parted") == list(range(NUM_STEPS))


def test_nothing_takes_the_place_of_a_store_that_stays_away_and_nothing_is_bought(user: User) -> None:
    """The machine ends with its notice, and the driver waits. If the disk comes back after all, the job goes on."""
    cli = user.start_tiny("bereft", sets=(*SETS, RECLAIM.replace("drill", "local").replace("9s", "4s")))
    away = unmount(user, "bereft")
    (machine,) = user.machines()
    wait_for("the end of the machine", lambda: has_ended(machine))
    wait_for("the driver's warning", lambda: "its disk is not mounted" in user.output(cli))
    cli.send_signal(signal.SIGINT)
    assert cli.wait(60) == exit_codes.INTERRUPTED, user.output(cli)[-6000:]
    assert not user.store.root.exists()
    assert user.machines() == [machine]
    away.rename(user.store.root)
    user.cloudspot("attach", "bereft")
    shown = user.show("bereft", "--verify")
    assert (shown["state"], len(user.machines())) == ("succeeded", 2)
    first, second = shown["generations"]
    assert second["restored"] == {"generation": 1, "step": first["last_step"]}
    assert first["steps_lost_is_exact"] is False  # Nobody knows how far it came after that.
    assert shown["time"]["lost"] > 0
    lines, again = step_lines(user, "bereft"), second["restored"]["step"]
    assert lines[again - NUM_STEPS :] == list(range(again, NUM_STEPS))
