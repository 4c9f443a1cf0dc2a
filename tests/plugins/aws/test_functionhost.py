"""A driver on the emulated AWS Lambda, which runs it with AWS's own runtime client."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import time
import zipfile
from datetime import datetime, timezone

import boto3
import pytest
from msgspec import structs

from cloudspot.emulation.local_machine_host import emulated
from cloudspot.errors import AuthError, CloudspotError, SpecError
from cloudspot.model import REAP_EVENT, DriverFunction
from cloudspot_aws import functionhost
from cloudspot_aws.driverinventory import DriverInventory
from cloudspot_aws.functionhost import LambdaHost
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.provider import AwsProvider
from cloudspot_aws_sandbox.cloud import BUCKET, EmulatedAws

NAME = "cloudspot-driver-0123456789ab"
ROLE = f"{NAME}-us-east-1"
GOOD = "import os\ndef handle(event, context):\n    print(sorted(event))\n    return {'status': 0}\n"
BAD = "def handle(event, context):\n    raise RuntimeError('no bucket for you')\n"

pytestmark = pytest.mark.enclosed


def function(code: str = GOOD, *, every: float = 60.0, store: str = f"s3://{BUCKET}/x") -> DriverFunction:
    """A driver that is one small module."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(zipfile.ZipInfo("driving.py"), code)  # without the time
    return DriverFunction(
        name=NAME, archive=target.getvalue(), unpacked_bytes=len(code), handler="driving.handle",
        every_seconds=every, store_url=store, environment={"CLOUDSPOT_STORE": store},
    )  # fmt: skip


@pytest.fixture
def account(tmp_path):
    """The emulated account, and the host of functions of its owner."""

    @contextlib.contextmanager
    def make():
        cloud = EmulatedAws()
        with emulated(cloud, tmp_path / "state", is_isolated=True):
            os.environ.update(cloud.environment())  # This process is the test's alone.
            boto3.setup_default_session()
            host = AwsProvider(AwsOptions()).function_host()
            assert isinstance(host, LambdaHost)
            yield cloud, host

    return make


def left() -> list[str]:
    """Return all of the account that is a driver's."""
    roles = [one["RoleName"] for one in boto3.client("iam").list_roles()["Roles"]]
    rules = [one["Name"] for one in boto3.client("events").list_rules()["Rules"]]
    functions = [one["FunctionName"] for one in boto3.client("lambda").list_functions()["Functions"]]
    return sorted(one for one in (*roles, *rules, *functions) if "driver" in one)


def test_a_driver_is_deployed_again_without_a_change_and_removed_without_a_rest(account):
    with account() as (cloud, host):
        assert host.status(NAME) is None
        host.deploy(function())
        assert left() == [NAME, NAME, f"{NAME}-notices", ROLE]
        found = host.status(NAME)
        assert found is not None
        assert (found.state, found.every_seconds) == ("Active", 60.0)
        assert found.changed_at is not None
        assert abs((datetime.now(timezone.utc) - found.changed_at).total_seconds()) < 60
        cloud.faults.calls.clear()
        host.deploy(function())
        assert "UpdateFunctionCode" not in [call.action for call in cloud.faults.calls]
        host.deploy(function(GOOD + "# newer\n", every=300.0))
        assert "UpdateFunctionCode" in [call.action for call in cloud.faults.calls]
        assert host.status(NAME).every_seconds == 300.0
        assert host.remove(NAME) == [
            f"rule {NAME}", f"rule {NAME}-notices", f"function {NAME}", f"role {ROLE}", f"log /aws/lambda/{NAME}",
        ]  # fmt: skip
        assert left() == []
        assert host.remove(NAME) == []


