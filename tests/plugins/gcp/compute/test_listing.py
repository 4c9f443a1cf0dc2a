"""What the project's operations say of machines that are not listed any more."""

import subprocess
import sys
from datetime import datetime, timezone

import pytest

from cloudspot.model import EndReason, InstanceState
from cloudspot_gcp.listing import endings, to_vanished_instance

NAME = "cs-digits-1-60e73611-2-1"
ID = f"us-central1-a/{NAME}/7000000000000000001"
BASE = "https://www.googleapis.com/compute/v1/projects/p"


def operation(kind, *, status="DONE", target=f"zones/us-central1-a/instances/{NAME}", error=None, **fields):
    from google.cloud.compute_v1 import Operation

    return Operation(
        operation_type=kind,
        status=status,
        target_link=f"{BASE}/{target}",
        target_id=7000000000000000001,
        insert_time="2026-11-20T00:22:00.000-08:00",
        end_time="2026-11-20T00:22:30.500-08:00" if status == "DONE" else "",
        error={"errors": [{"code": error}]} if error else None,
        **fields,
    )


def vanished(*operations):
    (ending,) = endings(operations).values()
    return to_vanished_instance(ending, job_id="digits-1", store_url="gs://bucket")


def test_a_machine_that_vanished_is_known_by_its_name_and_ended_when_its_operation_was_done():
    found = vanished(operation("compute.instances.preempted"))
    assert (found.id, found.job_id, found.launch, found.rank) == (ID, "digits-1", 2, 1)
    assert (found.state, found.end_reason) == (InstanceState.ENDED, EndReason.RECLAIMED)
    assert found.ended_at == datetime(2026, 11, 20, 8, 22, 30, 500000, tzinfo=timezone.utc)


@pytest.mark.parametrize("kind", ["delete", "compute.instances.preempted"])
@pytest.mark.parametrize("status", ["PENDING", "RUNNING"])
def test_a_machine_whose_end_is_not_done_yet_may_still_run_something(kind, status):
    found = vanished(operation(kind, status=status))
    assert (found.state, found.ended_at) == (InstanceState.SHUTTING_DOWN, None)


def test_one_operation_that_is_done_proves_the_end_and_its_time_and_the_most_telling_one_names_it():
    taken = operation("compute.instances.preempted", status="RUNNING")
    for operations in ([taken, operation("delete")], [operation("delete"), taken]):
        found = vanished(*operations)
        assert (found.state, found.end_reason) == (InstanceState.ENDED, EndReason.RECLAIMED)
        assert found.ended_at == datetime(2026, 11, 20, 8, 22, 30, 500000, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("compute.instances.guestTerminate", EndReason.SELF),
        ("compute.instances.hostError", EndReason.LOST),
        ("compute.instances.terminateOnHostMaintenance", EndReason.LOST),
        ("stop", EndReason.TERMINATED),
        ("delete", EndReason.TERMINATED),
    ],
)
def test_each_kind_of_operation_is_a_reason(kind, reason):
    assert vanished(operation(kind)).end_reason is reason


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "delete", "error": "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"},
        {"kind": "delete", "http_error_status_code": 503, "http_error_message": "SERVICE UNAVAILABLE"},
        {"kind": "insert"},
        {"kind": "delete", "target": "zones/us-central1-a/instances/web-1"},
        {"kind": "delete", "target": f"zones/us-central1-a/disks/{NAME}"},
        {"kind": "delete", "target": "regions/us-central1/resourcePolicies/mine"},
    ],
)
def test_what_failed_or_ended_no_machine_of_ours_proves_nothing(other):
    assert endings([operation(**other)]) == {}


@pytest.mark.full
def test_the_sdk_is_imported_when_it_is_first_used():
    """It takes 0.8 s and 147 MB."""
    code = (
        "import sys\n"
        "import cloudspot_gcp.check\n"
        "from cloudspot_gcp.provider import GcpProvider\n"
        "assert GcpProvider().provisioner() is not None\n"
        "sys.exit('google.cloud.compute_v1' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
