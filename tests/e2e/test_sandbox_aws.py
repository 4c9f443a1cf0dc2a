"""Whole jobs in the emulated AWS: nothing in the agent, the trainer or the SDKs knows that it is one."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from acting_user import COMMAND, JOBS

from cloudspot.local.enclosure import why_not

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=f"NOT TESTED, no isolated machines: {why_not()}"),
    pytest.mark.timeout(900),
]

TINY = JOBS / "tiny" / "job.toml"
POLICIES = Path(__file__).parents[2] / "docs" / "aws"
BUCKET = "cloudspot-sandbox"


# What the account looks like when the job is over, as its owner sees it.
LOOK = """
import boto3, datetime, json, subprocess, sys

def cloudspot(*args):
    done = subprocess.run([sys.executable, "-m", "cloudspot", *args], capture_output=True, text=True)
    assert done.returncode == 0, (args, done.stdout[-8000:], done.stderr[-4000:])
    return done.stdout

cloudspot("run", *sys.argv[1:], "--name", "tiny", "--provider", "aws")
show, log = json.loads(cloudspot("show", "tiny", "--json")), cloudspot("logs", "tiny").splitlines()
looked_at = datetime.datetime.now(datetime.timezone.utc).isoformat()
ec2, s3, logs = boto3.client("ec2"), boto3.client("s3"), boto3.client("logs")
(log_group,) = logs.describe_log_groups()["logGroups"]

def lines(stream):
    # Page by page, as `aws logs get-log-events` has them.
    where = {"logGroupName": log_group["logGroupName"], "logStreamName": stream, "startFromHead": True}
    answer, token = logs.get_log_events(**where), None
    while answer["nextForwardToken"] != token:
        yield from (json.loads(event["message"]) for event in answer["events"])
        token = answer["nextForwardToken"]
        answer = logs.get_log_events(**where, nextToken=token)

found = logs.describe_log_streams(logGroupName=log_group["logGroupName"])["logStreams"]
instances = [one for group in ec2.describe_instances()["Reservations"] for one in group["Instances"]]
keys = [one["Key"] for page in s3.get_paginator("list_objects_v2").paginate(Bucket="cloudspot-sandbox")
        for one in page.get("Contents", ())]
print(json.dumps({
    "show": show,
    "log": log,
    "looked_at": looked_at,
    "log_group": log_group,
    "streams": {one["logStreamName"].rpartition("/")[2]: list(lines(one["logStreamName"])) for one in found},
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
        "--keep",
        "--",
        sys.executable,
        str(look),
        str(TINY),
        *sets,
    ]
    done = subprocess.run(command, env=user.environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    seen = json.loads(done.stdout)
    assert seen["show"]["state"] == "succeeded"
    assert seen["states"] == ["terminated"] * 4
    assert seen["reasons"] == ["Client.InstanceInitiatedShutdown"] * 3 + ["Server.SpotInstanceTermination"]
    assert [tags["MASTER_ADDR"].startswith("172.31.") for tags in seen["tags"]] == [True] * 4
    assert len(seen["log"]) > seen["show"]["steps_total"]  # the first rank prints a line a step
    assert (seen["volumes"], seen["groups"]) == (0, 0)
    assert {"agents", "code", "index", "jobs"} <= set(seen["prefixes"])
    assert weights_of(seen["show"]) == weights_of(user.show("local"))
    check_logs(seen)
    kept = re.findall(r"kept in (\S+)", done.stderr)[-1]
    check_rights(Path(kept) / "state" / "cloud" / "requests.jsonl", until=seen["looked_at"])


def check_logs(seen: dict) -> None:
    """CloudWatch has every line of each node, in the order in which they were written."""
    group = seen["log_group"]
    assert group["logGroupName"] == f"/cloudspot/{seen['show']['id']}"
    assert group["retentionInDays"] == 30
    assert sorted(seen["streams"]) == ["1-0", "1-1", "2-0", "2-1"]
    for name, lines in seen["streams"].items():
        assert all("part" not in line for line in lines), name
        # A batch that was sent again shows its lines twice; never in another order.
        numbers = list(dict.fromkeys(line["seq"] for line in lines))
        assert numbers == list(range(len(numbers))), name
    texts = [line["text"] for lines in seen["streams"].values() for line in lines]
    assert [text for text in texts if re.search(r"MASTER_ADDR is 172\.31\.\d+\.\d+, as announced", text)]
    total = seen["show"]["steps_total"]
    printed = [line["text"] for name in ("1-0", "2-0") for line in seen["streams"][name]]
    steps = [int(found[1]) for text in printed if (found := re.match(r"step (\d+) loss", text))]
    assert list(dict.fromkeys(steps)) == list(range(total))


def check_rights(trail: Path, *, until: str) -> None:
    """Whoever made it, no request of the job took more than their policy in the docs grants."""
    requests = [json.loads(line) for line in trail.read_text().splitlines()]
    requests = [one for one in requests if one["at"] < until]
    for by, policy in (("user", "policy-submitter.json"), ("machine", "policy-node.json")):
        taken = {(right, one["resource"]) for one in requests if one["by"] == by for right in one["rights"]}
        text = (POLICIES / policy).read_text().replace("BUCKET", BUCKET)
        statements = json.loads(text)["Statement"]
        assert sorted(one for one in taken if not is_granted(statements, *one)) == []
        # The comparison can fail: each of these was taken, and is missed when it is taken away.
        rights = {right for right, _ in taken}
        assert {"s3:PutObject", "s3:GetObject", "s3:ListBucket", "logs:GetLogEvents"} <= rights
        assert ("ec2:RunInstances" in rights) == (by == "user")
        assert ("logs:PutLogEvents" in rights) == (by == "machine")


def is_granted(statements: list[dict], right: str, resource: str) -> bool:
    """Say whether a statement has the right, on that resource where the trail tells it."""
    for one in statements:
        actions, resources = one["Action"], one["Resource"]
        assert isinstance(resources, str)
        if right not in ([actions] if isinstance(actions, str) else actions):
            continue
        if resource == "*" or fnmatch.fnmatchcase(resource, resources):
            return True
    return False


def weights_of(show: dict) -> str:
    found: str = show["final"]["weights_sha256"]
    return found
