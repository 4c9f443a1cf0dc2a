"""A machine's own end: what the boot script runs, as a program of its own, against metadata and Compute Engine."""

import os
import subprocess
import sys

import pytest
import requests
from support.worlds.groups import group_of

from cloudspot.boot.script import ending_command
from cloudspot.emulation.cloud import MachineView
from cloudspot.local.metadataservice import MetadataServer
from cloudspot.model import EndReason, InstanceState
from cloudspot.testing import plaincalls
from cloudspot_gcp_sandbox.metadata_server import GceMetadata

NAME = "cs-digits-1-60e73611-1-0"


@pytest.fixture
def provisioner(cloud):
    return cloud.provider().provisioner()


@pytest.fixture
def machine(cloud, compute_door, provisioner):
    """Return a launched machine, and the address of its metadata server."""
    group = group_of(cloud.offer(provisioner), store_url="gs://bucket/prefix")
    (instance,) = plaincalls.create(provisioner, provisioner.render(group), token="t")
    facts = {**cloud.host.machines[NAME].metadata, "token-seed": compute_door.machine_tokens.seed}
    server = MetadataServer(
        GceMetadata(MachineView(address=facts["ip"], facts=facts, tags=dict)), "127.0.0.1"
    )
    yield instance.id, server.url.removeprefix("http://")
    server.close()


def end(cloud, host):
    """Run what a machine runs to end itself, with a ``shutdown`` that says so."""
    command = ending_command(cloud.provider(agent_python=sys.executable).boot_profile())
    environ = {**os.environ, "GCE_METADATA_HOST": host}
    script = f"shutdown() {{ echo shutdown $*; }}; {command}"
    return subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_a_machine_deletes_itself_by_its_account_and_is_known_to_have_ended_by_itself(
    cloud, machine, provisioner
):
    instance_id, host = machine
    ended = end(cloud, host)
    assert (ended.stdout, ended.stderr) == ("shutdown -h now\n", "")
    assert (cloud.host.terminated, cloud.listed()) == ([NAME], {})
    call = cloud.faults.calls[-2]
    assert (call.action, call.error, call.access_key[:15]) == (
        "compute.instances.delete",
        None,
        "cloudspot-node@",
    )
    (found,) = plaincalls.instances(provisioner, job_id="digits-1")
    assert (found.id, found.state, found.end_reason) == (instance_id, InstanceState.ENDED, EndReason.SELF)


@pytest.mark.full
def test_a_machine_that_may_not_delete_itself_says_why_in_a_line_and_goes_down(cloud, machine):
    _, host = machine
    cloud.faults.denied = {"compute.instances.delete"}
    ended = end(cloud, host)
    assert ended.stdout == "shutdown -h now\n"
    assert "HTTP 403" in ended.stderr.splitlines()[-1]
    assert "Required 'compute.instances.delete' permission" in ended.stderr.splitlines()[-1]
    assert cloud.host.terminated == []


def test_a_machine_without_a_metadata_server_goes_down(cloud):
    assert end(cloud, "127.0.0.1:1").stdout == "shutdown -h now\n"


def test_a_deletion_by_somebody_else_is_no_end_of_ones_own(machine, provisioner):
    plaincalls.terminate(provisioner, [machine[0]])
    (found,) = plaincalls.instances(provisioner, job_id="digits-1")
    assert found.end_reason is EndReason.TERMINATED


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"zones/us-central1-a/instances/{NAME}", 403),
        ("GET", "aggregated/instances", 403),
        ("DELETE", "zones/us-central1-a/instances/web-1", 403),
        ("DELETE", "zones/us-central1-a/instances/cs-gone-60e73611-1-0", 404),
    ],
)
def test_the_machines_account_may_delete_what_is_called_as_cloudspots_and_nothing_else(
    cloud, compute_door, machine, method, path, status
):
    account = cloud.compute.site.service_accounts[0]
    url = f"{cloud.url}/compute/v1/projects/my-project-123/{path}"
    headers = {"Authorization": f"Bearer {compute_door.identities.issue(account)}"}
    assert requests.request(method, url, headers=headers, timeout=10).status_code == status