def test_its_role_has_the_bucket_and_machines_and_no_other_bucket(account):
    with account() as (_, host):
        host.deploy(function())
        policy = boto3.client("iam").get_role_policy(RoleName=ROLE, PolicyName="cloudspot-driver")
        statements = {one["Sid"]: one for one in policy["PolicyDocument"]["Statement"]}
        of_s3 = {one["Resource"] for sid, one in statements.items() if "s3:" in str(one["Action"])}
        assert of_s3 == {f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"}
        assert "*" not in str([one["Action"] for one in statements.values()])


def test_with_reap_it_has_a_daily_rule_and_more_rights_until_it_is_deployed_without(account):
    with account() as (_, host):
        reaping = structs.replace(function(), reaps=True)
        assert any("once a day" in line for line in host.plan(reaping))
        host.deploy(reaping)
        assert left() == [NAME, NAME, f"{NAME}-notices", f"{NAME}-reap", ROLE]
        events, iam = boto3.client("events"), boto3.client("iam")
        assert events.describe_rule(Name=f"{NAME}-reap")["ScheduleExpression"] == "rate(1 day)"
        (target,) = events.list_targets_by_rule(Rule=f"{NAME}-reap")["Targets"]
        assert json.loads(target["Input"]) == REAP_EVENT
        assert iam.list_role_policies(RoleName=ROLE)["PolicyNames"] == ["cloudspot-driver", "cloudspot-reap"]
        host.deploy(function())
        assert left() == [NAME, NAME, f"{NAME}-notices", ROLE]
        assert iam.list_role_policies(RoleName=ROLE)["PolicyNames"] == ["cloudspot-driver"]


def test_a_reaper_knows_all_of_it_by_its_tag_and_what_a_removal_was_cut_off_at(account):
    with account() as (_, host):
        store = f"s3://{BUCKET}/x"
        name = f"cloudspot-driver-{hashlib.sha256(store.encode()).hexdigest()[:12]}"
        host.deploy(structs.replace(function(), name=name, reaps=True))
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
        assert left() == []


def test_what_a_removal_was_cut_off_at_is_not_ended_once_a_driver_has_it_again(account):
    with account() as (_, host):
        store = f"s3://{BUCKET}/x"
        name = f"cloudspot-driver-{hashlib.sha256(store.encode()).hexdigest()[:12]}"
        driver = structs.replace(function(), name=name, reaps=True)
        host.deploy(driver)
        boto3.client("lambda").delete_function(FunctionName=name)
        listed = DriverInventory(host._clients)
        lost = listed.assets([store])
        assert len(lost) == 5
        host.deploy(driver)
        standing = left()
        for one in lost:
            with pytest.raises(CloudspotError, match=f"{one.id}: a driver has it now"):
                listed.end(one)
        assert left() == standing


def test_a_driver_that_does_not_run_is_told_with_its_own_words(account):
    with account() as (_, host), pytest.raises(CloudspotError, match="does not run: no bucket for you"):
        host.deploy(function(BAD))


def test_a_missing_right_is_named_and_a_later_deployment_goes_on(account):
    with account() as (cloud, host):
        cloud.faults.denied.add("events:PutTargets")
        with pytest.raises(AuthError, match="events:PutTargets"):
            host.deploy(function())
        cloud.faults.denied.clear()
        host.deploy(function())
        assert left() == [NAME, NAME, f"{NAME}-notices", ROLE]


@pytest.mark.parametrize("skip", range(12))
@pytest.mark.soak
def test_a_deployment_that_is_cut_off_anywhere_is_finished_by_the_next(account, skip):
    with account() as (_, host):
        calls = []

        def cut(call):
            calls.append(call.action)
            if len(calls) == skip + 1:
                raise KeyboardInterrupt

        client = host._clients
        make = client.client
        client.client = lambda *names, **more: Cutting(make(*names, **more), cut)
        with contextlib.suppress(KeyboardInterrupt):
            host.deploy(function())
        client.client = make
        host.deploy(function())
        assert left() == [NAME, NAME, f"{NAME}-notices", ROLE]
        host.remove(NAME)
        assert left() == []


class Cutting:
    """A client whose nth call ends the caller after it was made."""

    def __init__(self, client, cut):
        self._client, self._cut = client, cut

    def __getattr__(self, name):
        found = getattr(self._client, name)
        if not callable(found) or name in {"exceptions", "get_waiter", "get_paginator"}:
            return found

        def call(**arguments):
            answer = found(**arguments)
            self._cut(type("Call", (), {"action": name}))
            return answer

        return call


def test_a_notice_and_a_schedule_run_it_and_nothing_else_does(account, wait_until):
    with account() as (cloud, host):
        host.deploy(function())
        log = cloud._functions._directory / "functions.log"
        cloud._functions.tell("EC2 Instance State-change Notification", {}, "us-east-1")
        cloud._functions.tell("EC2 Spot Instance Interruption Warning", {"instance-id": "i-1"}, "us-east-1")
        wait_until(lambda: log.exists() and "status" in log.read_text())
        # Of a notice, it waits until the node has said so, too.
        assert log.read_text().splitlines() == ["['wait_seconds']", '{"status": 0}']
        wait_until(lambda: cloud._functions._due)
        later = time.time() + 61
        cloud._functions._now = lambda: datetime.fromtimestamp(later, timezone.utc)
        wait_until(lambda: len(log.read_text().splitlines()) == 4)
        assert log.read_text().splitlines()[2:] == ["[]", '{"status": 0}']


def test_rights_that_come_later_are_waited_for_and_other_faults_are_not(account, monkeypatch):
    code = (
        "import os, time\nstart = time.time()\n"
        "def handle(event, context):\n"
        "    print('no right to list')\n"
        "    if time.time() < start + 3: raise RuntimeError('the pass ended with status 4')\n"
    )
    with account() as (_, host):
        monkeypatch.setattr(host, "_sleep", lambda seconds: time.sleep(1.0))
        host.deploy(function(code))
        monkeypatch.setattr(functionhost, "ROLE_SECONDS", 0.0)
        with pytest.raises(CloudspotError, match=r"status 4 .*no right to list"):
            host.deploy(function(code.replace("start + 3", "start + 300")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"every": 90.0}, "every minute or number of minutes"),
        ({"every": 30.0}, "every minute or number of minutes"),
        ({"store": "gs://bucket"}, "needs a store in S3; this one is gs://bucket"),
    ],
)
def test_what_lambda_cannot_run_is_refused_before_anything_is_made(account, changes, message):
    with account() as (_, host):
        with pytest.raises(SpecError, match=message):
            host.plan(function(**changes))
        with pytest.raises(SpecError, match=message):
            host.deploy(function(**changes))
        assert left() == []


def test_code_for_a_newer_c_library_than_lambdas_is_refused(account):
    with account() as (_, host):
        new = structs.replace(function(), needs_glibc=(2, 39))
        with pytest.raises(
            SpecError, match=r"compiled for glibc 2.39 or newer, and Lambda's python3\..* has 2\."
        ):
            host.plan(new)


def test_too_much_code_and_other_systems_are_refused(account, monkeypatch):
    with account() as (_, host):
        monkeypatch.setattr(functionhost, "MAX_UNPACKED_BYTES", 10)
        with pytest.raises(SpecError, match="unpacked; Lambda takes"):
            host.plan(function())
        monkeypatch.setattr(functionhost.sys, "platform", "darwin")
        with pytest.raises(SpecError, match="deploy it from Linux on x86-64 or arm64"):
            host.plan(function())


def test_what_it_costs_is_said_before(account):
    with account() as (_, host):
        *_, cost = host.plan(function())
        # 43,776 passes of 3 s with half a GiB, by hand: 1.094 and 0.009 USD.
        assert cost == "about 1.10 USD a month at 3 s a pass, and the store's requests"
        assert json.dumps(host.plan(function(every=600.0))).count("every 10 minutes") == 1
