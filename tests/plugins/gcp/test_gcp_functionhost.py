"""A driver on the emulated Cloud Run functions, which runs it with Google's own functions-framework."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import time
import zipfile
from base64 import b64decode
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from msgspec import structs

from cloudspot.emulation.local_machine_host import emulated
from cloudspot.errors import AuthError, CloudspotError, SpecError
from cloudspot.model import REAP_EVENT, DriverFunction
from cloudspot_gcp import functionhost, functionrights, functionschedules
from cloudspot_gcp.functionhost import CloudRunHost
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.provider import GcpProvider
from cloudspot_gcp_sandbox import strict_functions, strict_iam
from cloudspot_gcp_sandbox.cloud import BUCKET, NODE, EmulatedGcp
from cloudspot_gcp_sandbox.strict_compute import PROJECT
from cloudspot_gcp_sandbox.taken import rights_of

NAME = "cloudspot-driver-0123456789ab"
EMAIL = f"{NAME}@{PROJECT}.iam.gserviceaccount.com"
MACHINE = f"projects/{PROJECT}/zones/us-central1-a/instances/cs-digits-1-0"
GOOD = "def handle(event):\n    print('given', sorted(event))\n    return {'status': 0}\n"
BAD = "def handle(event):\n    raise RuntimeError('no bucket for you')\n"
DOCS = Path(__file__).parents[3] / "docs" / "gcp"
FUNCTIONS = "cloudfunctions.projects.locations.functions"

pytestmark = pytest.mark.enclosed


def function(code: str = GOOD, *, every: float = 60.0, store: str = f"gs://{BUCKET}/x") -> DriverFunction:
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
    """The emulated project, and the host of functions of its owner; what is new is known soon."""

    @contextlib.contextmanager
    def make(lag=0.2):
        strict_iam.LAG_SECONDS, strict_functions.BUILD_SECONDS = lag, lag
        cloud = EmulatedGcp()
        with emulated(cloud, tmp_path / "state", is_isolated=True):
            os.environ.update(cloud.environment())  # This process is the test's alone.
            host = GcpProvider(GcpOptions()).function_host()
            assert isinstance(host, CloudRunHost)
            host._sleep = lambda seconds: time.sleep(min(seconds, 0.3))
            yield cloud, host

    return make


def left(cloud: EmulatedGcp) -> list[str]:
    """Return all of the project that is a driver's."""
    return [*cloud.functions.left(), *cloud.scheduler.left(), *cloud.iam.left("driver")]


ALL = sorted([
    EMAIL, f"{NAME} bucket", f"{NAME} driver",
    f"serviceAccount:{EMAIL} on projects/_/buckets/{BUCKET}",
    f"serviceAccount:{EMAIL} on projects/{PROJECT}",
    f"serviceAccount:{EMAIL} on projects/{PROJECT}/locations/us-central1/services/{NAME}",
    f"serviceAccount:{EMAIL} on projects/{PROJECT}/serviceAccounts/{NODE}",
])  # fmt: skip


def test_a_driver_is_deployed_again_without_a_change_and_removed_without_a_rest(account):
    with account() as (cloud, host):
        assert host.status(NAME) is None
        host.deploy(function())
        assert left(cloud) == [NAME, NAME, *ALL]
        found = host.status(NAME)
        assert found is not None
        assert (found.state, found.every_seconds) == ("ACTIVE", 60.0)
        assert abs((datetime.now(timezone.utc) - found.changed_at).total_seconds()) < 60
        first = len(cloud.faults.calls)
        host.deploy(function())
        again = [call.action for call in cloud.faults.calls[first:]]
        assert not {f"{FUNCTIONS}.patch", "signed.put"} & set(again)
        assert not [one for one in again if one.endswith(("setIamPolicy", ".create"))]
        pause(host)
        assert host.status(NAME).every_seconds is None
        cloud.iam._roles[next(iter(cloud.iam._roles))]["includedPermissions"] = []  # as of an older version
        host.deploy(function(GOOD + "# newer\n", every=300.0))
        assert cloud.faults.count(f"{FUNCTIONS}.patch") == cloud.faults.count("signed.put") - 1
        assert host.status(NAME).every_seconds == 300.0
        assert all(one["includedPermissions"] for one in cloud.iam._roles.values())
        removed = host.remove(NAME)
        assert [one.partition("_")[0] for one in removed] == [
            f"schedule {NAME}", f"function {NAME}", "role cloudspot", "role cloudspot", f"service account {EMAIL}",
        ]  # fmt: skip
        assert left(cloud) == []
        assert host.remove(NAME) == []
        # The grant of docs/gcp.md under a condition has outlived it all.
        (kept,) = cloud.iam._policies[f"projects/{PROJECT}"]["bindings"]
        assert kept["condition"]["title"] == "machines of cloudspot's"
        taken = set().union(*(rights_of(call) for call in cloud.faults.calls if "pause" not in call.action))
        assert taken - documented() == {"logging.logEntries.list"}  # as a submitter
        assert documented() - taken == set()


