"""A driver on the emulated AWS Lambda, which runs it with AWS's own runtime client."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from datetime import datetime, timedelta, timezone

import boto3
import pytest
from botocore.client import BaseClient
from botocore.session import get_session
from msgspec import structs
from support.clouds.functionhosttests import NAME, FunctionHostTests, calling_after

from cloudspot.emulation.local_machine_host import emulated
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.model import REAP_EVENT
from cloudspot_aws import functionhost
from cloudspot_aws.driverinventory import DriverInventory
from cloudspot_aws.functionhost import LambdaHost
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.provider import AwsProvider
from cloudspot_aws_sandbox import functions
from cloudspot_aws_sandbox.cloud import BUCKET, REGION, EmulatedAws

STORE = f"s3://{BUCKET}/x"
ROLE = f"{NAME}-us-east-1"

pytestmark = [pytest.mark.full, pytest.mark.enclosed]


class TestLambda(FunctionHostTests):
    store = STORE
    everything = (NAME, NAME, f"{NAME}-notices", ROLE)
    reaping = (NAME, NAME, f"{NAME}-notices", f"{NAME}-reap", ROLE)
    removed = (
        f"rule {NAME}", f"rule {NAME}-notices", f"function {NAME}", f"role {ROLE}", f"log /aws/lambda/{NAME}",
    )  # fmt: skip
    changes = "UpdateFunctionCode"
    newer = ("UpdateFunctionCode",)
    needed_rights = ("events:PutTargets",)
    impatient = (functionhost, "ROLE_SECONDS", 0.0)
    refused_store, needs_store = "gs://bucket", "needs a store in S3"
    too_new, says_too_new = (
        (2, 39),
        r"compiled for glibc 2.39 or newer, but Lambda's python3\..* has glibc 2\.",
    )
    foreign_system = (functionhost.sys, "platform", "darwin")
    says_foreign = "deploy it from Linux on x86-64 or arm64"
    # 43,776 passes of 3 s with half a GiB, by hand: 1.094 and 0.009 USD.
    cost_each_minute = "1.10 USD"

    @contextlib.contextmanager
    def account(self, directory):
        functions.NEW_ROLE = timedelta(seconds=1)
        cloud = EmulatedAws()
        with emulated(cloud, directory / "state", is_isolated=True):
            os.environ.update(cloud.environment())  # This process is the test's alone.
            boto3.setup_default_session()
            host = AwsProvider(AwsOptions()).function_host()
            assert isinstance(host, LambdaHost)
            host._sleep = lambda seconds: time.sleep(min(seconds, 0.5))
            yield cloud, host

    def functions(self, cloud):
        return cloud._functions

    def left(self, _cloud):
        roles = [one["RoleName"] for one in boto3.client("iam").list_roles()["Roles"]]
        rules = [one["Name"] for one in boto3.client("events").list_rules()["Rules"]]
        found = [one["FunctionName"] for one in boto3.client("lambda").list_functions()["Functions"]]
        return sorted(one for one in (*roles, *rules, *found) if "driver" in one)

    def hear(self, cloud, *, is_notice):
        what = "Spot Instance Interruption Warning" if is_notice else "Instance State-change Notification"
        cloud._functions.publish(f"EC2 {what}", {"instance-id": "i-1"}, REGION)

    def pass_time(self, cloud, host, seconds):
        while not cloud._functions._due:
            time.sleep(0.1)
        later = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        cloud._functions._now = lambda: later

    def check_daily_run(self, cloud, *, is_there):
        events, iam = boto3.client("events"), boto3.client("iam")
        if is_there:
            assert events.describe_rule(Name=f"{NAME}-reap")["ScheduleExpression"] == "rate(1 day)"
            (target,) = events.list_targets_by_rule(Rule=f"{NAME}-reap")["Targets"]
            assert json.loads(target["Input"]) == REAP_EVENT
        policies = ["cloudspot-driver", "cloudspot-reap"][: 2 if is_there else 1]
        assert iam.list_role_policies(RoleName=ROLE)["PolicyNames"] == policies

    def cutting(self, host, cut):
        return calling_after([(BaseClient, "_make_api_call")], cut)

    def test_its_role_has_the_bucket_and_machines_and_no_other_bucket(self, tmp_path):
        with self.account(tmp_path) as (_, host):
            host.deploy(self.function())
            policy = boto3.client("iam").get_role_policy(RoleName=ROLE, PolicyName="cloudspot-driver")
            statements = {one["Sid"]: one for one in policy["PolicyDocument"]["Statement"]}
            of_s3 = {one["Resource"] for sid, one in statements.items() if "s3:" in str(one["Action"])}
            assert of_s3 == {f"arn:*:s3:::{BUCKET}", f"arn:*:s3:::{BUCKET}/*"}
            assert "*" not in str([one["Action"] for one in statements.values()])

    def test_a_reaper_knows_all_of_it_by_its_tag_and_what_a_removal_was_cut_off_at(self, tmp_path):
        with self.account(tmp_path) as (cloud, host):
            store = f"s3://{BUCKET}/x"
            name = f"cloudspot-driver-{hashlib.sha256(store.encode()).hexdigest()[:12]}"
            host.deploy(structs.replace(self.function(), name=name, reaps=True))
            listed = DriverInventory(host._clients)
            found = {one.id: one.is_in_use for one in listed.assets([store])}
            pieces = [name, f"{name}-notices", f"{name}-reap", f"{name}-us-east-1", f"/aws/lambda/{name}"]
            assert found == dict.fromkeys(pieces, True)
            boto3.client("lambda").delete_function(FunctionName=name)
            lost = listed.assets([store])
            assert {one.kind for one in lost} == {"driver's rule", "driver's role", "driver's log"}
            assert [one for one in lost if one.is_in_use or one.store_url != store] == []
            for one in lost:
                listed.end(one)
                listed.end(one)
            assert listed.assets([store]) == []
            assert self.left(cloud) == []

    def test_what_a_removal_was_cut_off_at_is_not_ended_once_a_driver_has_it_again(self, tmp_path):
        with self.account(tmp_path) as (cloud, host):
            store = f"s3://{BUCKET}/x"
            name = f"cloudspot-driver-{hashlib.sha256(store.encode()).hexdigest()[:12]}"
            driver = structs.replace(self.function(), name=name, reaps=True)
            host.deploy(driver)
            boto3.client("lambda").delete_function(FunctionName=name)
            listed = DriverInventory(host._clients)
            lost = listed.assets([store])
            assert len(lost) == 5
            host.deploy(driver)
            standing = self.left(cloud)
            for one in lost:
                with pytest.raises(CloudspotError, match=f"{one.id}: a newly deployed driver uses it now"):
                    listed.end(one)
            assert self.left(cloud) == standing

    def test_too_much_code_is_refused(self, tmp_path, monkeypatch):
        with self.account(tmp_path) as (_, host):
            small = dataclasses.replace(functionhost.LIMITS, max_unpacked_bytes=10)
            monkeypatch.setattr(functionhost, "LIMITS", small)
            with pytest.raises(SpecError, match="unpacked; AWS Lambda accepts"):
                host.plan(self.function())


def test_lambda_has_each_python_that_cloudspot_runs_on():
    """Its newest was refused, although Lambda has it since the November after its release."""
    runtimes = set(get_session().get_service_model("lambda").shape_for("Runtime").enum)
    assert {f"python{major}.{minor}" for major, minor in functionhost.LIMITS.glibc} <= runtimes
    assert functionhost.LIMITS.glibc[3, 14] == (2, 34)  # Amazon Linux 2023
