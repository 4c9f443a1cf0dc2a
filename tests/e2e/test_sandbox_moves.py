"""One job that begins in the emulated AWS, moves to Google Cloud and then to Alibaba Cloud.

Each part is reclaimed once, and the first two are then stopped. Run as a script it is what runs inside.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

import pytest
from support.clouds.sandboxed import NAME, weights_of
from support.jobs.acting_user import COMMAND, JOBS
from support.jobs.isolated_machines import needs_isolated_machines

CLOUDS = ("aws", "gcp", "aliyun")
STORES = {
    "aws": "s3://cloudspot-sandbox",
    "gcp": "gs://cloudspot-sandbox",
    "aliyun": "oss://cloudspot-sandbox",
}
SETS = ('run.env.TINY_STEP_SECONDS="0.1"', 'run.env.TINY_EPOCHS="24"')
NUM_STEPS = 480
# After these, each part that is stopped has been reclaimed and has trained on.
STOPS = {"aws": 160, "gcp": 320}
# By launch: each part has two.
SHARES = {1: 0.12, 3: 0.45, 5: 0.8}


@pytest.mark.soak
@pytest.mark.timeout(900)
@needs_isolated_machines
def test_a_job_that_moves_through_three_clouds_ends_like_one_that_nothing_disturbed(user, undisturbed):
    # The innermost names the default store: the job's first.
    command = [sys.executable, __file__]
    for cloud, (launch, share) in zip(CLOUDS, SHARES.items(), strict=True):
        reclaim = f"launch={launch},after_share={share},notice=60"
        command = [*COMMAND, "sandbox", cloud, "--reclaim", reclaim, "--", *command]
    done = subprocess.run(command, env=user.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    seen = json.loads(done.stdout)
    show, shows = seen["shows"]["aliyun"], seen["shows"]
    calm = undisturbed((SETS[1], 'run.env.TINY_STEP_SECONDS="0"'))
    assert weights_of(show) == weights_of(calm)
    assert (show["state"], show["steps_lost"], show["warnings"]) == ("succeeded", 0, [])
    check_story(show)
    check_bill(show, shows)
    check_older_stores(seen)
    check_logs(seen)
    for cloud in CLOUDS:
        account = seen["accounts"][cloud]
        running = account["states"] if cloud == "aws" else account["instances"]
        assert set(running) <= {"terminated"}, cloud


def check_story(show) -> None:
    """Every launch, turn, notice and restore of the whole job is there."""
    # A driver may see a notice only when the node has drained and left.
    whys = [{"notice": "reclaimed"}.get(one["why"], one["why"]) for one in show["launches"]]
    parts = zip(show["launches"], whys, strict=True)
    launches = [(one["launch"], one["provider"], why, one["outcome"]) for one, why in parts]
    assert launches == [
        (1, "aws", "first", "reclaimed"),
        (2, "aws", "reclaimed", "stopped"),
        (3, "gcp", "resumed", "reclaimed"),
        (4, "gcp", "reclaimed", "stopped"),
        (5, "aliyun", "resumed", "reclaimed"),
        (6, "aliyun", "reclaimed", "succeeded"),
    ]
    what = ["stopped", "moved", "resumed", "stopped", "moved", "resumed", "succeeded"]
    assert [turn["what"] for turn in show["turns"]] == what
    assert [turn["at"] for turn in show["turns"]] == sorted(turn["at"] for turn in show["turns"])
    assert [turn["detail"] for turn in show["turns"] if turn["what"] == "moved"] == [
        STORES["gcp"],
        STORES["aliyun"],
    ]
    assert [(one["launch"], one["commit"] is None) for one in show["notices"]] == [
        (1, False),
        (3, False),
        (5, False),
    ]
    generations = show["generations"]
    assert [one["nodes"] for one in generations] == [[f"{launch}.0"] for launch in range(1, 7)]
    assert [one["steps_lost"] for one in generations] == [0] * 6
    # Each goes on where the one before it ended.
    restored = [one["restored"] and one["restored"]["step"] for one in generations]
    assert restored == [None, *(one["last_step"] for one in generations[:-1])]
    assert generations[-1]["last_step"] == NUM_STEPS


def check_bill(show, shows) -> None:
    """One ledger has all machines, and each part of it is what the store before it had."""
    assert [(one["launch"], one["currency"]) for one in show["ledger"]] == [
        *((number, "USD") for number in (1, 2, 3, 4)),
        *((number, "CNY") for number in (5, 6)),
    ]
    assert all(one["ended"] is not None and one["spent"] > 0 for one in show["ledger"])
    assert show["ledger"][:2] == shows["aws"]["ledger"]
    assert show["ledger"][:4] == shows["gcp"]["ledger"]
    cost = show["cost"]
    assert (cost["currency"], list(cost["others"])) == ("CNY", ["USD"])
    assert cost["others"]["USD"] == pytest.approx(shows["gcp"]["cost"]["spent"], abs=1e-5)
    assert cost["spent"] == pytest.approx(sum(one["spent"] for one in show["ledger"][4:]), abs=1e-5)


def check_older_stores(seen) -> None:
    """They say where the job is, and resume it no more."""
    for cloud, target in (("aws", "gcp"), ("gcp", "aliyun")):
        show = seen["shows"][cloud]
        assert (show["state"], show["detail"]) == ("stopped", f"moved to {STORES[target]}")
    # Its first store knows only the second, which knows the third.
    again = f"cloudspot resume {NAME} --store {STORES['aliyun']}"
    assert (
        f"was moved to {STORES['aliyun']}, and can only be resumed there: {again}" in seen["refusals"]["aws"]
    )
    fork = f"cloudspot fork {NAME} --store {STORES['aliyun']}"
    assert "has succeeded" in seen["refusals"]["gcp"]
    assert fork in seen["refusals"]["gcp"]
    assert all(refusal.count("\n") == 1 for refusal in seen["refusals"].values())


def check_logs(seen) -> None:
    """Each step's line is in one of the logs, and each command says which log it has not."""
    steps = []
    for cloud, missing in (("aws", ""), ("gcp", "1.0 and 2.0"), ("aliyun", "1.0 2.0 3.0 4.0")):
        out, err = seen["logs"][cloud]
        assert (f"the log of nodes {missing} is not here" in err) == bool(missing)
        steps += [int(step) for step in re.findall(r" step (\d+) loss", out)]
    assert steps == list(range(NUM_STEPS))
    for source, target in (("aws", "gcp"), ("gcp", "aliyun")):
        told = seen["printed"][target]
        assert f"read it with: cloudspot logs {NAME} --store {STORES[source]}\n" in told
        # The code, the records and the checkpoint: no archive of tens of megabytes.
        assert float(re.search(r" objects, ([\d.]+) MiB, with checkpoint", told)[1]) < 1


