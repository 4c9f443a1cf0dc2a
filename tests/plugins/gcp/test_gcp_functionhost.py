"""A driver on the emulated Cloud Run functions, which runs it with Google's own functions-framework."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import time
from base64 import b64decode
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.clouds.functionhosttests import GOOD, NAME, DriverInventoryTests, FunctionHostTests

from cloudspot.emulation.local_machine_host import emulated
from cloudspot.errors import CloudspotError
from cloudspot.model import REAP_EVENT
from cloudspot_gcp import functionrights, functionschedules
from cloudspot_gcp.functionhost import CloudRunHost
from cloudspot_gcp.inventory import inventories
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.permissions import role
from cloudspot_gcp.provider import GcpProvider
from cloudspot_gcp_sandbox import strict_functions, strict_iam
from cloudspot_gcp_sandbox.cloud import BUCKET, NODE, EmulatedGcp
from cloudspot_gcp_sandbox.strict_compute import PROJECT
from cloudspot_gcp_sandbox.taken import rights_of

EMAIL = f"{NAME}@{PROJECT}.iam.gserviceaccount.com"
MACHINE = f"projects/{PROJECT}/zones/us-central1-a/instances/cs-digits-1-0"
FUNCTIONS = "cloudfunctions.projects.locations.functions"
GRANTS = sorted([
    EMAIL, f"{NAME} bucket", f"{NAME} driver",
    f"serviceAccount:{EMAIL} on projects/_/buckets/{BUCKET}",
    f"serviceAccount:{EMAIL} on projects/{PROJECT}",
    f"serviceAccount:{EMAIL} on projects/{PROJECT}/locations/us-central1/services/{NAME}",
    f"serviceAccount:{EMAIL} on projects/{PROJECT}/serviceAccounts/{NODE}",
])  # fmt: skip

pytestmark = [pytest.mark.full, pytest.mark.enclosed]


class TestCloudRun(DriverInventoryTests, FunctionHostTests):
    store = f"gs://{BUCKET}/x"
    state = "ACTIVE"
    done = "cloudspot pass: done"
    everything = (NAME, NAME, *GRANTS)
    reaping = (NAME, NAME, f"{NAME}-reap", *GRANTS)
    removed = (
        f"schedule {NAME}", f"function {NAME}", "role cloudspot", "role cloudspot", f"service account {EMAIL}",
    )  # fmt: skip
    changes = rf"{re.escape(FUNCTIONS)}\.patch|signed\.put|.*setIamPolicy|.*\.create"
    newer = (f"{FUNCTIONS}.patch", "signed.put")
    needed_rights = ("run.services.setIamPolicy", "iam.serviceAccounts.actAs")
    impatient = (functionschedules, "KNOWN_SECONDS", 0.0)
    refused_store, needs_store = "s3://bucket", "needs a store in Cloud Storage"
    says_too_new = r"compiled for glibc 2.40 or newer, but Google's python3.* has glibc 2\."
    foreign_system = (platform, "machine", lambda: "aarch64")
    says_foreign = "deploy it from Linux on x86-64"
    # 43,776 passes of 3 s with a third of a vCPU and half a GiB, by hand: 1.23 USD; and the schedule.
    cost_each_minute = "1.33 USD"
    says_ten_minutes = "Cloud Scheduler: every 10 minutes;"

    @contextlib.contextmanager
    def account(self, directory, lag=0.2):
        """What is new is known soon."""
        strict_iam.LAG_SECONDS, strict_functions.BUILD_SECONDS = lag, lag
        cloud = EmulatedGcp()
        with emulated(cloud, directory / "state", is_isolated=True):
            os.environ.update(cloud.environment())  # This process is the test's alone.
            host = GcpProvider(GcpOptions()).function_host()
            assert isinstance(host, CloudRunHost)
            yield cloud, with_retries(host)

    def functions(self, cloud):
        return cloud.functions

    def left(self, cloud):
        return [*cloud.functions.left(), *cloud.scheduler.left(), *cloud.iam.left("driver")]

    def hear(self, cloud, *, is_notice):
        method = "preempted" if is_notice else "guestTerminate"
        cloud.functions.publish(MACHINE, f"compute.instances.{method}", "europe-west4")

    def pass_time(self, cloud, host, seconds):
        later = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        cloud.scheduler.now = lambda: later

    def check_daily_run(self, cloud, *, is_there):
        if is_there:
            (job,) = (one for name, one in cloud.scheduler._jobs.items() if name.endswith("-reap"))
            told = json.loads(b64decode(job["httpTarget"]["body"]))
            assert (job["schedule"], told["data"]) == ("every 24 hours", REAP_EVENT)
        time.sleep(0.3)
        assert cloud.iam.has(EMAIL, "compute.disks.delete", "") == is_there

    def drivers(self, host):
        (found,) = (one for one in inventories(GcpOptions(), host._clients) if one.title == "drivers")
        host_of = found.host_of
        found.host_of = lambda name: with_retries(host_of(name))
        return found

    def lose_function(self, host, name):
        list(host._schedules(name).remove())
        host._wait_for(host._ask("DELETE", host._function_url(name)))

    def test_a_driver_in_another_region_is_known_to_stand_and_removed_there(self, tmp_path, monkeypatch):
        with self.account(tmp_path) as (cloud, _):
            there = with_retries(GcpProvider(GcpOptions(regions=("europe-west4",))).function_host())
            driver = self.named()
            there.deploy(driver)
            drivers = self.drivers(there)
            (found,) = drivers.assets([self.store])
            assert found.is_in_use
            assert "/europe-west4/" in found.where
            drivers.end(found)
            assert self.left(cloud) == []

    @pytest.mark.parametrize("with_function", [True, False])
    def test_grants_of_an_account_that_somebody_has_deleted_are_taken_back(self, tmp_path, with_function):
        with self.account(tmp_path) as (cloud, host):
            host.deploy(self.function())
            if not with_function:
                self.lose_function(host, NAME)
            host._ask("DELETE", host._rights(NAME)._account_url)
            assert any(one.startswith("deleted:") for one in cloud.iam.left("driver"))
            host.remove(NAME)
            assert self.left(cloud) == []

    @contextlib.contextmanager
    def cutting(self, host, cut):
        ask = host._clients.ask_json

        def cutting(method, url, **options):
            answer = ask(method, url, **options)
            # Only what changes something.
            if method != "GET" and not url.partition("?")[0].endswith((":getIamPolicy", "entries:list")):
                cut()
            return answer

        host._clients.ask_json = cutting
        try:
            yield
        finally:
            host._clients.ask_json = ask

    def test_who_deploys_takes_the_rights_of_the_documents_and_no_others(self, tmp_path):
        with self.account(tmp_path) as (cloud, host):
            host.status(NAME)
            host.deploy(self.function())
            pause(host)
            assert host.status(NAME).every_seconds is None
            cloud.iam._roles[next(iter(cloud.iam._roles))][
                "includedPermissions"
            ] = []  # as of an older version
            host.deploy(self.function(GOOD + "# newer\n", every=300.0))
            assert host.status(NAME).every_seconds == 300.0
            assert all(one["includedPermissions"] for one in cloud.iam._roles.values())
            host.remove(NAME)
            # The grant of docs/gcp.md under a condition has outlived it all.
            (kept,) = cloud.iam._policies[f"projects/{PROJECT}"]["bindings"]
            assert kept["condition"]["title"] == "machines of cloudspot's"
            taken = set().union(
                *(rights_of(call) for call in cloud.faults.calls if "pause" not in call.action)
            )
            assert taken - documented() == {"logging.logEntries.list"}  # as a submitter
            # As `reap` does, which looks for functions and disks that nobody needs any longer.
            for_reap = {"cloudfunctions.functions.list", "compute.disks.list", "compute.disks.delete"}
            assert documented() - taken == for_reap

    def test_code_that_does_not_build_is_told_in_its_own_words(self, tmp_path):
        with self.account(tmp_path) as (_, host):
            with pytest.raises(CloudspotError, match=r"cannot make the driver: Build failed .*driving\.py"):
                host.deploy(self.function("def handle(event:\n"))
            assert host.status(NAME).state == "FAILED"
            host.deploy(self.function())
            assert host.status(NAME).state == "ACTIVE"

    @pytest.mark.soak
    def test_accounts_grants_and_builds_that_take_a_while_are_waited_for(self, tmp_path):
        with self.account(tmp_path, lag=2.0) as (cloud, host):
            host.deploy(self.function())
            host.remove(NAME)
            host.deploy(self.function())  # although the ids of its roles are taken for weeks
            assert self.left(cloud) == list(self.everything)

    def test_its_account_has_the_bucket_and_machines_and_no_other_bucket(self, tmp_path):
        with self.account(tmp_path) as (cloud, host):
            host.deploy(self.function())
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


def test_its_role_has_what_a_submitters_has_but_drills_and_baking_and_hears_of_audit_events():
    role = json.loads(Path(functionrights.__file__).with_name("role-driver.json").read_text())
    driver, heard = set(role["includedPermissions"]), {"receiveAuditLogWritten", "receiveEvent"}
    assert driver - permissions("role-submitter.yaml") == {f"eventarc.events.{one}" for one in heard}
    assert permissions("role-submitter.yaml") - driver == {
        "compute.disks.useReadOnly",
        "compute.globalOperations.get",
        "compute.images.create",
        "compute.images.delete",
        "compute.images.setLabels",
        "compute.instances.simulateMaintenanceEvent",
    }


def with_retries(host: CloudRunHost) -> CloudRunHost:
    """Let the host look again soon."""
    host._sleep = lambda seconds: time.sleep(min(seconds, 0.05))
    return host


def pause(host: CloudRunHost) -> None:
    """Pause the driver's schedule, as its owner might."""
    schedules = host._schedules(NAME)
    schedules._ask("POST", f"{schedules._url(NAME)}:pause", json={})


def documented() -> set[str]:
    """Return the rights that whoever deploys a driver is given."""
    return permissions("role-deployer.yaml")


def permissions(name: str) -> set[str]:
    """Return those of a role."""
    return {*role(name.removeprefix("role-").removesuffix(".yaml")).permissions}
