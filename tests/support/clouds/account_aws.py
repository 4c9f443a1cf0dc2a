"""The emulated AWS's account after a job, by boto3; and what must be true of it."""

from __future__ import annotations

import json

from support.clouds.sandboxed import Seen, check_streams, granted_by, not_granted, rights_taken

from cloudspot_aws import permissions

BUCKET = "cloudspot-sandbox"
SETS = ()


def look():
    """Return what the account's owner sees; inside."""
    import boto3

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

    names = [
        one["logStreamName"]
        for one in logs.describe_log_streams(logGroupName=log_group["logGroupName"])["logStreams"]
    ]
    instances = [one for group in ec2.describe_instances()["Reservations"] for one in group["Instances"]]
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return {
        "log_group": log_group,
        "streams": {name.rpartition("/")[2]: list(lines(name)) for name in names},
        "states": sorted(one["State"]["Name"] for one in instances),
        "reasons": sorted(one["StateReason"]["Code"] for one in instances),
        "tags": [{tag["Key"]: tag["Value"] for tag in one["Tags"]} for one in instances],
        "volumes": len(ec2.describe_volumes()["Volumes"]),
        "groups": len(ec2.describe_placement_groups()["PlacementGroups"]),
        "keys": [one["Key"] for page in pages for one in page.get("Contents", ())],
    }


def check(seen: Seen) -> None:
    """Nothing that costs is left, every line is in CloudWatch, and no request took more than the policies grant."""
    account = seen.account
    assert account["states"] == ["terminated"] * len(seen.machines)
    # Whoever leaves at its notice has ended itself, and is charged.
    assert account["reasons"] == ["Client.InstanceInitiatedShutdown"] * len(seen.machines)
    assert [tags["MASTER_ADDR"].startswith("172.31.") for tags in account["tags"]] == [True] * len(
        seen.machines
    )
    assert (account["volumes"], account["groups"]) == (0, 0)
    assert {"agents", "code", "index", "jobs"} <= {key.partition("/")[0] for key in account["keys"]}
    group = account["log_group"]
    assert group["logGroupName"] == f"/cloudspot/{seen.show['id']}"
    assert group["retentionInDays"] == 30
    assert sorted(account["streams"]) == seen.machines
    check_streams(account["streams"], seen.show)
    for by, policy in (("user", "policy-submitter.json"), ("machine", "policy-node.json")):
        text = (permissions.DIRECTORY / policy).read_text().replace("BUCKET", BUCKET)
        taken = rights_taken(seen.trail, by)
        assert not_granted(taken, granted_by(json.loads(text)["Statement"])) == []
        # The comparison can fail: each of these was taken, and is missed when it is taken away.
        rights = {right for right, _ in taken}
        assert {"s3:PutObject", "s3:GetObject", "s3:ListBucket", "logs:GetLogEvents"} <= rights
        assert ("ec2:RunInstances" in rights) == (by == "user")
        assert ("logs:PutLogEvents" in rights) == (by == "machine")
