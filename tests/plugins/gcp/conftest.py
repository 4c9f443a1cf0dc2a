"""An emulated Google Cloud for the plugin's tests: its strict fakes, on a port of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloudspot.testing.faults import Faults
from cloudspot.testing.serving import Server
from cloudspot_gcp.sandbox.identities import Identities, ServiceAccount, write_key_file
from cloudspot_gcp.sandbox.strict_logging import StrictLogging
from cloudspot_gcp.sandbox.strict_storage import StrictStorage

PROJECT = "my-project-123"
ACCOUNT = ServiceAccount.make(f"cloudspot-node@{PROJECT}.iam.gserviceaccount.com", project=PROJECT)
SERVICES = ("compute", "iamcredentials", "logging", "storage")


class EmulatedGcp:
    """The servers of a test session; the faults are a test's own."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.account = ACCOUNT
        self.identities = Identities(faults=self.faults)
        self.identities.add(ACCOUNT)
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
    yield servers
    servers.server.close()


@pytest.fixture
def gcp(gcp_servers: EmulatedGcp, monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[EmulatedGcp]:
    """The emulated Google Cloud, as the environment names it to the SDKs; no fault is left of before."""
    key_file = tmp_path / "key.json"
    key_file.write_text(write_key_file(ACCOUNT, f"{gcp_servers.url}/token"))
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
