"""A driver on the emulated Function Compute, which runs it as a custom runtime does."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import time
import zipfile
from datetime import datetime, timezone
from pathlib import Path

import pytest
from msgspec import structs

from cloudspot.emulation.local_machine_host import emulated
from cloudspot.errors import AuthError, CloudspotError, SpecError
from cloudspot.model import REAP_EVENT, DriverFunction
from cloudspot_aliyun import functionhost, functionserver
from cloudspot_aliyun.driverrole import driver_policy
from cloudspot_aliyun.functionhost import FunctionComputeHost
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.provider import AliyunProvider
from cloudspot_aliyun_sandbox.cloud import BUCKET, INTERRUPTION, EmulatedAliyun
from cloudspot_aliyun_sandbox.ram import is_allowed
from cloudspot_aliyun_sandbox.rights import NODE_POLICY, rights_of

NAME = "cloudspot-driver-0123456789ab"
ROLE = f"{NAME}-cn-hangzhou"
ALL = [NAME, "notices", "schedule", ROLE, ROLE]
GOOD = "def handle(event):\n    print(sorted(event))\n    return {'status': 0}\n"
BAD = "def handle(event):\n    print('asked')\n    raise RuntimeError('no bucket for you')\n"
SERVER = Path(functionserver.__file__).read_text()
DOCS = Path(__file__).parents[3] / "docs" / "aliyun"

pytestmark = [
    pytest.mark.enclosed,
    pytest.mark.skipif(
        sys.version_info[:2] not in functionhost.PYTHONS, reason="Function Compute has no such Python"
    ),
]


def function(code: str = GOOD, *, every: float = 60.0, store: str = f"oss://{BUCKET}/x") -> DriverFunction:
    """A driver that is one small module, and the server that hands it events."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(zipfile.ZipInfo("driving.py"), code)  # without the time
        archive.writestr(zipfile.ZipInfo("cloudspot_aliyun/functionserver.py"), SERVER)
    return DriverFunction(
        name=NAME, archive=target.getvalue(), unpacked_bytes=len(code), handler="driving.handle",
        every_seconds=every, store_url=store, environment={"CLOUDSPOT_STORE": store},
    )  # fmt: skip


@pytest.fixture
def account(tmp_path):
    """The emulated account, and the host of functions of its owner."""

    @contextlib.contextmanager
    def make():
        cloud = EmulatedAliyun()
        with emulated(cloud, tmp_path / "state", is_isolated=True):
            os.environ.update(cloud.environment())  # This process is the test's alone.
            host = AliyunProvider(AliyunOptions()).function_host()
            assert isinstance(host, FunctionComputeHost)
            # Whoever waits lets the cloud's clock go on.
            ahead = [0.0]
            cloud._functions.clock = lambda: time.time() + ahead[0]
            host._sleep = lambda seconds: ahead.append(ahead.pop() + seconds)
            yield cloud, host

    return make


def left(cloud: EmulatedAliyun) -> list[str]:
    """Return all of the account that is a driver's."""
    functions, account = cloud._functions.functions, cloud._ecs.account
    triggers = sorted(name for one in functions.values() for name in one.triggers)
    return [*functions, *triggers, *account.ram.policies, *(set(account.roles) - {"cloudspot-node"})]


def test_a_driver_is_deployed_again_without_a_change_and_removed_without_a_rest(account):
    with account() as (cloud, host):
        assert host.status(NAME) is None
        host.deploy(function())
        assert left(cloud) == ALL
        found = host.status(NAME)
        assert (found.state, found.every_seconds, found.where.split(":")[-1]) == (
            "Active",
            60.0,
            f"functions/{NAME}",
        )
        assert abs((datetime.now(timezone.utc) - found.changed_at).total_seconds()) < 60
        cloud.faults.calls.clear()
        host.deploy(function())
        changes = {"UpdateFunction", "UpdateTrigger", "CreatePolicyVersion"}
        assert not changes & {call.action for call in cloud.faults.calls}
        host.deploy(function(GOOD + "# newer\n", every=300.0))
        assert host.status(NAME).every_seconds == 300.0
        assert changes & {call.action for call in cloud.faults.calls} == {"UpdateFunction", "UpdateTrigger"}
        removed = [
            "trigger schedule",
            "trigger notices",
            f"function {NAME}",
            f"policy {ROLE}",
            f"role {ROLE}",
        ]
        assert host.remove(NAME) == removed
        assert left(cloud) == []
        assert host.remove(NAME) == []


