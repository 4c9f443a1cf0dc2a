"""Whose requests these are: environment, profile, the machine's role."""

import json
from datetime import datetime, timedelta, timezone

import pytest

from cloudspot.errors import AuthError, SpecError, TransientError
from cloudspot_aliyun.credentials import (
    EnvironmentCredentials,
    ProfileCredentials,
    RoleCredentials,
    find_credentials,
)

START = datetime(2026, 11, 20, tzinfo=timezone.utc)


class Metadata:
    """What a metadata service says; None: it does not answer."""

    def __init__(self, role="node"):
        self.role = role
        self.key = None
        self.num_asked = 0

    def issue(self, name, expires_at, code="Success"):
        self.key = {
            "Code": code,
            "AccessKeyId": f"STS.{name}",
            "AccessKeySecret": f"secret-{name}",
            "SecurityToken": f"token-{name}",
            "Expiration": expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def get(self, path):
        if path == "meta-data/ram/security-credentials/":
            return self.role
        self.num_asked += 1
        if self.key is None:
            raise TransientError("the metadata service does not answer")
        return json.dumps(self.key) if path.endswith(f"/{self.role}") else None


@pytest.fixture
def clock():
    return [START]


@pytest.fixture
def metadata():
    one = Metadata()
    one.issue("first", START + timedelta(hours=6))
    return one


@pytest.fixture
def role(metadata, clock):
    return RoleCredentials(metadata, now=lambda: clock[0])


def test_a_roles_key_is_kept_until_shortly_before_its_end(role, metadata, clock):
    assert (role.get().access_key_id, role.get().security_token) == ("STS.first", "token-first")
    clock[0] += timedelta(hours=5, minutes=44)
    assert role.get().access_key_id == "STS.first"
    assert metadata.num_asked == 1
    metadata.issue("second", START + timedelta(hours=12))
    clock[0] += timedelta(minutes=1)
    assert role.get().access_key_id == "STS.second"
    assert metadata.num_asked == 2


def test_one_that_holds_for_minutes_is_renewed_in_its_last_quarter(metadata, clock):
    metadata.issue("short", START + timedelta(seconds=100))
    role = RoleCredentials(metadata, now=lambda: clock[0])
    role.get()
    clock[0] += timedelta(seconds=74)
    role.get()
    assert metadata.num_asked == 1
    clock[0] += timedelta(seconds=1)
    role.get()
    assert metadata.num_asked == 2


def test_while_there_is_nothing_newer_the_service_is_not_asked_with_every_request(role, metadata, clock):
    role.get()
    clock[0] += timedelta(hours=5, minutes=50)
    for _ in range(10):
        assert role.get().access_key_id == "STS.first"
    assert metadata.num_asked == 2
    clock[0] += timedelta(seconds=30)
    role.get()
    assert metadata.num_asked == 3


def test_a_service_that_is_silent_for_a_while_hurts_only_once_the_key_is_over(role, metadata, clock):
    role.get()
    metadata.key = None
    clock[0] += timedelta(hours=5, minutes=50)
    assert role.get().access_key_id == "STS.first"
    clock[0] += timedelta(minutes=11)
    with pytest.raises(TransientError, match="does not answer"):
        role.get()


def test_a_key_that_the_cloud_calls_expired_is_looked_for_anew(role, metadata):
    used = role.get().access_key_id
    assert role.renew(used) is False
    metadata.issue("second", START + timedelta(hours=6))
    assert role.renew(used) is True
    assert role.get().access_key_id == "STS.second"
    asked = metadata.num_asked
    assert role.renew(used) is True  # Another thread has renewed it.
    assert metadata.num_asked == asked


def test_a_machine_without_a_role_and_an_answer_without_a_key_are_said_so(metadata):
    metadata.role = ""
    with pytest.raises(AuthError, match="this machine has no RAM role; attach one"):
        RoleCredentials(metadata).get()
    metadata.role = "node"
    with pytest.raises(AuthError, match="no RAM role 'other'"):
        RoleCredentials(metadata, role="other").get()
    metadata.issue("x", START, code="Failed")
    with pytest.raises(TransientError, match="no key of role node now: Failed"):
        RoleCredentials(metadata).get()


def test_neither_secret_nor_token_is_shown(role):
    assert "secret-first" not in repr(role.get())
    assert "token-first" not in repr(role.get())


def test_the_environment_comes_first_then_the_profile_then_the_role(tmp_path, metadata):
    file = tmp_path / "config.json"
    keys = {"ALIBABA_CLOUD_ACCESS_KEY_ID": "LTAIenv", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "s"}

    def found(environ):
        return find_credentials(environ=environ, config_file=file, metadata=metadata)

    assert found({}).get().access_key_id == "STS.first"
    write(file, {"name": "default", "mode": "AK", "access_key_id": "LTAIfile", "access_key_secret": "s"})
    assert found({}).get().access_key_id == "LTAIfile"
    assert found(keys).get().access_key_id == "LTAIenv"
    with_token = found({**keys, "ALIBABA_CLOUD_SECURITY_TOKEN": "t"}).get()
    assert with_token.security_token == "t"
    with pytest.raises(AuthError, match="must both be set"):
        EnvironmentCredentials({"ALIBABA_CLOUD_ACCESS_KEY_ID": "x"}).get()


def write(file, *profiles, current="default"):
    file.write_text(json.dumps({"current": current, "profiles": profiles}))


def test_a_profile_may_be_named_may_be_a_role_and_must_be_usable(tmp_path, metadata):
    file = tmp_path / "config.json"
    write(
        file,
        {"name": "default", "mode": "AK", "access_key_id": "", "access_key_secret": ""},
        {"name": "sts", "mode": "StsToken", "access_key_id": "a", "access_key_secret": "b", "sts_token": "c"},
        {"name": "role", "mode": "EcsRamRole", "ram_role_name": "node"},
        {"name": "sso", "mode": "CloudSSO"},
    )

    def found(name=None):
        environ = {} if name is None else {"ALIBABA_CLOUD_PROFILE": name}
        return find_credentials(environ=environ, config_file=file, metadata=metadata)

    assert found("sts").get().security_token == "c"
    assert found("role").get().access_key_id == "STS.first"
    assert found().get().access_key_id == "STS.first"  # `aliyun configure` was never finished.
    with pytest.raises(AuthError, match=r"profile 'default' of .* has no key"):
        found("default").get()
    with pytest.raises(SpecError, match="has mode 'CloudSSO'; expected AK, StsToken or EcsRamRole"):
        found("sso")
    with pytest.raises(SpecError, match="has no profile 'x'; it has: default, role, sso, sts"):
        found("x")
    file.write_text("{")
    with pytest.raises(SpecError, match="was not written by `aliyun configure`"):
        found()


def test_a_profile_that_is_renewed_while_we_run_is_read_again(tmp_path):
    file = tmp_path / "config.json"
    profile = {"name": "default", "mode": "StsToken", "access_key_secret": "b", "sts_token": "c"}
    write(file, {**profile, "access_key_id": "old"})
    source = ProfileCredentials(file, None)
    assert source.get().access_key_id == "old"
    assert source.renew("old") is False
    write(file, {**profile, "access_key_id": "newer"})
    file.touch()
    assert source.renew("old") is True
    assert source.get().access_key_id == "newer"
