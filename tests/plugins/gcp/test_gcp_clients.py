"""Clients of Google's services: whose they are, where they ask, and how often they are made."""

import json

import pytest

from cloudspot.errors import AuthError, SpecError
from cloudspot_gcp.clients import GcpClients, endpoint


@pytest.fixture
def no_credentials(gcp, monkeypatch):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")


def test_the_project_is_the_options_then_the_environments_then_the_credentials(gcp, monkeypatch):
    assert GcpClients().project == gcp.account.project
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "from-environment")
    assert GcpClients().project == "from-environment"
    assert GcpClients(project="from-options").project == "from-options"


def test_a_project_that_is_named_needs_no_credentials(no_credentials):
    assert GcpClients(project="from-options").project == "from-options"
    with pytest.raises(AuthError, match="no Google credentials found; run `gcloud auth"):
        assert GcpClients().project


def test_without_a_project_it_is_said_where_to_set_one(gcp, monkeypatch, tmp_path):
    user = {
        "type": "authorized_user",
        "client_id": "x",
        "client_secret": "y",
        "refresh_token": "z",
    }
    path = tmp_path / "user.json"
    path.write_text(json.dumps(user))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.setenv("PATH", str(tmp_path))  # No gcloud to ask.
    assert GcpClients().project_or_none() is None
    with pytest.raises(SpecError, match=r"set providers\.gcp\.project, GOOGLE_CLOUD_PROJECT or"):
        assert GcpClients().project


def test_construction_asks_nothing_and_each_client_is_made_once(gcp):
    clients = GcpClients()
    assert gcp.faults.calls == []
    assert clients.storage() is clients.storage()
    assert clients.compute("InstancesClient") is clients.compute("InstancesClient")
    assert clients.compute("InstancesClient") is not clients.compute("ZonesClient")
    assert clients.session() is clients.session()
    assert gcp.faults.calls == []


def test_the_sdks_ask_nothing_that_nobody_asked_for(gcp):
    gcp.storage.buckets.make("asked-for", project=gcp.account.project)
    clients = GcpClients()
    bucket = clients.storage().bucket("asked-for")
    for _ in range(2):
        bucket.blob("k").exists()
    assert [call.action for call in gcp.faults.calls] == [
        "token",
        "storage.objects.get",
        "storage.objects.get",
    ]
    # It would ask at the real iamcredentials.googleapis.com, in a thread.
    assert not clients.credentials()._rab_manager._should_refresh()


@pytest.mark.parametrize(
    ("service", "variables", "url"),
    [
        ("compute", {}, "https://compute.googleapis.com"),
        (
            "compute",
            {"CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": "http://127.0.0.1:5/compute/v1/"},
            "http://127.0.0.1:5",
        ),
        (
            "storage",
            {"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": "https://storage.example/storage/v1/"},
            "https://storage.example",
        ),
        (
            "storage",
            {
                "STORAGE_EMULATOR_HOST": "localhost:9000",
                "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": "https://storage.example/",
            },
            "http://localhost:9000",
        ),
        ("logging", {"STORAGE_EMULATOR_HOST": "localhost:9000"}, "https://logging.googleapis.com"),
    ],
)
def test_a_service_is_where_googles_own_variables_say(monkeypatch, service, variables, url):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert endpoint(service) == url


@pytest.mark.parametrize("value", ["ftp://x", "http://", "http://user:secret@host"])
def test_an_endpoint_that_is_no_url_is_a_spec_error(monkeypatch, value):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", value)
    with pytest.raises(SpecError, match="STORAGE_EMULATOR_HOST must be a URL") as caught:
        endpoint("storage")
    assert "secret" not in str(caught.value)