def test_its_role_has_the_bucket_and_machines_and_no_other_bucket(account):
    with account() as (cloud, host):
        host.deploy(function())
        held = cloud._ecs.account.ram.documents_of(ROLE)
        assert held == [driver_policy(BUCKET)]
        assert is_allowed(held, "oss:PutObject", f"acs:oss:*:*:{BUCKET}/x")
        assert not is_allowed(held, "oss:PutObject", "acs:oss:*:*:other/x")
        assert not is_allowed(held, "ram:PassRole", "acs:ram:*:*:role/admin")
        assert not is_allowed(held, "oss:PutBucketVersioning", f"acs:oss:*:*:{BUCKET}")
        assert json.loads(NODE_POLICY) == json.loads((DOCS / "policy-node.json").read_text())
        # It may do what a submitter may, but for what only `providers check` asks.
        submitter = rights_in((DOCS / "policy-submitter.json").read_text())
        assert rights_in(held[0]) == submitter - {"oss:GetBucketLifecycle"}
        # A policy of an older version is brought up to date.
        cloud._ecs.account.ram.policies[ROLE].versions = ['{"Version": "1", "Statement": []}'] * 5
        host.deploy(function())
        assert cloud._ecs.account.ram.documents_of(ROLE) == held
        host.remove(NAME)
        assert left(cloud) == []


def test_with_reap_it_has_a_daily_timer_and_more_rights_until_it_is_deployed_without(account):
    with account() as (cloud, host):
        reaping = structs.replace(function(), reaps=True)
        assert any("once a day" in line for line in host.plan(reaping))
        host.deploy(reaping)
        assert left(cloud) == [NAME, "notices", "reap", "schedule", ROLE, ROLE]
        timer = cloud._functions.functions[NAME].triggers["reap"].config
        assert (timer["cronExpression"], json.loads(timer["payload"])) == ("@every 1440m", REAP_EVENT)
        held = cloud._ecs.account.ram.documents_of(ROLE)
        assert is_allowed(held, "ecs:DeleteDisk", "acs:ecs:*:*:disk/d-1")
        assert is_allowed(held, "oss:ListMultipartUploads", f"acs:oss:*:*:{BUCKET}")
        host.deploy(function())
        assert left(cloud) == ALL
        assert not is_allowed(
            cloud._ecs.account.ram.documents_of(ROLE), "ecs:DeleteDisk", "acs:ecs:*:*:disk/d-1"
        )


def rights_in(policy: str) -> set[str]:
    """Return the rights in a policy."""
    actions = [one["Action"] for one in json.loads(policy)["Statement"]]
    return {right for each in actions for right in ([each] if isinstance(each, str) else each)}


def test_a_driver_that_does_not_run_is_told_with_its_own_words(account):
    with account() as (_, host):
        with pytest.raises(CloudspotError, match="does not run: no bucket for you asked"):
            host.deploy(function(BAD))
        with pytest.raises(CloudspotError, match="does not run: No module named 'cryptography'"):
            host.deploy(function("import cryptography\n" + GOOD))
        with pytest.raises(CloudspotError, match="does not run: Function instance exited unexpectedly"):
            host.deploy(function("import os\ndef handle(event):\n    os._exit(3)\n"))


def test_who_deploys_takes_the_rights_of_the_documents_and_no_others(account):
    with account() as (cloud, host):
        host.status(NAME)
        host.deploy(function())
        host.deploy(function(GOOD + "#\n", every=300.0))
        cloud._ecs.account.ram.policies[ROLE].versions = ['{"Version": "1", "Statement": []}']
        host.deploy(function())
        host.remove(NAME)
        taken = set().union(*map(rights_of, cloud.faults.calls))
        section = (DOCS.parent / "aliyun.md").read_text().partition("## A driver in the cloud")[2]
        listed = re.findall(r"^    (\w+):((?:[\w\s]+,?)+)$", section.partition("```")[0], re.MULTILINE)
        assert taken == {f"{product}:{one}" for product, names in listed for one in re.findall(r"\w+", names)}


@pytest.mark.parametrize(
    "right", ["ram:CreatePolicy", "fc:CreateFunction", "fc:CreateTrigger", "fc:InvokeFunction"]
)
def test_a_missing_right_is_named_and_a_later_deployment_goes_on(account, right):
    with account() as (cloud, host):
        cloud.faults.denied.add(right)
        with pytest.raises(AuthError, match=right):
            host.deploy(function())
        cloud.faults.denied.clear()
        host.deploy(function())
        assert left(cloud) == ALL


