"""A machine's RAM role from its metadata in hardened mode, with which OSS is asked while keys come and go."""

from datetime import datetime, timedelta, timezone

import pytest

from cloudspot.errors import AuthError
from cloudspot.local.metadataservice import MachineView, MetadataServer
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.credentials import RoleCredentials
from cloudspot_aliyun.metadata import DISABLED, ENDPOINT, EcsMetadata
from cloudspot_aliyun.oss import OssStore
from cloudspot_aliyun_sandbox.metadata_server import EcsMetadataService

FACTS = {
    "hostname": "digits-1-2-3",
    "http-tokens": "required",
    "instance-id": "i-bp13znx0m0me8cquu001",
    "instance-type": "ecs.gn7i-c8g1.2xlarge",
    "mac": "00:16:3e:0f:00:09",
    "private-ipv4": "192.168.0.9",
    "role": "cloudspot-node",
    "role-seed": "a-seed",
    "credential-seconds": 3600,
}


class Machine:
    """Its clock, and its metadata service with one of its own."""

    def __init__(self):
        self.now = self.service_now = datetime.now(timezone.utc)
        view = MachineView(address="192.168.0.9", facts=FACTS, tags=dict)
        self.server = MetadataServer(EcsMetadataService(view, now=lambda: self.service_now), "127.0.0.1")


@pytest.fixture
def machine(oss, monkeypatch):
    machine = Machine()
    monkeypatch.setenv(ENDPOINT, machine.server.url)
    for name in (DISABLED, "ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"):
        monkeypatch.delenv(name)
    yield machine
    machine.server.close()


@pytest.fixture
def store(bucket, machine):
    role = RoleCredentials(EcsMetadata(), now=lambda: machine.now)
    return OssStore(f"oss://{bucket}", clients=AliyunClients(credentials=role), sleep=lambda seconds: None)


def keys_used(oss):
    return list(dict.fromkeys(call.access_key for call in oss.faults.calls))


def test_a_machine_works_by_its_role_alone_and_renews_its_key_before_the_end(oss, store, machine):
    store.put("a", b"x", if_absent=True)
    machine.now = machine.service_now = machine.now + timedelta(minutes=44)
    store.put("b", b"x", if_absent=True)
    assert len(keys_used(oss)) == 1
    machine.now = machine.service_now = machine.now + timedelta(minutes=2)
    store.put("c", b"x", if_absent=True)
    assert len(keys_used(oss)) == 2
    assert {call.error for call in oss.faults.calls} == {None}


def test_where_the_machines_clock_is_wrong_the_refusal_renews_the_key(oss, store, machine):
    now = machine.now
    machine.now = machine.service_now = now - timedelta(hours=2)
    with pytest.raises(AuthError, match="have expired"):
        store.put("a", b"x", if_absent=True)  # The metadata service has nothing newer either.
    machine.service_now = now
    store.put("a", b"x", if_absent=True)  # By our clock the old key still holds.
    assert store.get("a") == b"x"
    assert [call.error for call in oss.faults.calls].count("SecurityTokenExpired") == 2
    assert len(keys_used(oss)) == 2


def test_the_stores_own_chain_ends_at_the_role(bucket, machine):
    OssStore(f"oss://{bucket}").put("a", b"x")