def look() -> dict[str, Any]:
    """Run the job through the clouds, and return what there is to see; inside."""
    sets = [word for one in (*SETS, "providers.gcp.preemption_notice=0") for word in ("--set", one)]
    parts = {"aws": ["run", str(JOBS / "tiny" / "job.toml"), "--name", NAME, *sets]}
    # Where to look for the job if it is not in the new store: by default, in the innermost sandbox's.
    parts["gcp"] = ["resume", NAME, "--yes"]
    parts["aliyun"] = ["resume", NAME, "--yes", "--from", STORES["gcp"]]
    printed = {}
    for number, (cloud, words) in enumerate(parts.items()):
        with tempfile.TemporaryFile("w+") as output:
            command = [*COMMAND, *words, "--provider", cloud, "--store", STORES[cloud]]
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            if cloud in STOPS:
                _wait_for_step(STOPS[cloud], 2 * number + 2, STORES[cloud], process)
                _cloudspot("stop", "--wait", store=STORES[cloud], status=10)
            status = process.wait()
            output.seek(0)
            printed[cloud] = output.read()
        assert status == (10 if cloud in STOPS else 0), printed[cloud][-6000:]
    return {
        "printed": printed,
        "shows": {cloud: _show(store) for cloud, store in STORES.items()},
        "logs": {cloud: _cloudspot("logs", store=store) for cloud, store in STORES.items()},
        "refusals": {cloud: _cloudspot("resume", store=STORES[cloud], status=1)[1] for cloud in STOPS},
        "accounts": {
            cloud: importlib.import_module(f"support.clouds.account_{cloud}").look() for cloud in CLOUDS
        },
    }


def _wait_for_step(step: int, launch: int, store: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the launch has begun the step; the job may not be there yet."""
    while process.poll() is None:
        done = subprocess.run(
            [*COMMAND, "show", NAME, "--json", "--store", store], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            show = json.loads(done.stdout)
            if len(show["nodes"]) == launch and show["step"] >= step:
                return
        time.sleep(0.5)


def _show(store: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(_cloudspot("show", "--json", store=store)[0])
    return shown


def _cloudspot(name: str, *words: str, store: str, status: int = 0) -> tuple[str, str]:
    """Run a command on the job, and return what it prints."""
    command = [*COMMAND, name, NAME, *words, "--store", store]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, (command, done.stdout[-4000:], done.stderr[-4000:])
    return done.stdout, done.stderr


if __name__ == "__main__":
    print(json.dumps(look()))