@pytest.mark.parametrize("skip", range(14))
@pytest.mark.soak
def test_what_is_cut_off_anywhere_is_finished_by_the_next(account, skip):
    with account() as (cloud, host):
        for act in (lambda: host.deploy(function()), lambda: host.remove(NAME)):
            calls = []

            def cut(call, calls=calls):
                calls.append(call.action)
                if len(calls) == skip + 1:
                    raise KeyboardInterrupt

            with cut_off(cut), contextlib.suppress(KeyboardInterrupt):
                act()
            act()
            assert left(cloud) == (ALL if host.status(NAME) else [])
        assert left(cloud) == []


@contextlib.contextmanager
def cut_off(cut):
    """Let ``cut`` end the caller after each call of the control plane was made."""
    from cloudspot_aliyun.clients import AliyunClients
    from cloudspot_aliyun.functioncompute import FunctionCompute

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((AliyunClients, "ask_ecs"), (FunctionCompute, "_send")):
            call = getattr(owner, name)

            def wrapped(self, *rest, _call=call, _name=name, **more):
                answer = _call(self, *rest, **more)
                cut(type("Call", (), {"action": _name}))
                return answer

            patch.setattr(owner, name, wrapped)
        yield


def test_a_notice_and_a_schedule_run_it_and_nothing_else_does(account, wait_until):
    with account() as (cloud, host):
        host.deploy(function())
        log = cloud._functions._directory / "functions.log"
        cloud._functions.tell("ecs:Instance:StateChange", {"instanceId": "i-1"})
        cloud._functions.tell(INTERRUPTION, {"instanceId": "i-1"})
        wait_until(lambda: log.exists() and "status" in log.read_text())
        # Of a notice, it waits until the node has said so, too.
        assert said(log) == ["['wait_seconds']", '{"status": 0}']
        wait_until(lambda: cloud._functions._due)
        host._sleep(61.0)
        wait_until(lambda: len(said(log)) == 4)
        assert said(log)[2:] == ["[]", '{"status": 0}']


def said(log: Path) -> list[str]:
    """Return what the function has said, without the lines of Function Compute's."""
    return [line for line in log.read_text().splitlines() if not line.startswith("FC Invoke")]


def test_rights_that_come_later_are_waited_for_and_other_faults_are_not(account, monkeypatch):
    code = (
        "import itertools\nasked = itertools.count(1)\n"
        "def handle(event):\n"
        "    print('no right to list')\n"
        "    if next(asked) < 3: raise RuntimeError('the pass ended with status 4')\n"
    )
    with account() as (_, host):
        host.deploy(function(code))
        monkeypatch.setattr(functionhost, "LACKS_RIGHTS", "status 5")
        with pytest.raises(CloudspotError, match=r"status 4 no right to list"):
            host.deploy(function(code + "# newer"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"every": 90.0}, "every minute or number of minutes"),
        ({"every": 30.0}, "every minute or number of minutes"),
        ({"store": "gs://bucket"}, "needs a store in OSS; this one is gs://bucket"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_made(account, changes, message):
    with account() as (cloud, host):
        for act in (host.plan, host.deploy):
            with pytest.raises(SpecError, match=message):
                act(function(**changes))
        assert left(cloud) == []


def test_other_code_and_other_systems_are_refused(account, monkeypatch):
    with account() as (_, host):
        with pytest.raises(SpecError, match=r"compiled for glibc 2.39 or newer, and .*debian12 has 2\.36"):
            host.plan(structs.replace(function(), needs_glibc=(2, 39)))
        with (
            monkeypatch.context() as patch,
            pytest.raises(SpecError, match="unpacked; Function Compute takes"),
        ):
            patch.setattr(functionhost, "MAX_UNPACKED_BYTES", 10)
            host.plan(function())
        monkeypatch.setattr(functionhost.sys, "platform", "darwin")
        with pytest.raises(SpecError, match=r"Linux on x86-64 with Python 3\.11 or 3\.12"):
            host.plan(function())


def test_what_it_costs_is_said_before(account):
    with account() as (_, host):
        *_, cost = host.plan(function())
        # 43,776 passes of 3 s, by hand: 1.5 CU of half a vCPU, 0.225 of half a GB and 0.0075 of the call.
        assert cost == "about 9.10 CNY a month at 3 s a pass, and the store's requests"
        assert json.dumps(host.plan(function(every=600.0))).count("every 10 minutes") == 1