def pause(host: CloudRunHost) -> None:
    """Pause the driver's schedule, as its owner might."""
    schedules = host._schedules(NAME)
    schedules._ask("POST", f"{schedules._url(NAME)}:pause", json={})


def documented() -> set[str]:
    """Return the rights that docs/gcp.md has for whoever deploys a driver."""
    text = (DOCS.parent / "gcp.md").read_text()
    block = re.search(r"what a project's owner has of\n\n((?:    .+\n)+)", text)
    found = set()
    for group in re.split(r"[;\n]", block[1]):
        first, *others = [one.strip() for one in group.split(",")]
        found |= {first, *(f"{first.rpartition('.')[0]}.{one}" for one in others)} - {""}
    return found


@pytest.mark.soak
def test_accounts_grants_and_builds_that_take_a_while_are_waited_for(account):
    with account(lag=2.0) as (cloud, host):
        host.deploy(function())
        host.remove(NAME)
        host.deploy(function())  # although the ids of its roles are taken for weeks
        assert left(cloud) == [NAME, NAME, *ALL]


def test_its_account_has_the_bucket_and_machines_and_no_other_bucket(account):
    with account() as (cloud, host):
        host.deploy(function())
        time.sleep(0.3)
        may = cloud.iam.has
        assert may(EMAIL, "storage.objects.delete", f"projects/_/buckets/{BUCKET}")
        assert not may(EMAIL, "storage.objects.get", f"projects/_/buckets/{BUCKET}-other")
        assert not may(EMAIL, "storage.objects.get", "")
        assert may(EMAIL, "compute.instances.delete", "")
        assert may(EMAIL, "iam.serviceAccounts.actAs", NODE)
        assert not may(EMAIL, "iam.serviceAccounts.actAs", EMAIL)
        # Whoever may do all but invoke it is not let in.
        (found,) = cloud.functions._functions.values()
        assert cloud.functions.call(found["serviceConfig"]["uri"], {}, b"{}", email=NODE).status == 403


def test_with_reap_it_has_a_daily_schedule_and_more_rights_until_it_is_deployed_without(account):
    with account() as (cloud, host):
        reaping = structs.replace(function(), reaps=True)
        assert any("once a day" in line for line in host.plan(reaping))
        host.deploy(reaping)
        assert left(cloud) == [NAME, NAME, f"{NAME}-reap", *ALL]
        (job,) = (one for name, one in cloud.scheduler._jobs.items() if name.endswith("-reap"))
        told = json.loads(b64decode(job["httpTarget"]["body"]))
        assert (job["schedule"], told["data"]) == ("every 24 hours", REAP_EVENT)
        time.sleep(0.3)
        assert cloud.iam.has(EMAIL, "compute.disks.delete", "")
        host.deploy(function())
        assert left(cloud) == [NAME, NAME, *ALL]
        time.sleep(0.3)
        assert not cloud.iam.has(EMAIL, "compute.disks.delete", "")


def test_its_role_has_what_a_submitters_has_but_drills_and_hears_of_audit_events():
    role = json.loads(Path(functionrights.__file__).with_name("role-driver.json").read_text())
    driver, heard = set(role["includedPermissions"]), {"receiveAuditLogWritten", "receiveEvent"}
    assert driver - permissions("role-submitter.yaml") == {f"eventarc.events.{one}" for one in heard}
    assert permissions("role-submitter.yaml") - driver == {"compute.instances.simulateMaintenanceEvent"}
    assert set(functionrights.BUCKET_PERMISSIONS) == permissions("role-bucket.yaml")


def permissions(name: str) -> set[str]:
    """Return those of a role in docs."""
    lines = (DOCS / name).read_text().splitlines()
    return {line[2:] for line in lines[lines.index("includedPermissions:") :] if line.startswith("- ")}


def test_code_that_does_not_build_or_run_is_told_in_its_own_words_and_better_code_takes_its_place(account):
    with account() as (_, host):
        with pytest.raises(CloudspotError, match=r"cannot make the driver: Build failed .*driving\.py"):
            host.deploy(function("def handle(event:\n"))
        assert host.status(NAME).state == "FAILED"
        with pytest.raises(CloudspotError, match="does not run: no bucket for you"):
            host.deploy(function(BAD))
        host.deploy(function())
        assert host.status(NAME).state == "ACTIVE"


