"""An emulated Google Cloud for the plugin's tests: its strict fakes, on a port of this machine."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator

import google.auth
import pytest
from cryptography.hazmat.primitives import serialization
from google.auth.transport.requests import AuthorizedSession

from cloudspot.emulation.api_faults import Faults
from cloudspot.emulation.local_machine_host import emulated
from cloudspot.emulation.wsgi_server import Server
from cloudspot_gcp_sandbox.catalogue import IMAGES
from cloudspot_gcp_sandbox.cloud import NODE
from cloudspot_gcp_sandbox.cloud import EmulatedGcp as WholeGcp
from cloudspot_gcp_sandbox.identities import Identities, ServiceAccount, write_key_file
from cloudspot_gcp_sandbox.strict_logging import StrictLogging
from cloudspot_gcp_sandbox.strict_storage import StrictStorage

PROJECT = "my-project-123"
ACCOUNT = f"cloudspot-node@{PROJECT}.iam.gserviceaccount.com"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
SERVICES = ("compute", "iamcredentials", "logging", "storage")


class EmulatedGcp:
    """The servers of a test session; the faults are a test's own."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.account = ServiceAccount.make(ACCOUNT, project=PROJECT)
        self.identities = Identities(faults=self.faults)
        self.identities.add(self.account)
        self.logging = StrictLogging(self.identities, faults=self.faults, identities=self.identities)
        self.storage = StrictStorage(self.logging, faults=self.faults, identities=self.identities)
        self.server = Server(self.storage)
        self.url = self.server.url

    def reset_faults(self) -> None:
        """Forget rules and calls; the objects stay the same, since the servers hold them."""
        self.faults.__init__()
        self.storage.sessions.breaks.clear()
        self.logging.clear()


@pytest.fixture(scope="session")
def gcp_servers() -> Iterator[EmulatedGcp]:
    servers = EmulatedGcp()
    with pytest.MonkeyPatch.context() as patch:
        # Each client reads the key file and checks the key, which takes longer than many a test.
        patch.setattr(
            serialization, "load_pem_private_key", functools.cache(serialization.load_pem_private_key)
        )
        yield servers
    servers.server.close()


@pytest.fixture
def gcp(gcp_servers: EmulatedGcp, monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[EmulatedGcp]:
    """The emulated Google Cloud, as the environment names it to the SDKs; no fault is left of before."""
    key_file = tmp_path / "key.json"
    key_file.write_text(write_key_file(gcp_servers.account, f"{gcp_servers.url}/token"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    for name in ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "STORAGE_EMULATOR_HOST", "GCE_METADATA_HOST"):
        monkeypatch.delenv(name, raising=False)
    for service in SERVICES:
        monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}", gcp_servers.url)
    gcp_servers.reset_faults()
    yield gcp_servers
    gcp_servers.reset_faults()


class Project:
    """The project of a whole emulated cloud with machines, as its owner sees it."""

    def __init__(self, cloud, host, wait_until):
        self.cloud, self.host, self.wait_until = cloud, host, wait_until
        for name in [name for name in os.environ if name.startswith(cloud.foreign_variables)]:
            del os.environ[name]  # This process is the test's alone.
        os.environ.update(cloud.environment())
        credentials, project = google.auth.default(scopes=[SCOPE])
        self.session = AuthorizedSession(credentials)
        self.compute = f"{os.environ['CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE']}projects/{project}"

    def run(
        self, script: str, *, name: str = "cs-digits-0a1b2c3d-1-0", image: str = IMAGES[0].path, **properties
    ) -> str:
        items = {"startup-script": f"#!/bin/bash\n{script}\n", **properties.pop("attributes", {})}
        body = {
            "count": "1",
            "perInstanceProperties": {name: {}},
            "locationPolicy": {"targetShape": "ANY_SINGLE_ZONE"},
            "instanceProperties": {
                "machineType": "n2-standard-2",
                "disks": [{"boot": True, "initializeParams": {"sourceImage": image}}],
                "networkInterfaces": [{"network": "global/networks/default"}],
                "serviceAccounts": [{"email": NODE, "scopes": [SCOPE]}],
                "metadata": {"items": [{"key": key, "value": value} for key, value in items.items()]},
                **properties,
            },
        }
        answer = self.session.post(f"{self.compute}/regions/us-central1/instances/bulkInsert", json=body)
        assert answer.status_code == 200, answer.text
        return name

    def instances(self) -> list[dict]:
        found = self.session.get(f"{self.compute}/aggregated/instances").json()["items"].values()
        return [one for scope in found for one in scope.get("instances", ())]

    def operations(self) -> list[str]:
        found = self.session.get(f"{self.compute}/aggregated/operations").json()["items"].values()
        return [one["operationType"] for scope in found for one in scope.get("operations", ())]

    def wait_for_console(self, name: str, text: str) -> list[str]:
        self.wait_until(lambda: text in self.host.console(name))
        return self.host.console(name).splitlines()


@pytest.fixture
def project(tmp_path, wait_until):
    """``with project() as it``: to be entered inside, by a test marked ``enclosed``."""

    @contextlib.contextmanager
    def make():
        cloud = WholeGcp()
        with emulated(cloud, tmp_path / "gcp", is_isolated=True) as host:
            yield Project(cloud, host, wait_until)

    return make
