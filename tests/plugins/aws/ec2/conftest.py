"""The strict EC2 over real HTTP, with machines that only stand in a list; real boto3 on the other side."""

import json
import logging
import threading

import boto3
import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from support.worlds.listed_host import ListedHost
from werkzeug.serving import make_server

from cloudspot.emulation.api_faults import Faults
from cloudspot.model import Market, Resources
from cloudspot.testing import plaincalls
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.provider import AwsProvider
from cloudspot_aws_sandbox.strict_logs import StrictLogs

KEY = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TRUSTS_SCHEDULER = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": "sts:AssumeRole",
                "Principal": {"Service": "scheduler.amazonaws.com"},
            }
        ],
    }
)


class Server:
    """One address for all tests, behind which each puts an account of its own: clients are dear to make."""

    def __init__(self):
        self.moto = DomainDispatcherApplication(create_backend_app)
        self.app = self.moto
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.server = make_server("127.0.0.1", 0, self.answer, threaded=True)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.clients = {}
        self.errors = []

    def answer(self, environ, start_response):
        try:
            return self.app(environ, start_response)
        except BaseException as error:
            self.errors.append(error)  # a fault of the emulation, which the fixture tells
            raise

    def client(self, service):
        if service not in self.clients:
            self.clients[service] = boto3.client(
                service,
                region_name="us-east-1",
                endpoint_url=self.url,
                aws_access_key_id=KEY,
                aws_secret_access_key=SECRET,
            )
        return self.clients[service]

    def close(self):
        for client in self.clients.values():
            client.close()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Cloud:
    """One emulated account, and what a test asks of it."""

    def __init__(self, server, clients):
        from cloudspot_aws_sandbox.strict_ec2 import StrictEc2  # moto reads its tables for a second

        self.now = 1_790_000_000.0
        self.host = ListedHost()
        self.faults = Faults()
        secrets = {KEY: SECRET}
        logs = StrictLogs(server.moto, faults=self.faults, secrets=secrets)
        self.ec2 = StrictEc2(logs, self.host, secrets=secrets, faults=self.faults, clock=lambda: self.now)
        self.url = server.url
        self._server = server
        self._clients = clients
        server.app = self.ec2
        self._iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
        self._iam.reset()
        self._make_role("cloudspot-limit", TRUSTS_SCHEDULER)
        self.make_profile("cloudspot-node")

    def make_profile(self, name, *, has_role=True):
        self._iam.create_instance_profile(name, "/", [])
        if has_role:
            self._make_role(name, "{}")
            self._iam.add_role_to_instance_profile(name, name)

    def _make_role(self, name, trust):
        self._iam.create_role(name, trust, "/", None, "", [], None)

    def provider(self, **options):
        """Return a provider whose SDK clients are all tests' own."""
        provider = AwsProvider(AwsOptions(**{"region": "us-east-1", **options}))
        if provider.options.region == "us-east-1":
            provider._clients = self._clients
        return provider

    def client(self, service="ec2"):
        return self._server.client(service)

    def offer(self, provisioner, *, market="spot", zone=None, resources=None):
        """Return the first offer of the market, in a zone if one is named."""
        return next(
            one
            for one in plaincalls.offers(provisioner, resources or Resources())
            if one.market is Market(market) and zone in {None, one.zone}
        )

    @property
    def alive(self):
        return self.host.alive


@pytest.fixture(autouse=True)
def aws_environment(monkeypatch, tmp_path):
    """No credentials but the test's own, no metadata service, no configuration of the user's."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    # botocore and the plugin wait between their tries.
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture(scope="session")
def ec2_server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def ec2_clients():
    """SDK clients that are made once, with the environment of the first test that needs them."""
    return AwsClients(region="us-east-1")


@pytest.fixture
def cloud(ec2_server, ec2_clients, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", ec2_server.url)
    ec2_server.errors.clear()
    yield Cloud(ec2_server, ec2_clients)
    for error in ec2_server.errors:
        raise error