@pytest.mark.parametrize("right", ["run.services.setIamPolicy", "iam.serviceAccounts.actAs"])
def test_a_missing_right_is_named_and_a_later_deployment_goes_on(account, right):
    with account() as (cloud, host):
        cloud.faults.denied.add(right)
        with pytest.raises(AuthError, match=right):
            host.deploy(function())
        cloud.faults.denied.clear()
        host.deploy(function())
        assert left(cloud) == [NAME, NAME, *ALL]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_what_is_cut_off_after_any_call_is_finished_by_the_next(account):
    with account() as (cloud, host):
        for skip in range(100):
            if not is_cut(host, lambda: host.deploy(function()), after=skip):
                break
            host.deploy(function())
            assert left(cloud) == [NAME, NAME, *ALL], skip
            is_cut(host, lambda: host.remove(NAME), after=skip)
            host.remove(NAME)
            assert left(cloud) == [], skip
        assert skip > 10  # the calls that change something; one may have been repeated


def is_cut(host: CloudRunHost, work, *, after: int) -> bool:
    """Do the work, but end it after so many calls that change something; return whether that came first."""
    ask, changes = host._clients.ask_json, []

    def cut(method, url, **options):
        answer = ask(method, url, **options)
        if method != "GET" and not url.partition("?")[0].endswith((":getIamPolicy", "entries:list")):
            changes.append(url)
            if len(changes) > after:
                raise KeyboardInterrupt
        return answer

    host._clients.ask_json = cut
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        host._clients.ask_json = ask
    return False


def test_a_preemption_and_the_schedule_run_it_and_nothing_else_does(account, wait_until):
    with account() as (cloud, host):
        host.deploy(function())
        log = cloud.functions._directory / "functions.log"
        assert log.read_text().splitlines() == ["given []", "cloudspot pass: done"]
        cloud.functions.tell(MACHINE, "compute.instances.guestTerminate", "us-central1")
        cloud.functions.tell(MACHINE, "compute.instances.preempted", "europe-west4")
        wait_until(lambda: len(log.read_text().splitlines()) == 4)
        # Of a preemption, it waits until the node has said so, too.
        assert log.read_text().splitlines()[2:] == ["given ['wait_seconds']", "cloudspot pass: done"]
        later = datetime.now(timezone.utc) + timedelta(seconds=61)
        cloud.scheduler.now = lambda: later
        wait_until(lambda: len(log.read_text().splitlines()) == 6)
        assert log.read_text().splitlines()[4:] == ["given []", "cloudspot pass: done"]


def test_rights_that_come_later_are_waited_for_and_other_faults_are_not(account, monkeypatch):
    code = (
        "import time\nstart = time.time()\n"
        "def handle(event):\n"
        "    print('no right to list')\n"
        "    if time.time() < start + 2: raise RuntimeError('the pass ended with status 4')\n"
    )
    with account() as (_, host):
        host.deploy(function(code))
        monkeypatch.setattr(functionschedules, "KNOWN_SECONDS", 0.0)
        with pytest.raises(CloudspotError, match=r"status 4 .*no right to list"):
            host.deploy(function(code.replace("start + 2", "start + 300")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"every": 90.0}, "every minute or number of minutes"),
        ({"store": "s3://bucket"}, "needs a store in Cloud Storage; this one is s3://bucket"),
    ],
)
def test_what_google_cannot_run_is_refused_before_anything_is_made(account, changes, message):
    with account() as (cloud, host):
        with pytest.raises(SpecError, match=message):
            host.plan(function(**changes))
        with pytest.raises(SpecError, match=message):
            host.deploy(function(**changes))
        assert cloud.faults.calls == []


def test_code_for_a_newer_c_library_and_other_systems_are_refused(account, monkeypatch):
    with account() as (_, host):
        new = structs.replace(function(), needs_glibc=(2, 40))
        with pytest.raises(
            SpecError, match=r"compiled for glibc 2.40 or newer, and Google's python3.* has 2\."
        ):
            host.plan(new)
        monkeypatch.setattr(functionhost.platform, "machine", lambda: "aarch64")
        with pytest.raises(SpecError, match="deploy it from Linux on x86-64"):
            host.plan(function())


def test_what_it_costs_is_said_before(account):
    with account() as (_, host):
        lines = host.plan(function())
        # 43,776 passes of 3 s with a third of a vCPU and half a GiB, by hand: 1.23 USD; and the schedule.
        assert lines[-1] == "about 1.33 USD a month at 3 s a pass, and the store's requests"
        assert "Cloud Scheduler: every 10 minutes;" in host.plan(function(every=600.0))[2]
