"""An emulated AWS for the plugin's tests: moto, made strict, on a port of this machine."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import botocore.session
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from cloudspot.emulation.api_faults import Faults
from cloudspot.emulation.wsgi_server import Server
from cloudspot_aws_sandbox.strict_logs import StrictLogs
from cloudspot_aws_sandbox.strict_s3 import StrictS3

ACCESS_KEY = "AKIAIOSFODNN7EXAMPLE"
SECRET_KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
REGION = "eu-central-1"


@pytest.fixture(scope="session", autouse=True)
def one_reader_of_service_models() -> Iterator[None]:
    """Let all sessions read botocore's descriptions of services once: they take longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", functools.cache(botocore.session.create_loader))
        yield


class EmulatedAws:
    """The servers of a test session; the faults are a test's own."""

    def __init__(self) -> None:
        self.faults = Faults()
        secrets = {ACCESS_KEY: SECRET_KEY}
        moto = DomainDispatcherApplication(create_backend_app)
        self.logs = StrictLogs(moto, faults=self.faults, secrets=secrets)
        self.s3 = StrictS3(self.logs, faults=self.faults, secrets=secrets)
        self.server = Server(self.s3)
        self.url = self.server.url

    def reset_faults(self) -> None:
        """Forget rules and calls; the objects stay the same, since the servers hold them."""
        self.faults.__init__()


@pytest.fixture(scope="session")
def aws_servers() -> Iterator[EmulatedAws]:
    servers = EmulatedAws()
    yield servers
    servers.server.close()


@pytest.fixture
def aws(aws_servers: EmulatedAws, monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[EmulatedAws]:
    """The emulated AWS, as the environment names it to any SDK; no fault is left of the test before."""
    for name, value in {
        "AWS_ENDPOINT_URL": aws_servers.url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "no-aws-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "no-aws-credentials"),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    aws_servers.reset_faults()
    yield aws_servers
    aws_servers.reset_faults()
