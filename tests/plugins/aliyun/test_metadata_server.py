"""The emulated metadata service, held to what ECS's user guide says of the real one."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from cloudspot.emulation.cloud import MachineView, Request, StandingNotice
from cloudspot_aliyun_sandbox.metadata_server import EcsMetadataService
from cloudspot_aliyun_sandbox.rolekeys import RoleKeys

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
FACTS = {
    "hostname": "digits-1-1-0",
    "http-put-response-hop-limit": 1,
    "http-tokens": "required",
    "image-id": "ubuntu_24_04_x64_20G_alibase_20260101.vhd",
    "instance-id": "i-bp13znx0m0me8cquu001",
    "instance-name": "digits-1-1-0",
    "instance-type": "ecs.gn7i-c8g1.2xlarge",
    "mac": "00:16:3e:0f:00:09",
    "market": "spot",
    "owner-account-id": "1609000000000001",
    "private-ipv4": "192.168.0.9",
    "region-id": "cn-hangzhou",
    "role": "cloudspot-node",
    "role-seed": "seed",
    "serial-number": "4acd2b47-b328-4762-852f-998000000000",
    "vpc-cidr-block": "192.168.0.0/16",
    "vpc-id": "vpc-bp1e0g399hkd7c8q3001",
    "vswitch-cidr-block": "192.168.0.0/24",
    "vswitch-id": "vsw-bp1ygryo03m39xhsy001",
    "zone-id": "cn-hangzhou-i",
}
PASS = "X-aliyun-ecs-metadata-token"


class Service:
    def __init__(self, *, user_data: bytes = b"#!/bin/sh\n", **facts) -> None:
        self.now = NOW
        self.tags: dict[str, str] = {}
        known = {**FACTS, **facts}
        self.view = MachineView(
            address="192.168.0.9",
            facts={name: value for name, value in known.items() if value is not None},
            user_data=user_data,
            tags=lambda: self.tags,
        )
        self.service = EcsMetadataService(self.view, now=lambda: self.now)

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None):
        found = {name.lower(): value for name, value in (headers or {}).items()}
        return self.service.answer(Request(method, path, found))

    def token(self, seconds: object = 60) -> str:
        answer = self.ask("PUT", "/latest/api/token", {f"{PASS}-ttl-seconds": str(seconds)})
        assert answer.status == 200
        return answer.body.decode()

    def get(self, path: str) -> str | None:
        """Return what stands there for who holds a token, or None where it is not found."""
        answer = self.ask("GET", path, {PASS: self.token()})
        assert answer.status in {200, 404}
        return answer.body.decode() if answer.status == 200 else None


@pytest.fixture
def service() -> Service:
    return Service()


def test_in_hardened_mode_nothing_is_told_without_a_token(service):
    for path in ("/", "/latest/", "/latest/meta-data/instance-id", "/latest/user-data", "/latest/nothing"):
        assert service.ask("GET", path).status == 403
        assert service.ask("GET", path, {PASS: "made-up"}).status == 401


def test_a_token_holds_for_its_time_and_no_longer(service):
    token = service.token(60)
    assert service.ask("GET", "/latest/meta-data/instance-id", {PASS: token}).status == 200
    service.now += timedelta(seconds=60)
    assert service.ask("GET", "/latest/meta-data/instance-id", {PASS: token}).status == 401


@pytest.mark.parametrize("seconds", ["", "0", "21601", "-1", "1.5", "six", "999999"])
def test_a_token_needs_a_time_within_the_bounds(service, seconds):
    headers = {f"{PASS}-ttl-seconds": seconds} if seconds else {}
    answer = service.ask("PUT", "/latest/api/token", headers)
    assert answer.status == 400
    assert b"400 - Missing or Invalid Parameters" in answer.body


def test_a_forwarded_request_gets_no_token(service):
    headers = {f"{PASS}-ttl-seconds": "60", "X-Forwarded-For": "10.0.0.1"}
    assert service.ask("PUT", "/latest/api/token", headers).status == 403


def test_in_normal_mode_a_token_is_given_but_not_asked_for():
    service = Service(**{"http-tokens": "optional"})
    assert service.ask("GET", "/latest/meta-data/instance-id").body == b"i-bp13znx0m0me8cquu001"
    assert service.get("/latest/meta-data/instance-id") == "i-bp13znx0m0me8cquu001"
    assert service.ask("GET", "/latest/meta-data/instance-id", {PASS: "x"}).status == 401


def test_a_disabled_endpoint_answers_nobody():
    service = Service(**{"http-endpoint": "disabled"})
    assert service.ask("PUT", "/latest/api/token", {f"{PASS}-ttl-seconds": "60"}).status == 403
    assert service.ask("GET", "/latest/meta-data/").status == 403


def test_a_token_comes_no_further_than_the_hop_limit():
    answer = Service(**{"http-put-response-hop-limit": 2}).ask(
        "PUT", "/latest/api/token", {f"{PASS}-ttl-seconds": "60"}
    )
    assert answer.hop_limit == 2


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH"])
def test_other_methods_are_refused(service, method):
    assert service.ask(method, "/latest/meta-data/").status == 405


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("instance-id", "i-bp13znx0m0me8cquu001"),
        ("hostname", "digits-1-1-0"),
        ("private-ipv4", "192.168.0.9"),
        ("region-id", "cn-hangzhou"),
        ("zone-id", "cn-hangzhou-i"),
        ("network-type", "vpc"),
        (
            "instance/",
            "instance-name\ninstance-type\nvirtualization-solution\nvirtualization-solution-version",
        ),
        ("instance/instance-type", "ecs.gn7i-c8g1.2xlarge"),
        ("network/interfaces/macs/", "00:16:3e:0f:00:09/"),
        ("network/interfaces/macs/00:16:3e:0f:00:09/vswitch-id", "vsw-bp1ygryo03m39xhsy001"),
        ("network/interfaces/macs/00:16:3e:0f:00:09/private-ipv4s", '["192.168.0.9"]'),
        ("ram/security-credentials/", "cloudspot-node"),
        ("tags/instance/", None),
        ("nothing", None),
        ("instance-id/", None),
        ("instance/spot/termination-time", None),
        ("instance/spot/", None),
        ("eipv4", None),
    ],
)
def test_what_an_instance_reads(service, path, value):
    assert service.get(f"/latest/meta-data/{path}") == value


def test_versions_are_dated_and_an_unknown_one_is_not_found(service):
    assert service.get("/") == "2016-01-01\nlatest"
    assert service.get("/2016-01-01/meta-data/instance-id") == "i-bp13znx0m0me8cquu001"
    assert service.get("/2021-01-03/meta-data/instance-id") is None
    assert service.get("/latest/") == "dynamic\nmeta-data\nuser-data"


def test_user_data_is_given_byte_for_byte():
    service = Service(user_data=b"\x1f\x8b\x00\xff")
    answer = service.ask("GET", "/latest/user-data", {PASS: service.token()})
    assert (answer.body, answer.content_type) == (b"\x1f\x8b\x00\xff", "application/octet-stream")
    assert Service(user_data=b"").get("/latest/user-data") is None


def test_tags_show_as_the_host_has_them(service):
    service.tags = {"cloudspot-job": "digits-1", "MASTER_ADDR": "192.168.0.8"}
    assert service.get("/latest/meta-data/tags/instance/") == "MASTER_ADDR\ncloudspot-job"
    assert service.get("/latest/meta-data/tags/instance/MASTER_ADDR") == "192.168.0.8"


def test_a_spot_machine_reads_when_it_ends_and_another_does_not(service):
    notice = StandingNotice(deadline=NOW + timedelta(minutes=5), given_at=NOW)
    service.view.notice = notice
    assert service.get("/latest/meta-data/instance/spot/termination-time") == "2026-11-20T12:05:00Z"
    paid = Service(market="on-demand")
    paid.view.notice = notice
    assert paid.get("/latest/meta-data/instance/spot/termination-time") is None


def test_a_role_has_a_key_that_expires_and_is_renewed_half_an_hour_before(service):
    path = "/latest/meta-data/ram/security-credentials/cloudspot-node"
    first = json.loads(service.get(path))
    assert first["Expiration"] == "2026-11-20T18:00:00Z"
    assert first["Code"] == "Success"
    service.now += timedelta(hours=5, minutes=29)
    assert json.loads(service.get(path)) == first
    service.now += timedelta(minutes=2)
    second = json.loads(service.get(path))
    assert second["AccessKeyId"] != first["AccessKeyId"]
    assert second["Expiration"] == "2026-11-20T23:31:00Z"


def test_a_short_lived_key_holds_half_of_its_life_at_the_least():
    service = Service(**{"credential-seconds": 60})
    path = "/latest/meta-data/ram/security-credentials/cloudspot-node"
    first = json.loads(service.get(path))
    service.now += timedelta(seconds=30)
    assert json.loads(service.get(path)) == first
    service.now += timedelta(seconds=1)
    assert json.loads(service.get(path)) != first


def test_the_api_knows_the_keys_that_the_service_gives(service):
    given = json.loads(service.get("/latest/meta-data/ram/security-credentials/cloudspot-node"))
    keys = RoleKeys("seed")
    assert keys.is_role_key(given["AccessKeyId"])
    assert keys.secret_of(given["AccessKeyId"]) == given["AccessKeySecret"]
    assert keys.token_of(given["AccessKeyId"]) == given["SecurityToken"]
    assert keys.expires_at(given["AccessKeyId"]) == NOW + timedelta(hours=6)
    assert not keys.is_role_key("LTAI5t000000000000000001")
    assert RoleKeys("another").secret_of(given["AccessKeyId"]) != given["AccessKeySecret"]


def test_an_instance_without_a_role_has_no_rights():
    assert Service(role=None).get("/latest/meta-data/ram/security-credentials/") is None


def test_the_identity_document_names_the_instance(service):
    document = json.loads(service.get("/latest/dynamic/instance-identity/document"))
    assert document["instance-id"] == "i-bp13znx0m0me8cquu001"
    assert (document["region-id"], document["private-ipv4"]) == ("cn-hangzhou", "192.168.0.9")
