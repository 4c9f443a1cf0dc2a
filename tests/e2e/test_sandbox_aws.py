"""Whole jobs in the emulated AWS: nothing in the agent, the trainer or the SDKs knows that it is one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from acting_user import COMMAND, JOBS

from cloudspot.local.enclosure import why_not

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=f"NOT TESTED, no isolated machines: {why_not()}"),
    pytest.mark.timeout(900),
]

TINY = JOBS / "tiny" / "job.toml"


# What the account looks like when the job is over, as its owner sees it.
LOOK = """
import boto3, json, subprocess, sys

def cloudspot(*args):
    done = subprocess.run([sys.executable, "-m", "cloudspot", *args], capture_output=True, text=True)
    assert done.returncode == 0, (args, done.stdout[-8000:], done.stderr[-4000:])
    return done.stdout

cloudspot("run", *sys.argv[1:], "--name", "tiny", "--provider", "aws")
ec2, s3 = boto3.client("ec2"), boto3.client("s3")
instances = [one for group in ec2.describe_instances()["Reservations"] for one in group["Instances"]]
keys = [one["Key"] for page in s3.get_paginator("list_objects_v2").paginate(Bucket="cloudspot-sandbox")
        for one in page.get("Contents", ())]
print(json.dumps({
    "show": json.loads(cloudspot("show", "tiny", "--json")),
    "log": cloudspot("logs", "tiny").splitlines(),
    "states": sorted(one["State"]["Name"] for one in instances),
    "reasons": sorted(one["StateReason"]["Code"] for one in instances),
    "tags": [{tag["Key"]: tag["Value"] for tag in one["Tags"]} for one in instances],
    "volumes": len(ec2.describe_volumes()["Volumes"]),
    "groups": len(ec2.describe_placement_groups()["PlacementGroups"]),
    "prefixes": sorted({key.partition("/")[0] for key in keys}),
}))
"""


@pytest.mark.parametrize("reclaimed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_job_on_two_machines_survives_a_reclaim_and_makes_the_weights_that_it_makes_locally(
    user, tmp_path, reclaimed
):
    sets = [
        "--set",
        "nodes=2",
        "--set",
        'run.env.TINY_STEP_SECONDS="0.1"',
        "--set",
        'run.env.TINY_EPOCHS="15"',
    ]
    user.cloudspot("run", str(TINY), "--name", "local", *sets)
    look = tmp_path / "look.py"
    look.write_text(LOOK)
    reclaim = f"rank={reclaimed},after_share=0.4,notice=60"
    command = [
        *COMMAND,
        "sandbox",
        "aws",
        "--reclaim",
        reclaim,
        "--",
        sys.executable,
        str(look),
        str(TINY),
        *sets,
    ]
    done = subprocess.run(command, env=user.environ, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout[-8000:], done.stderr[-8000:])
    seen = json.loads(done.stdout)
    assert seen["show"]["state"] == "succeeded"
    assert seen["states"] == ["terminated"] * 4
    assert seen["reasons"] == ["Client.InstanceInitiatedShutdown"] * 3 + ["Server.SpotInstanceTermination"]
    assert [tags["MASTER_ADDR"].startswith("172.31.") for tags in seen["tags"]] == [True] * 4
    assert len(seen["log"]) > seen["show"]["steps_total"]  # each rank prints a line a step
    assert (seen["volumes"], seen["groups"]) == (0, 0)
    assert {"agents", "code", "index", "jobs"} <= set(seen["prefixes"])
    assert weights_of(seen["show"]) == weights_of(user.show("local"))


def weights_of(show: dict) -> str:
    found: str = show["final"]["weights_sha256"]
    return found
