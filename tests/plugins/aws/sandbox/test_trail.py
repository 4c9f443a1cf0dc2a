"""The emulated account's trail tells machines from users, and which rights a request took."""

import json
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot.emulation.audit_trail import Trail
from cloudspot_aws_sandbox.rights import resource_of, rights_of
from cloudspot_aws_sandbox.rolekeys import RoleKeys

NOW = datetime(2026, 11, 20, tzinfo=timezone.utc)


def lines_of(tmp_path, *calls):
    trail = Trail(
        tmp_path / "requests.jsonl",
        is_machine=RoleKeys("seed").is_role_key,
        rights=rights_of,
        resource=partial(resource_of, account="123456789012"),
        now=lambda: NOW,
    )
    faults = Faults(on_call=trail)
    for call in calls:
        faults.record(call)
    trail.close()
    trail(calls[0])  # A server's last thread may be late.
    return [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]


def test_a_machine_is_told_from_a_user_by_its_key(tmp_path):
    machine = RoleKeys("seed").issue("i-1", expires_at=NOW + timedelta(hours=1)).access_key
    parameters = {"Bucket": "b", "Key": "jobs/x"}
    lines = lines_of(
        tmp_path,
        Call("s3", "UploadPart", parameters, "us-east-1", None, machine),
        Call("s3", "ListObjectsV2", {"Bucket": "b", "Key": ""}, "us-east-1", "SlowDown", "AKIA1"),
    )
    assert [(one["by"], one["rights"], one["resource"], one["error"]) for one in lines] == [
        ("machine", ["s3:PutObject"], "arn:aws:s3:::b/jobs/x", None),
        ("user", ["s3:ListBucket"], "arn:aws:s3:::b", "SlowDown"),
    ]


def test_a_log_streams_name_has_its_groups(tmp_path):
    (line,) = lines_of(
        tmp_path,
        Call("logs", "PutLogEvents", {"logGroupName": "/g", "logStreamName": "s"}, "us-east-1", None),
    )
    assert line["resource"] == "arn:aws:logs:us-east-1:123456789012:log-group:/g:log-stream:s"


@pytest.mark.parametrize(
    ("service", "action", "parameters", "rights"),
    [
        ("sts", "GetCallerIdentity", {}, set()),
        ("s3", "CopyObject", {}, {"s3:CopyObject"}),  # unknown to the plugin, and so in no policy
        ("ec2", "DescribeInstances", {}, {"ec2:DescribeInstances"}),
        (
            "ec2",
            "RunInstances",
            {"TagSpecifications": [], "IamInstanceProfile": {}},
            {"ec2:RunInstances", "ec2:CreateTags", "iam:PassRole"},
        ),
    ],
)
def test_a_call_takes_the_rights_of_all_that_it_does(service, action, parameters, rights):
    assert rights_of(Call(service, action, parameters, "us-east-1", None)) == rights
