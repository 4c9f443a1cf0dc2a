"""Nobody is awake: the command that submitted the job has ended, and the job goes on to its end.

Run as a script it is what runs inside a sandbox: ``test_unattended.py CLOUD NAME PREPARATION TIMEOUT [ARGUMENT...]``
prepares the account, submits the job, and only looks on from then on; it prints what it saw as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import pytest
from support.clouds.unattended_clouds import CLOUDS
from support.jobs.acting_user import COMMAND, JOBS, TESTS, User
from support.jobs.isolated_machines import needs_isolated_machines

from cloudspot.jobstore.jobs.standing_drivers import list_drivers
from cloudspot.jobstore.jobs.state_home import state_home
from cloudspot.registry import open_store

RUNNING_CLOUDS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            sys.version_info[:2] not in one.pythons, reason="its functions have no such Python"
        ),
    )
    for name, one in CLOUDS.items()
]
RECLAIMS = ("launch=1,rank=0,after_steps=30,notice=30", "launch=2,rank=0,after_steps=60,notice=30")
ENDED = {"succeeded", "failed", "stopped"}
DEPLOYERS = {
    "function": COMMAND,
    "second": [sys.executable, str(TESTS / "support" / "clouds" / "second_function.py")],
}
"""The command lines that deploy a function each, by the word for it in a preparation."""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    needs_isolated_machines,
]


def look_on(
    user: User,
    name: str,
    *,
    preparation: str,
    drive: bool = False,
    cloud: str = "aws",
    reclaims: tuple[str, ...] = RECLAIMS,
    timeout: int = 400,
) -> dict[str, Any]:
    """Return what there was to see of a job that nobody but its nodes and a function could drive."""
    sets = (
        f"nodes={{ min = 1, max = 1, drive = {str(drive).lower()} }}",
        *(CLOUDS[cloud].job_settings),
        'run.env.TINY_EPOCHS="9"',
        'run.env.TINY_STEP_SECONDS="0.2"',
    )
    inside = [sys.executable, __file__, cloud, name, preparation, str(timeout)]
    inside += [word for one in sets for word in ("--set", one)]
    options = [word for one in reclaims for word in ("--reclaim", one)]
    command = [*COMMAND, "sandbox", cloud, *options, "--", *inside]
    done = subprocess.run(command, env=user.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    seen: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps({key: value for key, value in seen.items() if key not in {"show", "log"}}, indent=1))
    return seen


def check_done(seen: dict[str, Any], *, num_machines: int = 3) -> None:
    """The job has succeeded with nothing lost, and as many machines as it needed."""
    show = seen["show"]
    assert (show["state"], show["steps_lost"], len(show["notices"])) == ("succeeded", 0, 2)
    outcomes = [one["outcome"] for one in show["launches"]]
    assert outcomes == ["reclaimed", "reclaimed", "succeeded"]
    assert seen["machines"] == num_machines


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_dying_nodes_alone_bring_a_job_through_two_reclaims(user: User, cloud: str) -> None:
    """Each node buys the next one within its notice, and the last one ends the job."""
    seen = look_on(user, f"nodes-{cloud}", preparation="nodes", drive=True, cloud=cloud)
    check_done(seen)
    assert [one["why"] for one in seen["show"]["launches"]] == ["first", "notice", "notice"]
    assert seen["show"]["driven"]["by"] == "node 3.0"
    assert "only its own nodes relaunch the job, when they end" in seen["submitted"]


def test_without_the_rights_the_node_says_so_once_and_the_job_waits(user: User) -> None:
    seen = look_on(user, "asleep", preparation="nothing", drive=True, reclaims=RECLAIMS[:1], timeout=90)
    assert seen["show"]["state"] not in ENDED
    assert seen["machines"] == 1
    assert seen["log"].count("this node lacks the permissions of a driver and stops driving") == 1


@pytest.mark.parametrize("cloud", RUNNING_CLOUDS)
def test_a_function_alone_brings_a_job_through_two_reclaims(user: User, cloud: str) -> None:
    """It runs every minute, and at each notice."""
    seen = look_on(user, f"function-{cloud}", preparation="function", drive=False, cloud=cloud)
    check_done(seen)
    assert seen["show"]["driven"]["by"].startswith("function cloudspot-driver-")
    assert "drives all jobs of this store, about every 1m 00s" in seen["submitted"]
    assert seen["left"] == []


@pytest.mark.parametrize("cloud", RUNNING_CLOUDS)
def test_function_and_nodes_together_buy_no_machine_twice(user: User, cloud: str) -> None:
    seen = look_on(user, f"both-{cloud}", preparation="function nodes", drive=True, cloud=cloud)
    check_done(seen)


@pytest.mark.parametrize("cloud", RUNNING_CLOUDS)
def test_two_functions_and_the_nodes_buy_no_machine_twice(user: User, cloud: str) -> None:
    """Both functions run every minute and at each notice, beside the node that has it."""
    seen = look_on(user, f"two-{cloud}", preparation="function second nodes", drive=True, cloud=cloud)
    check_done(seen)
    assert len([one for one in seen["drivers"] if one.startswith("function cloudspot-driver-")]) == 2
    assert seen["left"] == []


@pytest.mark.parametrize("cloud", CLOUDS)
def test_passes_that_are_killed_at_each_of_their_calls_bring_a_job_through(user: User, cloud: str) -> None:
    """The code that a function runs, killed before and after its first call, its second, and so on."""
    seen = look_on(user, f"killed-{cloud}", preparation="killed", cloud=cloud, timeout=700)
    check_done(seen)
    assert seen["num_kills"] > 50
    # At least once, each call of a pass has had its turn: a pass of a live job makes more calls than this.
    assert max(seen["whole_passes"], default=0) > 25


def be_killed(name: str, seconds: float) -> tuple[int, list[int]]:
    """Make passes each of which dies at a later call than the one before, until the job has ended.

    Whenever a pass makes fewer calls than it would have died at, the next one dies at its first call again. Returns
    how many passes were killed, and at how many calls each of these rounds had killed one.
    """
    end, num_kills, number = time.monotonic() + seconds, 0, 0
    whole_passes: list[int] = []
    killed = [sys.executable, str(TESTS / "support" / "jobs" / "killed_at_call.py")]
    is_done = False
    while time.monotonic() < end and not is_done:
        number, was_short = number + 1, False
        for when in ("before", "after"):
            words = [str(number), when, "reconcile", "--as", "function x", "--every", "60"]
            done = subprocess.run([*killed, *words], capture_output=True, text=True, check=False)
            assert done.returncode in {-9, 0}, (number, when, done.stdout[-4000:], done.stderr[-4000:])
            num_kills += done.returncode == -9
            was_short = was_short or done.returncode == 0
        if was_short:
            whole_passes.append(number - 1)
            number = 0
        is_done = json.loads(cloudspot("show", name, "--json"))["state"] in ENDED
    return num_kills, whole_passes


def main(cloud: str, name: str, preparation: str, timeout: str, *arguments: str) -> None:
    """Do what the module's docstring says."""
    deployers = [program for word, program in DEPLOYERS.items() if word in preparation]
    for program in deployers:
        cloudspot("driver", "deploy", "--provider", cloud, "--every", "1m", "--yes", program=program)
    if "nodes" in preparation:
        CLOUDS[cloud].let_nodes_drive()
    job = str(JOBS / "tiny" / "job.toml")
    submitted = cloudspot("run", job, "--name", name, "--provider", cloud, "--detach", *arguments)
    began = datetime.now(timezone.utc)
    num_kills, whole_passes = be_killed(name, float(timeout)) if preparation == "killed" else (0, [])
    end = time.monotonic() + float(timeout)
    show: dict[str, Any] = {}
    while time.monotonic() < end and show.get("state") not in ENDED:
        time.sleep(2.0)
        show = json.loads(cloudspot("show", name, "--json"))
    drivers = list_drivers(open_store(os.environ["CLOUDSPOT_STORE"]), datetime.now(timezone.utc), cloud)
    left: list[str] = []
    for program in deployers:
        cloudspot("driver", "remove", "--provider", cloud, program=program)
    for program in deployers:
        left += [one for one in CLOUDS[cloud].names() if "driver" in one]
        again = cloudspot("driver", "remove", "--provider", cloud, program=program)
        left += [again] if again.startswith("removed") else []
    result = {
        "show": show,
        "log": cloudspot("logs", name),
        "machines": len(list((state_home() / "sandboxes").glob("*/state/machines/*"))),
        "submitted": submitted,
        "drivers": [one.who for one in drivers if one.at > began],
        "left": left,
        "num_kills": num_kills,
        "whole_passes": whole_passes,
    }
    print(json.dumps(result))


def cloudspot(*arguments: str, program: Sequence[str] = COMMAND) -> str:
    """Return what the command prints, its warnings too unless it prints JSON."""
    errors = None if "--json" in arguments else subprocess.STDOUT
    done = subprocess.run(
        [*program, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True, check=False
    )
    assert done.returncode == 0, (arguments, done.stdout[-4000:])
    return done.stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
