"""``cloudspot move`` in each emulated cloud, whatever becomes of the new machine and of those who drive the job.

Run as a script it is what runs inside: ``test_move_in_clouds.py CLOUD SCENARIO`` prints what there was to see.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from e2e.test_replacement import pauses
from support.clouds.sandboxed import NAME, weights_of
from support.jobs.acting_user import COMMAND, JOBS, TESTS
from support.jobs.isolated_machines import needs_isolated_machines

from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.state_home import state_home
from cloudspot.jobstore.journal.history import History
from cloudspot.local.machine_records import ReclaimRequest
from cloudspot.local.machines import MachineDirectory
from cloudspot.registry import open_store

CLOUDS = ("aws", "gcp", "aliyun")
TO_SPOT = ('run.env.TINY_EPOCHS="160"', 'spot.policy="on-demand"')
BETWEEN_ZONES = ('run.env.TINY_EPOCHS="240"', "nodes=2")
# Dozens of drivers are started and killed, one after the other, while the first of these jobs trains.
STEP_SECONDS = {TO_SPOT: 0.3, BETWEEN_ZONES: 0.1}
# In Compute Engine, a zone of the offers is a region.
ZONES = {
    "aws": (
        'providers.aws.instance_types=["m5ad.large"]',
        'providers.aws.zones=["us-east-1c", "us-east-1d"]',
    ),
    "gcp": ('providers.gcp.regions=["us-central1", "us-east1"]', "providers.gcp.preemption_notice=0"),
    "aliyun": (
        'providers.aliyun.instance_types=["ecs.g7.large"]',
        'providers.aliyun.zones=["cn-hangzhou-h", "cn-hangzhou-i"]',
    ),
}

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    needs_isolated_machines,
]


def run(user, cloud: str, scenario: str) -> dict[str, Any]:
    command = [
        *COMMAND,
        "sandbox",
        cloud,
        "--reclaim",
        "none",
        "--",
        sys.executable,
        __file__,
        cloud,
        scenario,
    ]
    done = subprocess.run(command, env=user.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    return json.loads(done.stdout)


def check_end(seen: dict[str, Any], calm: dict[str, Any], cloud: str, *, num_unproven: int = 0) -> None:
    """Check the end; ``num_unproven`` machines may be missing in the bill."""
    show = seen["show"]
    assert (show["state"], weights_of(show)) == ("succeeded", weights_of(calm))
    assert show["last_commit"]["verified"]
    running = seen["account"]["states"] if cloud == "aws" else seen["account"]["instances"]
    assert set(running) <= {"terminated"}
    assert all(one["ended"] is not None for one in show["ledger"]), show["ledger"]
    assert 0 <= len(seen["machines"]) - len(show["ledger"]) <= num_unproven
    for older, newer, seconds in pauses(show):
        print(f"from the last step of generation {older} to the first of {newer}: {seconds:.1f} s")


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_job_moves_from_on_demand_to_spot_though_its_drivers_are_killed_at_each_of_their_calls(
    user, undisturbed, cloud
):
    seen = run(user, cloud, "killed")
    check_end(seen, undisturbed(TO_SPOT[:1]), cloud)
    show = seen["show"]
    assert show["steps_lost"] == 0
    assert [(one["why"], one["market"]) for one in show["launches"]] == [
        ("first", "on-demand"),
        ("moved", "spot"),
    ]
    assert [one["nodes"] for one in show["generations"]] == [["1.0"], ["2.0"]]
    print(f"{seen['num_kills']} drivers were killed")


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("scenario", ["before", "during", "after"])
def test_a_job_moves_to_another_zone_though_a_new_machine_is_reclaimed(user, undisturbed, cloud, scenario):
    seen = run(user, cloud, scenario)
    # Alibaba's listing takes five minutes to prove that a machine has gone: the job may end before, and the
    # machine have said nothing.
    is_unproven = (cloud, scenario, seen["status"]) == ("aliyun", "before", 1)
    check_end(seen, undisturbed(BETWEEN_ZONES), cloud, num_unproven=int(is_unproven))
    show = seen["show"]
    print([(one["nodes"], one["why"]) for one in show["generations"]])
    print([(one["why"], one["outcome"], one["zone"]) for one in show["launches"]])
    # A new machine that is lost before it trains costs nothing, nor does a notice.
    assert scenario == "during" or show["steps_lost"] == 0
    if f"job {NAME} has moved to" in seen["said"]:
        zones = {one["launch"]: one["zone"] for one in show["launches"]}
        nodes = show["generations"][-1]["nodes"]
        assert {zones[int(node.partition(".")[0])] for node in nodes} == {seen["target"]}
        assert seen["status"] == 0
    else:
        ends = (
            f"job {NAME} was not moved and keeps training:  ",
            f"job {NAME} succeeded before it had moved\n",
        )
        assert any(f"error: {end}" in seen["said"] for end in ends)
        assert (scenario, seen["status"]) in {("before", 1), ("during", 1)}


def look(cloud: str, scenario: str) -> dict[str, Any]:
    """Run the job through the scenario, and return what there is to see; inside."""
    sets, zones = (TO_SPOT, ()) if scenario == "killed" else (BETWEEN_ZONES, ZONES[cloud])
    steps = f'run.env.TINY_STEP_SECONDS="{STEP_SECONDS[sets]}"'
    words = [word for one in (*sets, *zones, steps) for word in ("--set", one)]
    _cloudspot(
        "run", str(JOBS / "tiny" / "job.toml"), "--name", NAME, "--provider", cloud, *words, "--detach"
    )
    seen = be_killed() if scenario == "killed" else move_while(scenario)
    _cloudspot("attach", NAME)
    show = json.loads(_cloudspot("show", NAME, "--json", "--verify")[1])
    account = importlib.import_module(f"support.clouds.account_{cloud}").look()
    machines = [machine.id for machine in _machines()]
    return {**seen, "show": show, "account": account, "machines": machines}


def be_killed() -> dict[str, Any]:
    """Move the job by drivers each of which dies at a later request than the one before it."""
    number = 0
    _wait(lambda: _history().commits)
    while True:
        number += 1
        for when in ("before", "after"):
            history = _history()
            if len(history.generations) > 1:
                return {"num_kills": 2 * number - 1}
            is_moving = len(history.launches) > 1
            words = ["attach", NAME] if is_moving else ["move", NAME, "--market", "spot", "--yes"]
            driver = [
                sys.executable,
                str(TESTS / "support" / "jobs" / "killed_at_call.py"),
                str(number),
                when,
            ]
            done = subprocess.run([*driver, *words], capture_output=True, text=True, check=False)
            assert done.returncode == -9, (number, when, words, done.stdout[-4000:], done.stderr[-4000:])


def move_while(scenario: str) -> dict[str, Any]:
    """Move both nodes to the other zone, and reclaim one of the new machines at the scenario's moment."""
    _wait(lambda: _history().commits)
    (zone,) = {launch.intent.offer.zone for launch in _history().launches}
    other = {"us-east-1c": "us-east-1d", "us-central1": "us-east1", "cn-hangzhou-h": "cn-hangzhou-i"}
    other |= {target: source for source, target in other.items()}
    move = [*COMMAND, "move", NAME, "--zone", other[zone], "--yes"]
    mover = subprocess.Popen(move, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    moments: dict[str, Callable[[History], bool]] = {
        "before": lambda history: len(history.launches) > 1 and bool(history.launches[1].claimed),
        # The old nodes have drained; they or the new ones are about to write the next generation.
        "during": lambda history: history.commits[-1].kind == "drain" or len(history.generations) > 1,
        "after": lambda history: len(history.generations) > 1,
    }
    _wait(lambda: moments[scenario](_history()))
    (victim,) = [one for one in _machines() if (one.record().launch, one.record().rank) == (2, 1)]
    victim.request_reclaim(ReclaimRequest(notice_seconds=20.0 if scenario == "after" else 0.0))
    said = mover.communicate()[0]
    return {"said": said, "status": mover.returncode, "target": other[zone]}


def _history() -> History:
    return HistoryReader(open_store(os.environ["CLOUDSPOT_STORE"]), NAME).read()


def _machines() -> list[MachineDirectory]:
    """Return the machines that the sandbox has, and had."""
    found = (state_home() / "sandboxes").glob("*/state/machines/*")
    return [MachineDirectory(path) for path in found]


def _wait(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end, _cloudspot("show", NAME)
        time.sleep(0.05)


def _cloudspot(*words: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout[-8000:], done.stderr[-4000:])
    return done.returncode, done.stdout


if __name__ == "__main__":
    print(json.dumps(look(*sys.argv[1:])))
