"""The emulated metadata service, held to what EC2's guide says of the real one."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from cloudspot.emulation.cloud import MachineView, Request, StandingNotice
from cloudspot.emulation.role_credentials import Secrets
from cloudspot_aws_sandbox.imds_server import Imds
from cloudspot_aws_sandbox.rolekeys import RoleKeys

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
FACTS = {
    "account": "123456789012",
    "ami-id": "ami-0123456789abcdef0",
    "ami-launch-index": 1,
    "availability-zone": "eu-central-1b",
    "hostname": "ip-172-31-0-9.eu-central-1.compute.internal",
    "http-put-response-hop-limit": 1,
    "http-tokens": "required",
    "instance-id": "i-0123456789abcdef0",
    "instance-life-cycle": "spot",
    "instance-metadata-tags": "enabled",
    "instance-profile": "cloudspot-node",
    "instance-type": "g5.xlarge",
    "local-ipv4": "172.31.0.9",
    "mac": "02:00:00:00:00:09",
    "region": "eu-central-1",
    "reservation-id": "r-1",
    "role": "cloudspot-node-role",
    "role-seed": "seed",
    "security-groups": ["default", "training"],
    "subnet-id": "subnet-1",
}


class Service:
    def __init__(self, *, user_data: bytes = b"#!/bin/sh\n", **facts) -> None:
        self.now = NOW
        self.tags: dict[str, str] = {}
        known = {**FACTS, **facts}
        self.view = MachineView(
            address="172.31.0.9",
            facts={name: value for name, value in known.items() if value is not None},
            user_data=user_data,
            tags=lambda: self.tags,
        )
        self.imds = Imds(self.view, now=lambda: self.now)

    def ask(self, method: str, path: str, **headers: str):
        return self.imds.answer(
            Request(method, path, {name.replace("_", "-").lower(): value for name, value in headers.items()})
        )

    def token(self, seconds: int = 60) -> str:
        answer = self.ask("PUT", "/latest/api/token", X_aws_ec2_metadata_token_ttl_seconds=str(seconds))
        assert answer.status == 200
        return answer.body.decode()

    def get(self, path: str) -> str | None:
        """Return what stands there for who holds a token, or None where it is not found."""
        answer = self.ask("GET", path, X_aws_ec2_metadata_token=self.token())
        assert answer.status in {200, 404}
        return answer.body.decode() if answer.status == 200 else None


@pytest.fixture
def service() -> Service:
    return Service()


def test_nothing_is_told_without_a_token(service):
    for path in ("/", "/latest/", "/latest/meta-data/instance-id", "/latest/user-data", "/latest/nothing"):
        assert service.ask("GET", path).status == 401
        assert service.ask("GET", path, X_aws_ec2_metadata_token="AQAEAmade-up==").status == 401


def test_a_token_holds_for_its_time_and_no_longer(service):
    token = service.token(60)
    assert service.ask("GET", "/latest/meta-data/instance-id", X_aws_ec2_metadata_token=token).status == 200
    service.now += timedelta(seconds=60)
    assert service.ask("GET", "/latest/meta-data/instance-id", X_aws_ec2_metadata_token=token).status == 401


@pytest.mark.parametrize("seconds", ["", "0", "21601", "-1", "1.5", "six", "999999"])
def test_a_token_needs_a_time_within_the_bounds(service, seconds):
    headers = {"X_aws_ec2_metadata_token_ttl_seconds": seconds} if seconds else {}
    assert service.ask("PUT", "/latest/api/token", **headers).status == 400


def test_a_forwarded_request_gets_no_token(service):
    answer = service.ask(
        "PUT", "/latest/api/token", X_aws_ec2_metadata_token_ttl_seconds="60", X_Forwarded_For="10.0.0.1"
    )
    assert answer.status == 403


def test_a_token_comes_no_further_than_the_hop_limit():
    answer = Service(**{"http-put-response-hop-limit": 2}).ask(
        "PUT", "/latest/api/token", X_aws_ec2_metadata_token_ttl_seconds="60"
    )
    assert answer.hop_limit == 2
    assert answer.headers == {"x-aws-ec2-metadata-token-ttl-seconds": "60"}


def test_where_tokens_are_optional_a_wrong_one_is_still_refused():
    service = Service(**{"http-tokens": "optional"})
    assert service.ask("GET", "/latest/meta-data/instance-id").body == b"i-0123456789abcdef0"
    assert service.ask("GET", "/latest/meta-data/instance-id", X_aws_ec2_metadata_token="x").status == 401


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH"])
def test_other_methods_are_refused(service, method):
    assert service.ask(method, "/latest/meta-data/").status == 405


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("instance-id", "i-0123456789abcdef0"),
        ("ami-launch-index", "1"),
        ("local-ipv4", "172.31.0.9"),
        ("hostname", "ip-172-31-0-9.eu-central-1.compute.internal"),
        ("instance-type", "g5.xlarge"),
        ("instance-life-cycle", "spot"),
        ("placement/availability-zone", "eu-central-1b"),
        ("placement/region", "eu-central-1"),
        ("placement/", "availability-zone\nregion"),
        ("security-groups", "default\ntraining"),
        ("network/interfaces/macs/", "02:00:00:00:00:09/"),
        ("network/interfaces/macs/02:00:00:00:00:09/subnet-id", "subnet-1"),
        ("iam/", "info\nsecurity-credentials/"),
        ("iam/security-credentials/", "cloudspot-node-role"),
        ("tags/instance/", ""),
        ("nothing", None),
        ("instance-id/", None),
        ("spot/instance-action", None),
        ("spot/", None),
        ("events/recommendations/rebalance", None),
        ("public-ipv4", None),
    ],
)
def test_what_an_instance_reads(service, path, value):
    assert service.get(f"/latest/meta-data/{path}") == value


def test_versions_are_dated_and_an_unknown_one_is_not_found(service):
    assert service.get("/2021-01-03/meta-data/instance-id") == "i-0123456789abcdef0"
    assert service.get("/2021-01-04/meta-data/instance-id") is None
    assert service.get("/").splitlines()[-1] == "latest"
    assert service.get("/latest/") == "dynamic\nmeta-data\nuser-data"


def test_user_data_is_given_byte_for_byte():
    service = Service(user_data=b"\x1f\x8b\x00\xff")
    token = service.token()
    answer = service.ask("GET", "/latest/user-data", X_aws_ec2_metadata_token=token)
    assert (answer.body, answer.content_type) == (b"\x1f\x8b\x00\xff", "application/octet-stream")
    assert Service(user_data=b"").get("/latest/user-data") is None


def test_tags_show_as_they_are_now_where_they_are_enabled(service):
    assert service.get("/latest/meta-data/tags/instance/MASTER_ADDR") is None
    service.tags = {"Name": "node ü", "MASTER_ADDR": "172.31.0.8"}
    assert service.get("/latest/meta-data/tags/instance/") == "MASTER_ADDR\nName"
    assert service.get("/latest/meta-data/tags/instance/MASTER_ADDR") == "172.31.0.8"
    assert service.get("/latest/meta-data/tags/instance/Name") == "node ü"
    hidden = Service(**{"instance-metadata-tags": "disabled"})
    hidden.tags = service.tags
    assert hidden.get("/latest/meta-data/tags/instance/Name") is None


def test_a_notice_shows_as_the_guide_has_it(service):
    service.view.notice = StandingNotice(deadline=NOW + timedelta(seconds=120), given_at=NOW)
    action = service.get("/latest/meta-data/spot/instance-action")
    assert json.loads(action) == {"action": "terminate", "time": "2026-11-20T12:02:00Z"}
    assert service.get("/latest/meta-data/spot/termination-time") == "2026-11-20T12:02:00Z"
    rebalance = service.get("/latest/meta-data/events/recommendations/rebalance")
    assert json.loads(rebalance) == {"noticeTime": "2026-11-20T12:00:00Z"}


@pytest.mark.parametrize("action", ["stop", "hibernate"])
def test_a_machine_that_is_stopped_has_no_termination_time(service, action):
    service.view.notice = StandingNotice(deadline=NOW, given_at=NOW, action=action)
    assert json.loads(service.get("/latest/meta-data/spot/instance-action"))["action"] == action
    assert service.get("/latest/meta-data/spot/termination-time") is None


def test_a_role_has_credentials_that_expire_and_are_renewed_before(service):
    path = "/latest/meta-data/iam/security-credentials/cloudspot-node-role"
    first = json.loads(service.get(path))
    assert first["Expiration"] == "2026-11-20T18:00:00Z"
    assert (first["Code"], first["Type"]) == ("Success", "AWS-HMAC")
    service.now += timedelta(hours=5, minutes=54)
    assert json.loads(service.get(path)) == first
    service.now += timedelta(minutes=2)
    second = json.loads(service.get(path))
    assert second["AccessKeyId"] != first["AccessKeyId"]
    assert second["Expiration"] == "2026-11-20T23:56:00Z"


def test_the_api_knows_the_credentials_that_the_service_gives(service):
    given = json.loads(service.get("/latest/meta-data/iam/security-credentials/cloudspot-node-role"))
    keys = RoleKeys("seed")
    secrets = Secrets({"AKIA": "static"}, keys)
    assert secrets[given["AccessKeyId"]] == given["SecretAccessKey"]
    assert keys.token_of(given["AccessKeyId"]) == given["Token"]
    assert keys.expires_at(given["AccessKeyId"]) == NOW + timedelta(hours=6)
    assert secrets["AKIA"] == "static"
    assert "AKIB" not in secrets
    assert RoleKeys("another").secret_of(given["AccessKeyId"]) != given["SecretAccessKey"]
    assert len(given["AccessKeyId"]) == 20
    assert len(given["SecretAccessKey"]) == 40


def test_an_instance_without_a_profile_has_no_rights():
    service = Service(**{"instance-profile": "", "role": None})
    assert service.get("/latest/meta-data/iam/info") is None
    assert service.get("/latest/meta-data/iam/security-credentials/") is None
    without_role = Service(role=None)
    assert "cloudspot-node" in without_role.get("/latest/meta-data/iam/info")
    assert without_role.get("/latest/meta-data/iam/security-credentials/") is None


def test_the_identity_document_names_the_instance(service):
    document = json.loads(service.get("/latest/dynamic/instance-identity/document"))
    assert document["instanceId"] == "i-0123456789abcdef0"
    assert (document["region"], document["privateIp"]) == ("eu-central-1", "172.31.0.9")
    assert service.get("/latest/dynamic/instance-identity/signature") is None
