"""Real controllers on the strict EC2 over HTTP, with the plugin between them; the nodes are simulated."""

import base64
import os
from types import MappingProxyType

import pytest
from support.clouds.controllertests import ControllerTests, use_one_thread
from support.worlds.cloud_histories import Town

from cloudspot.jobfile.spec import decode_options
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.provider import AwsProvider

pytestmark = pytest.mark.full


class Ec2Town(Town):
    """A job on the emulated AWS."""

    provider_name = "aws"
    zones = ("us-east-1a", "us-east-1b")
    faults_of_the_api = (("RequestLimitExceeded", 503), ("InternalError", 500), ("Unavailable", 503))

    def __init__(self, server, clients, **tables):
        self._server = server
        self._clients = clients
        super().__init__(**tables)

    def options(self):
        return {
            "region": "us-east-1",
            "account": "123456789012",
            "instance_types": ["g5.xlarge"],
            "zones": list(self.zones),
            "image_has_cloudspot": True,
        }

    def emulate(self):
        from cloudspot_aws_sandbox.strict_ec2 import StrictEc2

        secrets = {os.environ["AWS_ACCESS_KEY_ID"]: os.environ["AWS_SECRET_ACCESS_KEY"]}
        self.ec2 = StrictEc2(self._server.moto, self.host, secrets=secrets, clock=self.unix_time)
        self._server.app = self.ec2
        return self.ec2.faults

    def provider(self):
        # Each is a process of its own, with nothing looked up; only the SDK's clients are dear to make.
        provider = AwsProvider(decode_options(self.spec, "aws", AwsOptions))
        provider._clients = self._clients
        return provider

    def zone_of(self, emulated):
        return emulated.metadata["availability-zone"]

    def check_leftovers(self):
        client = self._clients.client("ec2")
        assert client.describe_placement_groups()["PlacementGroups"] == []
        assert client.describe_volumes()["Volumes"] == []

    def hook(self):
        """Let others run, and controllers die, before each request of the SDK and after each answer."""
        clients = [self._clients.client(service, num_attempts=3) for service in ("ec2", "sts")]
        clients.append(self._clients.client("ec2", region="us-east-1", num_attempts=1))
        for client in clients:
            client.meta.events.register("before-send.*", self._on_request)
            client.meta.events.register("after-call.*", self._on_request)

    def unhook(self):
        for client in self._clients._clients.values():
            client.meta.events.unregister("before-send.*", self._on_request)
            client.meta.events.unregister("after-call.*", self._on_request)

    def _on_request(self, **_):
        self.meet_fate()


@pytest.fixture
def found(ec2_server, ec2_clients, cloud, monkeypatch):
    """``found(**tables)``: found a town. The account is that of ``cloud``, emptied."""
    use_one_thread(monkeypatch)
    towns = []

    def make(**options):
        town = Ec2Town(ec2_server, ec2_clients, **options)
        town.hook()
        towns.append(town)
        return town

    yield make
    for town in towns:
        town.unhook()


class TestControllersOnEc2(ControllerTests):
    first, second = "us-east-1b", "us-east-1a"
    zones_of_first = ("us-east-1b",)
    launch_call, list_call = "RunInstances", "DescribeInstances"
    unwell = "Unavailable"
    throttled = "RequestLimitExceeded"
    several = MappingProxyType({"placement_group": "auto"})
    no_capacity = "sufficient g5.xlarge capacity"
    quota_words = ("MaxSpotInstanceCountExceeded", "ask for more in Service Quotas")
    soak_variable = "CLOUDSPOT_SOAK_EC2"


def test_the_placement_group_goes_with_the_job(found):
    town = found(nodes={"min": 2, "max": 2}, options={"placement_group": "auto"})
    assert town.run().finished.outcome == "succeeded"
    assert town.faults.count("CreatePlacementGroup") == 1
    town.check_end()


def test_the_intents_bytes_are_what_ec2_gets(found):
    town = found()
    town.run()
    intent = town.journal[0]
    (call,) = [call for call in town.faults.calls if call.action == "RunInstances"]
    sent = dict(call.parameters)
    assert sent.pop("ClientToken") == intent.token
    asked = dict(intent.request.body["run_instances"])
    assert base64.b64decode(sent.pop("UserData")).decode() == asked.pop("UserData")
    assert sent == asked
