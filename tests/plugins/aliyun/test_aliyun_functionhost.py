"""A driver on the emulated Function Compute, which runs it as a custom runtime does."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
from pathlib import Path

import pytest
from support.clouds.functionhosttests import (
    GOOD,
    NAME,
    DriverInventoryTests,
    FunctionHostTests,
    calling_after,
)

from cloudspot.emulation.local_machine_host import emulated
from cloudspot.emulation.policies import is_allowed
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.model import REAP_EVENT
from cloudspot_aliyun import functionhost, functionserver, permissions
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.driverrole import driver_policy
from cloudspot_aliyun.functioncompute import FunctionCompute
from cloudspot_aliyun.functionhost import FunctionComputeHost
from cloudspot_aliyun.inventory import inventories
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.provider import AliyunProvider
from cloudspot_aliyun_sandbox.cloud import BUCKET, INTERRUPTION, EmulatedAliyun
from cloudspot_aliyun_sandbox.rights import rights_of

ROLE = f"{NAME}-cn-hangzhou"

pytestmark = [
    pytest.mark.full,
    pytest.mark.enclosed,
    pytest.mark.skipif(
        sys.version_info[:2] not in functionhost.LIMITS.glibc, reason="Function Compute has no such Python"
    ),
]


class TestFunctionCompute(DriverInventoryTests, FunctionHostTests):
    store = f"oss://{BUCKET}/x"
    files = {"cloudspot_aliyun/functionserver.py": Path(functionserver.__file__).read_text()}  # noqa: RUF012
    everything = (NAME, "notices", "schedule", ROLE, ROLE)
    reaping = (NAME, "notices", "reap", "schedule", ROLE, ROLE)
    removed = (
        "trigger schedule", "trigger notices", f"function {NAME}", f"policy {ROLE}", f"role {ROLE}",
    )  # fmt: skip
    changes = "UpdateFunction|UpdateTrigger|CreatePolicyVersion"
    newer = ("UpdateFunction", "UpdateTrigger")
    needed_rights = ("ram:CreatePolicy", "fc:CreateFunction", "fc:CreateTrigger", "fc:InvokeFunction")
    impatient = (functionhost, "LACKS_RIGHTS", "status 5")
    refused_store, needs_store = "gs://bucket", "needs a store in OSS"
    too_new, says_too_new = (2, 39), r"compiled for glibc 2.39 or newer, but .*debian12 has glibc 2\.36"
    foreign_system = (functionhost.sys, "platform", "darwin")
    says_foreign = r"Linux on x86-64 with Python 3\.11 to 3\.12"
    # 43,776 passes of 3 s, by hand: 1.5 CU of half a vCPU, 0.225 of half a GB and 0.0075 of the call.
    cost_each_minute = "9.10 CNY"

    @contextlib.contextmanager
    def account(self, directory):
        cloud = EmulatedAliyun()
        with emulated(cloud, directory / "state", is_isolated=True):
            os.environ.update(cloud.environment())  # This process is the test's alone.
            host = AliyunProvider(AliyunOptions()).function_host()
            assert isinstance(host, FunctionComputeHost)
            # Whoever waits lets the cloud's clock go on.
            ahead = [0.0]
            cloud._functions.clock = lambda: time.time() + ahead[0]
            host._sleep = lambda seconds: ahead.append(ahead.pop() + seconds)
            yield cloud, host

    def functions(self, cloud):
        return cloud._functions

    def left(self, cloud):
        functions, account = cloud._functions.functions, cloud._ecs.account
        triggers = sorted(name for one in functions.values() for name in one.triggers)
        return [*functions, *triggers, *account.ram.policies, *(set(account.roles) - {"cloudspot-node"})]

    def hear(self, cloud, *, is_notice):
        kind = INTERRUPTION if is_notice else "ecs:Instance:StateChange"
        cloud._functions.publish(kind, {"instanceId": "i-1"})

    def pass_time(self, cloud, host, seconds):
        while not cloud._functions._due:
            time.sleep(0.1)
        host._sleep(seconds)

    def check_daily_run(self, cloud, *, is_there):
        held = cloud._ecs.account.ram.documents_of(ROLE)
        assert is_allowed(held, "ecs:DeleteDisk", "acs:ecs:*:*:disk/d-1") == is_there
        assert is_allowed(held, "oss:ListMultipartUploads", f"acs:oss:*:*:{BUCKET}") == is_there
        if is_there:
            timer = cloud._functions.functions[NAME].triggers["reap"].config
            assert (timer["cronExpression"], json.loads(timer["payload"])) == ("@every 1440m", REAP_EVENT)

    def drivers(self, host):
        (found,) = (one for one in inventories(AliyunOptions(), host._clients) if "drivers" in one.title)
        return found

    def lose_function(self, host, name):
        for trigger in ("notices", "schedule"):
            host._ask("", "DELETE DeleteTrigger", f"/functions/{name}/triggers/{trigger}")
        host._ask("", "DELETE DeleteFunction", f"/functions/{name}")

    def cutting(self, host, cut):
        return calling_after([(AliyunClients, "ask_ecs"), (FunctionCompute, "_send")], cut)

    def test_its_role_has_the_bucket_and_machines_and_no_other_bucket(self, tmp_path):
        with self.account(tmp_path) as (cloud, host):
            host.deploy(self.function())
            held = cloud._ecs.account.ram.documents_of(ROLE)
            assert held == [driver_policy(BUCKET)]
            assert is_allowed(held, "oss:PutObject", f"acs:oss:*:*:{BUCKET}/x")
            assert not is_allowed(held, "oss:PutObject", "acs:oss:*:*:other/x")
            assert not is_allowed(held, "ram:PassRole", "acs:ram:*:*:role/admin")
            assert not is_allowed(held, "oss:PutBucketVersioning", f"acs:oss:*:*:{BUCKET}")
            # It may do what a submitter may, but for what only `providers check` and `image` do.
            submitter = rights_in((permissions.DIRECTORY / "policy-submitter.json").read_text())
            of_people = {"ecs:CreateImage", "ecs:DeleteImage", "ecs:DeleteSnapshot", "oss:GetBucketLifecycle"}
            assert rights_in(held[0]) == submitter - of_people
            # A policy of an older version is brought up to date.
            cloud._ecs.account.ram.policies[ROLE].versions = ['{"Version": "1", "Statement": []}'] * 5
            host.deploy(self.function())
            assert cloud._ecs.account.ram.documents_of(ROLE) == held
            host.remove(NAME)
            assert self.left(cloud) == []

    def test_who_deploys_takes_the_rights_of_the_documents_and_no_others(self, tmp_path):
        with self.account(tmp_path) as (cloud, host):
            host.status(NAME)
            host.deploy(self.function())
            host.deploy(self.function(GOOD + "#\n", every=300.0))
            cloud._ecs.account.ram.policies[ROLE].versions = ['{"Version": "1", "Statement": []}']
            host.deploy(self.function())
            host.remove(NAME)
            taken = set().union(*map(rights_of, cloud.faults.calls))
            assert taken == rights_in((permissions.DIRECTORY / "policy-deploy.json").read_text())

    def test_code_that_cannot_start_or_dies_is_told_with_its_own_words(self, tmp_path):
        with self.account(tmp_path) as (_, host):
            with pytest.raises(CloudspotError, match="does not run: No module named 'cryptography'"):
                host.deploy(self.function("import cryptography\n" + GOOD))
            with pytest.raises(CloudspotError, match="does not run: Function instance exited unexpectedly"):
                host.deploy(self.function("import os\ndef handle(event):\n    os._exit(3)\n"))

    def test_too_much_code_is_refused(self, tmp_path, monkeypatch):
        with self.account(tmp_path) as (_, host):
            small = dataclasses.replace(functionhost.LIMITS, max_unpacked_bytes=10)
            monkeypatch.setattr(functionhost, "LIMITS", small)
            with pytest.raises(SpecError, match="unpacked; Function Compute accepts"):
                host.plan(self.function())


def rights_in(policy: str) -> set[str]:
    """Return the rights in a policy."""
    actions = [one["Action"] for one in json.loads(policy)["Statement"]]
    return {right for each in actions for right in ([each] if isinstance(each, str) else each)}
