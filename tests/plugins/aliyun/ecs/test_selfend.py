"""A machine's own end: what the boot script runs, as a program of its own, against metadata and ECS."""

import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest
from support.worlds.groups import group_of

from cloudspot.boot.script import ending_command
from cloudspot.testing import plaincalls
from cloudspot_aliyun import selfend

TYPE = "ecs.g7.large"


@pytest.fixture
def machine(cloud, serve_metadata):
    """Return a launched machine, behind a metadata service of its own; with the service's address."""
    provisioner = cloud.provider(instance_types=(TYPE,)).provisioner()
    group = group_of(cloud.offer(provisioner), store_url="oss://bucket")
    (instance,) = plaincalls.create(provisioner, provisioner.render(group), token="t")
    facts = {**cloud.host.machines[instance.id].metadata, "role-seed": cloud.keys.seed}
    return instance.id, serve_metadata(facts)


def end(cloud, url):
    """Run what a machine runs to end itself, with a ``shutdown`` that says so."""
    command = ending_command(cloud.provider(agent_python=sys.executable).boot_profile())
    script = f"shutdown() {{ echo shutdown $*; }}; {command}"
    environ = {**os.environ, "CLOUDSPOT_ALIYUN_METADATA": url, "ECS_ENDPOINT": cloud.url}
    return subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_a_machine_releases_itself_by_its_role_and_then_goes_down(cloud, machine):
    instance_id, url = machine
    ended = end(cloud, url)
    assert (ended.stdout, ended.stderr) == ("shutdown -h now\n", "")
    assert cloud.host.terminated == [instance_id]
    call = cloud.faults.calls[-1]
    assert (call.action, call.error, call.access_key[:5]) == ("DeleteInstance", None, "STS.N")


@pytest.mark.full
def test_a_machine_that_may_not_release_itself_says_why_and_goes_down(cloud, machine):
    _, url = machine
    cloud.faults.denied = {"ecs:DeleteInstance"}
    ended = end(cloud, url)
    assert ended.stdout == "shutdown -h now\n"
    assert "Forbidden.RAM" in ended.stderr.splitlines()[-1]
    assert cloud.host.terminated == []


def test_a_machine_that_is_throttled_asks_again_to_be_released(cloud, machine, monkeypatch):
    instance_id, url = machine
    monkeypatch.setattr(selfend, "METADATA", url)
    cloud.faults.inject("DeleteInstance", "Throttling.User", status=400)
    cloud.faults.inject("DeleteInstance", "ServiceUnavailable", status=503)
    selfend.release()
    assert cloud.host.terminated == [instance_id]
    cloud.faults.inject("DeleteInstance", "Throttling.User", status=400, times=3)
    with pytest.raises(OSError, match=r"Throttling\.User"):
        selfend.release()
    assert cloud.faults.count("DeleteInstance") == 6


def test_a_machine_without_a_metadata_service_goes_down(cloud):
    ended = end(cloud, "http://127.0.0.1:1")
    assert ended.stdout == "shutdown -h now\n"


def test_a_role_key_needs_its_token_and_ends(cloud, monkeypatch):
    issued = cloud.keys.issue("i-1", expires_at=datetime.now(timezone.utc) + timedelta(hours=1))
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", issued.access_key)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", issued.secret_key)
    with pytest.raises(Exception, match="MissingSecurityToken"):
        cloud.ask("DescribeRegions")
    monkeypatch.setenv("ALIBABA_CLOUD_SECURITY_TOKEN", issued.token)
    assert cloud.ask("GetCallerIdentity", product="Sts")["Arn"].endswith(":assumed-role/cloudspot-node/node")
    over = cloud.keys.issue("i-1", expires_at=datetime.now(timezone.utc) - timedelta(seconds=2))
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", over.access_key)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", over.secret_key)
    monkeypatch.setenv("ALIBABA_CLOUD_SECURITY_TOKEN", over.token)
    with pytest.raises(Exception, match=r"InvalidSecurityToken\.Expired"):
        cloud.ask("DescribeRegions")
