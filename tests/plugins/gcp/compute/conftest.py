"""The strict Compute Engine over real HTTP, with machines that only stand in a list; the real SDK asks."""

import pytest
from support.worlds.listed_host import ListedHost

from cloudspot.emulation.api_faults import Faults
from cloudspot.emulation.wsgi_server import Server
from cloudspot.model import Market, Resources
from cloudspot.testing import plaincalls
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.provider import GcpProvider
from cloudspot_gcp_sandbox.identities import Identities, ServiceAccount, write_key_file
from cloudspot_gcp_sandbox.machinetokens import MachineTokens
from cloudspot_gcp_sandbox.strict_compute import StrictCompute

PROJECT = "my-project-123"
SERVICES = ("compute", "cloudbilling", "cloudresourcemanager", "iamcredentials")
OPTIONS = {"project": PROJECT, "regions": ("us-central1",), "machine_types": ("n2-standard-4",)}


class Door:
    """One address for all tests, behind which each puts a project of its own: clients are dear to make."""

    def __init__(self):
        self.app = None
        self.errors = []
        self.faults = Faults()
        self.account = ServiceAccount.make(f"you@{PROJECT}.iam.gserviceaccount.com", project=PROJECT)
        self.machine_tokens = MachineTokens("seed")
        self.identities = Identities(self.answer, faults=self.faults, machine_tokens=self.machine_tokens)
        self.identities.add(self.account)
        self.server = Server(self.identities)
        self.url = self.server.url
        self.clients = None

    def answer(self, environ, start_response):
        try:
            return self.app(environ, start_response)
        except BaseException as error:
            self.errors.append(error)  # a fault of the emulation, which the fixture tells
            raise


class Cloud:
    """One emulated project, and what a test asks of it."""

    def __init__(self, door):
        self.now = 1_790_000_000.0
        self.host = ListedHost()
        self.faults = door.faults
        self.faults.__init__()
        self.compute = StrictCompute(
            self.host,
            identities=door.identities,
            faults=self.faults,
            clock=lambda: self.now,
            project=PROJECT,
        )
        self.url = door.url
        self.clients = door.clients
        door.app = self.compute

    def provider(self, **options):
        """Return a provider whose SDK clients are all tests' own."""
        provider = GcpProvider(GcpOptions(**{**OPTIONS, **options}))
        provider._clients = self.clients
        return provider

    def client(self, kind):
        return self.clients.compute(kind)

    def listed(self, kind="InstancesClient"):
        """Return what the API's aggregated list has, by name."""
        pages = self.client(kind).aggregated_list(project=PROJECT)
        field = {"InstancesClient": "instances", "ResourcePoliciesClient": "resource_policies"}[kind]
        return {one.name: one for _, scope in pages for one in getattr(scope, field)}

    def offer(self, provisioner, *, market="spot", region=None, resources=None):
        """Return the first offer of the market, in a region if one is named."""
        return next(
            one
            for one in plaincalls.offers(provisioner, resources or Resources())
            if one.market is Market(market) and region in {None, one.zone}
        )

    @property
    def alive(self):
        return self.host.alive


@pytest.fixture(autouse=True)
def gcp_environment(monkeypatch, tmp_path, compute_door):
    """No credentials but the test's own, no metadata server, no configuration of the user's."""
    for name in ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "GCE_METADATA_HOST", "CLOUDSDK_COMPUTE_REGION"):
        monkeypatch.delenv(name, raising=False)
    key_file = tmp_path / "key.json"
    key_file.write_text(write_key_file(compute_door.account, f"{compute_door.url}/token"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    for service in SERVICES:
        monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}", compute_door.url)
    # The plugin waits between its tries.
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture(scope="session")
def compute_door():
    door = Door()
    yield door
    door.server.close()


@pytest.fixture
def cloud(compute_door, gcp_environment):
    if compute_door.clients is None:
        compute_door.clients = GcpClients(project=PROJECT)
    compute_door.errors.clear()
    yield Cloud(compute_door)
    for error in compute_door.errors:
        raise error
