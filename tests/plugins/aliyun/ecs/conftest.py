"""The strict ECS over real HTTP, with machines that only stand in a list; the real SDK on the other side."""

import json

import pytest
from support.worlds.listed_host import ListedHost

from cloudspot.emulation.role_credentials import Secrets
from cloudspot.emulation.wsgi_server import Server
from cloudspot.model import Market, Resources
from cloudspot.testing import plaincalls
from cloudspot_aliyun.api import ask
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.ecs import EcsProvisioner
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.provider import AliyunProvider
from cloudspot_aliyun_sandbox.rolekeys import RoleKeys
from cloudspot_aliyun_sandbox.strict_ecs import StrictEcs

KEY = "LTAI5tExampleKeyOfATest"
SECRET = "ExampleSecretOfATest30Characters"
REGION = "cn-hangzhou"


class Door:
    """One address for all tests, behind which each puts an account of its own."""

    def __init__(self):
        self.app = None
        self.errors = []
        self.server = Server(self.answer)
        self.url = self.server.url

    def answer(self, environ, start_response):
        try:
            return self.app(environ, start_response)
        except BaseException as error:
            self.errors.append(error)  # a fault of the emulation, which the fixture tells
            raise


class Cloud:
    """One emulated account, and what a test asks of it."""

    def __init__(self, door):
        self.now = 1_790_000_000.0
        self.monotonic = 0.0
        self.host = ListedHost()
        self.keys = RoleKeys("0" * 32)
        self.secrets = {KEY: SECRET, "LTAI5tTheNextKey": "TheNextSecret"}
        known = Secrets(self.secrets, self.keys)
        self.ecs = StrictEcs(self.host, secrets=known, roles=self.keys, clock=lambda: self.now)
        self.faults = self.ecs.faults
        self.account = self.ecs.account
        self.place = self.account.place(REGION)
        self.url = door.url
        self.clients = AliyunClients(region=REGION)
        door.app = self.ecs

    def provider(self, **options):
        """Return a provider that has looked up nothing, and lives by the account's time."""
        provider = AliyunProvider(AliyunOptions(**{"region": REGION, **options}))
        provider._clients = AliyunClients(region=provider.options.region)
        provider._provisioner = EcsProvisioner(
            provider.options,
            provider._clients,
            monotonic=lambda: self.monotonic,
        )
        return provider

    def ask(self, action, product="Ecs", **parameters):
        return ask(self.clients, action, parameters, product=product)

    def describe(self, *ids):
        answer = self.ask("DescribeInstances", InstanceIds=json.dumps(ids), PageSize=100)
        return {one["InstanceId"]: one for one in answer["Instances"]["Instance"]}

    def offer(self, provisioner, *, market="spot", zone=None, resources=None):
        """Return the first offer of the market, in a zone if one is named."""
        return next(
            one
            for one in plaincalls.offers(provisioner, resources or Resources())
            if one.market is Market(market) and zone in {None, one.zone}
        )

    def calls(self, action):
        """Return the parameters of the calls of an action, but for those of every call."""
        return [call.parameters for call in self.faults.calls if call.action == action]

    @property
    def alive(self):
        return self.host.alive


@pytest.fixture(autouse=True)
def aliyun_environment(monkeypatch, tmp_path):
    """No credentials but the test's own, no metadata service, no configuration of the user's."""
    for name in ("ALIBABA_CLOUD_PROFILE", "ALIBABA_CLOUD_SECURITY_TOKEN", "ALIBABA_CLOUD_REGION_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALIBABA_CLOUD_ECS_METADATA_DISABLED", "true")
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", SECRET)
    monkeypatch.setenv("HOME", str(tmp_path))
    # The plugin waits between its tries.
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture(scope="session")
def ecs_door():
    door = Door()
    yield door
    door.server.close()


@pytest.fixture
def cloud(ecs_door, monkeypatch):
    monkeypatch.setenv("ECS_ENDPOINT", ecs_door.url)
    ecs_door.errors.clear()
    yield Cloud(ecs_door)
    for error in ecs_door.errors:
        raise error
