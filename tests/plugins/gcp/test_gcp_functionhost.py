"""A driver on the emulated Cloud Run functions, which runs it with Google's own functions-framework."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
import zipfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from msgspec import structs

from cloudspot.emulation.local_machine_host import emulated
from cloudspot.errors import AuthError, CloudspotError, SpecError
from cloudspot.model import DriverFunction
from cloudspot_gcp import functionhost, functionrights
from cloudspot_gcp.functionhost import CloudRunHost
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.provider import GcpProvider
from cloudspot_gcp_sandbox.cloud import BUCKET, NODE, EmulatedGcp
from cloudspot_gcp_sandbox.strict_compute import PROJECT

NAME = "cloudspot-driver-0123456789ab"
EMAIL = f"{NAME}@{PROJECT}.iam.gserviceaccount.com"
MACHINE = f"projects/{PROJECT}/zones/us-central1-a/instances/cs-digits-1-0"
GOOD = "def handle(event):\n    print('given', sorted(event))\n    return {'status': 0}\n"
BAD = "def handle(event):\n    raise RuntimeError('no bucket for you')\n"
ROLES = Path(__file__).parents[3] / "docs" / "gcp"
FUNCTIONS, JOBS = "cloudfunctions.projects.locations.functions", "cloudscheduler.projects.locations.jobs"

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
    """The emulated project, and the host of functions of its owner."""

    @contextlib.contextmanager
    def make():
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
        cloud.faults.calls.clear()
        host.deploy(function())
        assert not {f"{FUNCTIONS}.patch", "signed.put"} & set(cloud.faults.actions())
        assert not [one for one in cloud.faults.actions() if one.endswith(("setIamPolicy", ".create"))]
        host.deploy(function(GOOD + "# newer\n", every=300.0))
        assert cloud.faults.count(f"{FUNCTIONS}.patch") == 1
        assert host.status(NAME).every_seconds == 300.0
        removed = host.remove(NAME)
        assert [one.partition("_")[0] for one in removed] == [
            f"schedule {NAME}", f"function {NAME}", "role cloudspot", "role cloudspot", f"service account {EMAIL}",
        ]  # fmt: skip
        assert left(cloud) == []
        assert host.remove(NAME) == []
        # The grant of docs/gcp.md under a condition has outlived it all.
        (kept,) = cloud.iam._policies[f"projects/{PROJECT}"]["bindings"]
        assert kept["condition"]["title"] == "machines of cloudspot's"
        host.deploy(function())  # although the ids of its roles are taken for weeks
        assert left(cloud) == [NAME, NAME, *ALL]
