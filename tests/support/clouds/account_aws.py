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


# --- an account that has only an administrator ------------------------------------------------------

_TOGETHER = ("--set", "nodes=2", "--set", 'providers.aws.placement_group="auto"')
STEPS = (
    ("run", "--name", "three", "--detach", "--provider", "aws", *_TOGETHER, "{job}"),
    ("attach", "three"),
)
"""What a submitter does on this cloud besides."""


def make_submitter():
    """Make a user with a key; return the variables that lead to the account as them, and who that is."""
    import boto3

    iam = boto3.client("iam")
    iam.create_user(UserName="ada")
    key = iam.create_access_key(UserName="ada")["AccessKey"]
    environ = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    return environ, "user/ada"


def list_all():
    """Return the names of all that a setup makes, and of all that jobs and drivers do."""
    import boto3

    iam, ec2 = boto3.client("iam"), boto3.client("ec2")
    return {
        "buckets": [one["Name"] for one in boto3.client("s3").list_buckets()["Buckets"]],
        "roles": sorted(
            one["RoleName"] for one in iam.list_roles()["Roles"] if one["Path"] == "/"
        ),  # those of services stay
        "profiles": [one["InstanceProfileName"] for one in iam.list_instance_profiles()["InstanceProfiles"]],
        "policies": sorted(one["PolicyName"] for one in iam.list_policies(Scope="Local")["Policies"]),
        "granted": iam.list_attached_user_policies(UserName="ada")["AttachedPolicies"],
        "groups": sorted(one["GroupName"] for one in ec2.describe_security_groups()["SecurityGroups"]),
        "images": [one["ImageId"] for one in ec2.describe_images(Owners=["self"])["Images"]],
        "functions": [one["FunctionName"] for one in boto3.client("lambda").list_functions()["Functions"]],
        "rules": [one["Name"] for one in boto3.client("events").list_rules()["Rules"]],
        "schedules": [one["Name"] for one in boto3.client("scheduler").list_schedules()["Schedules"]],
    }


def list_images():
    """Return the ids of the images that jobs' setups are on."""
    import boto3

    found = boto3.client("ec2").describe_images(Filters=[{"Name": "tag-key", "Values": ["cloudspot-setup"]}])
    return [one["ImageId"] for one in found["Images"]]
