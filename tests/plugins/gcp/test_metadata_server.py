"""The emulated metadata server, held to what Compute Engine's documentation says of the real one."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone

import pytest

from cloudspot.emulation.cloud import MachineView, Request, StandingNotice
from cloudspot_gcp_sandbox.machinetokens import MachineTokens
from cloudspot_gcp_sandbox.metadata_server import GceMetadata

EMAIL = "cloudspot-node@my-project-123.iam.gserviceaccount.com"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
FACTS = {
    "access-configs": [{"external-ip": "203.0.113.7", "type": "ONE_TO_ONE_NAT"}],
    "disk-name": "boot",
    "hostname": "cs-digits-0a1b2c3d-1-1.us-central1-a.c.my-project-123.internal",
    "id": 7000000000000000001,
    "image": "projects/p/global/images/i",
    "ip": "10.128.0.9",
    "machine-type": "g2-standard-8",
    "name": "cs-digits-0a1b2c3d-1-1",
    "numeric-project-id": 123456789012,
    "project-id": "my-project-123",
    "scheduling": {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE", "automaticRestart": False},
    "service-accounts": [{"email": EMAIL, "scopes": [SCOPE]}],
    "tags": ["training"],
    "token-seed": "seed",
    "zone": "us-central1-a",
}
NOTICE = StandingNotice(deadline=datetime(2026, 11, 20, tzinfo=timezone.utc))


class Service:
    def __init__(self, **facts) -> None:
        self.now = 1_700_000_000.0
        self.tags: dict[str, str] = {"MASTER_ADDR": "cs-digits-0a1b2c3d-1-0", "startup-script": "#!/bin/sh\n"}
        known = {**FACTS, **facts}
        self.view = MachineView(
            address="10.128.0.9",
            facts={name: value for name, value in known.items() if value is not None},
            tags=lambda: self.tags,
        )
        self.server = GceMetadata(self.view, now=lambda: self.now)

    def ask(self, path: str, method: str = "GET", **headers: str):
        given = {"Metadata_Flavor": "Google", **headers}
        names = {name.replace("_", "-").lower(): value for name, value in given.items() if value}
        return self.server.answer(Request(method, path, names))

    def get(self, path: str):
        """Return (status, text) of what stands at the path below v1."""
        answer = self.ask(f"/computeMetadata/v1/{path}")
        return answer.status, answer.body.decode()


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.mark.parametrize("flavor", ["", "google", "Amazon"])
def test_nothing_is_told_without_the_header(service, flavor):
    for path in ("/computeMetadata/v1/instance/name", "/computeMetadata/v1/", "/computeMetadata/"):
        answer = service.ask(path, Metadata_Flavor=flavor)
        assert (answer.status, answer.headers["Metadata-Flavor"]) == (403, "Google")


def test_the_root_tells_a_client_that_it_is_on_compute_engine(service):
    answer = service.ask("/", Metadata_Flavor="")
    assert (answer.status, answer.body, answer.headers["Metadata-Flavor"]) == (
        200,
        b"computeMetadata/\n",
        "Google",
    )


def test_a_forwarded_request_is_refused(service):
    assert service.ask("/computeMetadata/v1/instance/name", X_Forwarded_For="10.0.0.1").status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(service, method):
    assert service.ask("/computeMetadata/v1/instance/attributes/x", method).status == 405


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("instance/name", "cs-digits-0a1b2c3d-1-1"),
        ("instance/id", "7000000000000000001"),
        ("instance/hostname", "cs-digits-0a1b2c3d-1-1.us-central1-a.c.my-project-123.internal"),
        ("instance/zone", "projects/123456789012/zones/us-central1-a"),
        ("instance/machine-type", "projects/123456789012/machineTypes/g2-standard-8"),
        ("instance/network-interfaces/0/ip", "10.128.0.9"),
        ("instance/preempted", "FALSE"),
        ("instance/maintenance-event", "NONE"),
        ("instance/scheduling/preemptible", "TRUE"),
        ("instance/tags", '["training"]'),
        ("instance/network-interfaces/0/access-configs/0/external-ip", "203.0.113.7"),
        ("instance/network-interfaces/0/gateway", "10.128.0.1"),
        ("instance/disks/0/device-name", "boot"),
        ("instance/licenses/0/id", "5926592092274602096"),
        ("instance/virtual-clock/drift-token", "0"),
        ("instance/attributes/MASTER_ADDR", "cs-digits-0a1b2c3d-1-0"),
        ("instance/service-accounts/default/email", EMAIL),
        ("instance/service-accounts/default/scopes", f"{SCOPE}\n"),
        ("project/project-id", "my-project-123"),
        ("project/numeric-project-id", "123456789012"),
        ("universe/universe-domain", "googleapis.com"),
    ],
)
def test_each_value_stands_where_the_documentation_has_it(service, path, text):
    assert service.get(path) == (200, text)


def test_a_directory_lists_its_names_and_wants_its_last_slash(service):
    assert service.get("instance/attributes/") == (200, "MASTER_ADDR\nstartup-script\n")
    assert service.get("") == (200, "instance/\noslogin/\nproject/\nuniverse/\n")
    moved = service.ask("/computeMetadata/v1/instance/attributes")
    where = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/"
    assert (moved.status, moved.headers["Location"]) == (301, where)


@pytest.mark.parametrize("path", ["instance/nothing", "instance/name/", "instance/attributes/none", "x"])
def test_what_is_not_there_is_not_found(service, path):
    assert service.get(path)[0] == 404


@pytest.mark.parametrize(
    "query",
    ["wait=true", "wait_for_change=yes", "alt=xml", "timeout_sec=1.5", "timeout_sec=-1", "recursive=1"],
)
def test_what_the_server_does_not_know_is_refused(service, query):
    assert service.get(f"instance/name?{query}")[0] == 400


def test_a_recursive_answer_is_json_with_the_users_names_as_they_are(service):
    status, text = service.get("instance/?recursive=true&alt=json")
    value = json.loads(text)
    assert status == 200
    assert value["attributes"]["MASTER_ADDR"] == "cs-digits-0a1b2c3d-1-0"
    assert value["machineType"].endswith("/g2-standard-8")
    assert value["networkInterfaces"][0]["ip"] == "10.128.0.9"
    assert value["serviceAccounts"]["default"] == {"aliases": ["default"], "email": EMAIL, "scopes": [SCOPE]}
    assert json.loads(service.get("instance/attributes/?recursive=true")[1]) == service.tags
    assert "preempted FALSE\n" in service.get("instance/?recursive=true&alt=text")[1]


def test_what_googles_guest_agents_wait_for_is_answered_in_the_form_that_they_read(service):
    """They retry every refusal but 404 a hundred times, so that a machine would seem to hang.

    Sources: GoogleCloudPlatform/guest-agent, metadata/metadata.go; google-guest-agent,
    internal/metadata/unmarshal.go; compute-image-packages, metadata_watcher.py, whose flags are Python's
    (checked 2026-11).
    """
    for true in ("true", "True"):
        query = f"alt=json&last_etag=NONE&recursive={true}&timeout_sec=60&wait_for_change={true}"
        status, text = service.get(f"?{query}")
        assert status == 200
        instance = json.loads(text)["instance"]
        assert instance["id"] == 7000000000000000001
        assert instance["virtualClock"] == {"driftToken": "0"}
        assert instance["attributes"] == service.tags
        (interface,) = instance["networkInterfaces"]
        assert interface.items() >= {"mac": "42:01:0a:80:00:09", "dhcpv6Refresh": ""}.items()
        assert interface["accessConfigs"] == [{"externalIp": "203.0.113.7", "type": "ONE_TO_ONE_NAT"}]
        for lists in ("forwardedIps", "forwardedIpv6s", "targetInstanceIps", "ipAliases"):
            assert interface[lists] == []
        assert [one["deviceName"] for one in instance["disks"]] == ["boot"]
        assert json.loads(text)["project"]["projectId"] == "my-project-123"
    known = etag(service, "?recursive=true")
    poll = f"?recursive=True&alt=json&wait_for_change=True&timeout_sec=0&last_etag={known}"
    assert etag(service, poll) == known
    # They ask for certificates, too, and are told for good that there are none.
    assert service.get("instance/credentials/certs")[0] == 404
    put = service.ask("/computeMetadata/v1/instance/guest-attributes/hostkeys/ssh-ed25519", "PUT")
    assert (put.status, b"Guest attributes endpoint access is disabled" in put.body) == (403, True)


def test_a_machine_without_a_public_address_has_none():
    bare = Service(**{"access-configs": []})
    assert bare.get("instance/network-interfaces/0/access-configs/0/external-ip")[0] == 404
    assert bare.get("instance/network-interfaces/0/access-configs/") == (200, "")


def test_an_identity_is_a_token_for_its_audience(service):
    path = "instance/service-accounts/default/identity"
    assert service.get(path)[0] == 400
    status, text = service.get(f"{path}?audience=https://example.com&format=full&licenses=TRUE")
    head, claims, signature = (base64.urlsafe_b64decode(one + "==") for one in text.split("."))
    assert (status, json.loads(head)["typ"], len(signature)) == (200, "JWT", 32)
    said = json.loads(claims)
    assert (said["aud"], said["email"], said["exp"] - said["iat"]) == ("https://example.com", EMAIL, 3600)
    assert said["google"]["compute_engine"]["instance_name"] == "cs-digits-0a1b2c3d-1-1"
    plain = service.get(f"{path}?audience=x")[1].split(".")[1]
    assert "google" not in json.loads(base64.urlsafe_b64decode(plain + "=="))


def test_a_machine_without_a_service_account_has_none(service):
    bare = Service(**{"service-accounts": []})
    assert bare.get("instance/service-accounts/") == (200, "")
    assert bare.get("instance/service-accounts/default/token")[0] == 404


def test_a_token_is_the_accounts_and_is_renewed_before_it_runs_out(service):
    path = "instance/service-accounts/default/token"
    first = json.loads(service.get(path)[1])
    said = MachineTokens("seed").read(first["access_token"])
    assert (said.email, said.scopes, first["expires_in"], first["token_type"]) == (
        EMAIL,
        (SCOPE,),
        3600,
        "Bearer",
    )
    assert said.expires_at == service.now + 3600
    service.now += 3000
    again = json.loads(service.get(path)[1])
    assert (again["access_token"], again["expires_in"]) == (first["access_token"], 600)
    service.now += 301
    assert json.loads(service.get(path)[1])["access_token"] != first["access_token"]
    assert MachineTokens("another").read(first["access_token"]) is None


# --- the long poll ----------------------------------------------------------------------------------


def etag(service, path="instance/preempted"):
    return service.ask(f"/computeMetadata/v1/{path}").headers["ETag"]


def wait(service, *, path="instance/preempted", after="", seconds=30):
    query = f"wait_for_change=true&timeout_sec={seconds}" + (f"&last_etag={after}" if after else "")
    answer = service.ask(f"/computeMetadata/v1/{path}?{query}")
    return answer.status, answer.body.decode(), answer.headers.get("ETag")


def test_who_knows_the_version_waits_until_its_time_is_up_and_gets_the_same(service):
    known = etag(service)
    assert wait(service, after=known, seconds=0) == (200, "FALSE", known)
    assert wait(service, after=known, seconds=1) == (200, "FALSE", known)


@pytest.mark.parametrize("after", ["0", "0123456789abcdef"])
def test_who_knows_another_version_is_answered_at_once(service, after):
    assert wait(service, after=after, seconds=3600)[:2] == (200, "FALSE")


@pytest.mark.parametrize("knows_version", [True, False])
def test_a_preemption_ends_the_waiting(service, monkeypatch, knows_version):
    known, wait_for_change = etag(service), service.view.wait_for_change

    def preempt(seconds):
        service.view.notice = NOTICE
        return wait_for_change(seconds)

    monkeypatch.setattr(service.view, "wait_for_change", preempt)
    status, text, version = wait(service, after=known if knows_version else "", seconds=3600)
    assert (status, text) == (200, "TRUE")
    assert version == etag(service) != known


def test_a_change_that_came_before_the_waiting_is_not_slept_through(service):
    known = etag(service)
    service.view.notice = NOTICE
    assert wait(service, after=known, seconds=3600)[:2] == (200, "TRUE")


def test_a_change_elsewhere_ends_no_waiting_but_that_for_the_directory(service):
    known, attributes = etag(service), etag(service, "instance/attributes/")
    service.tags = {**service.tags, "MASTER_PORT": "29500"}
    assert wait(service, after=known, seconds=0)[2] == known
    assert "MASTER_PORT" in wait(service, path="instance/attributes/", after=attributes, seconds=3600)[1]


def test_what_is_not_there_is_not_waited_for(service):
    assert wait(service, path="instance/attributes/none", seconds=3600)[0] == 404


def test_only_a_spot_machine_is_preempted():
    service = Service(scheduling={"provisioningModel": "STANDARD"})
    service.view.notice = NOTICE
    assert service.get("instance/preempted") == (200, "FALSE")
