"""Real controllers on the strict EC2 over HTTP, with the plugin between them; the nodes are simulated."""

import base64
import os

import pytest
from cloud_histories import Town, check_histories, play
from launch_histories import OneAtATime

from cloudspot.jobfile.spec import decode_options
from cloudspot.jobstore import parallel
from cloudspot.model import EndReason
from cloudspot.story.events import LaunchClosed
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.provider import AwsProvider
from cloudspot_aws_sandbox.strict_ec2 import StrictEc2

NUM_HISTORIES = 6


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


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(parallel, "ThreadPoolExecutor", OneAtATime)


@pytest.fixture
def found(ec2_server, ec2_clients, cloud):
    """``found(**tables)``: found a town. The account is that of ``cloud``, emptied."""
    towns = []

    def make(**options):
        town = Ec2Town(ec2_server, ec2_clients, **options)
        town.hook()
        towns.append(town)
        return town

    yield make
    for town in towns:
        town.unhook()


# --- capacity -------------------------------------------------------------------------------------


def test_the_cheapest_zone_has_none_and_the_other_one_runs_the_job(found):
    town = found()
    town.faults.capacity["us-east-1b", "*", "*"] = 0
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes() == [("spot", "us-east-1b", "capacity"), ("spot", "us-east-1a", "succeeded")]
    closed = [event.text for event in town.events if isinstance(event, LaunchClosed)]
    assert "sufficient g5.xlarge capacity" in closed[0]
    town.check_end()


def test_no_zone_has_any_within_max_wait_and_the_job_fails(found):
    town = found(spot={"policy": "spot", "max_wait": 300.0})
    town.faults.capacity["*", "*", "*"] = 0
    finished = town.run().finished
    assert (finished.outcome, finished.exit_code) == ("failed", 1)
    assert finished.detail == "no spot capacity within spot.max_wait of 300 s"
    assert {outcome for _, _, outcome in town.outcomes()} == {"capacity"}
    assert town.host.truth.machines == {}
    assert 260 <= town.world.time < 460  # each computer's wall clock is up to 20 s off
    town.check_end()


def test_without_spot_capacity_the_job_goes_on_demand_after_max_wait(found):
    town = found(spot={"max_wait": 120.0})
    town.faults.capacity["*", "*", "spot"] = 0
    assert town.run().finished.outcome == "succeeded"
    markets = [market for market, _, _ in town.outcomes()]
    assert markets == ["spot"] * (len(markets) - 1) + ["on-demand"]
    town.check_end()


def test_a_quota_is_told_and_the_other_market_is_taken(found):
    town = found(spot={"max_wait": 60.0})
    town.faults.vcpu_quota["spot"] = 0
    assert town.run().finished.outcome == "succeeded"
    assert [(market, outcome) for market, _, outcome in town.outcomes()] == [
        ("spot", "quota"),
        ("spot", "quota"),
        ("on-demand", "succeeded"),
    ]
    assert "MaxSpotInstanceCountExceeded" in town.warnings()[0]
    assert "ask for more in Service Quotas" in town.warnings()[0]
    town.check_end()


def test_two_nodes_are_all_or_none(found):
    town = found(nodes={"min": 2, "max": 2})
    town.faults.capacity["us-east-1b", "*", "*"] = 1
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes() == [("spot", "us-east-1b", "capacity"), ("spot", "us-east-1a", "succeeded")]
    assert len(town.host.made) == 2
    town.check_end()


def test_every_third_call_is_throttled_and_the_job_succeeds(found):
    town = found(nodes={"min": 2, "max": 2}, options={"placement_group": "auto"})
    town.faults.throttle_every = 3
    assert town.run().finished.outcome == "succeeded"
    assert any(call.error == "RequestLimitExceeded" for call in town.faults.calls)
    town.faults.throttle_every = 0
    town.check_end()


def test_an_unwell_api_costs_time_and_no_machine(found):
    town = found()
    town.faults.inject("RunInstances", "InternalError", happens=True)
    town.faults.inject("DescribeInstances", "Unavailable", status=503, times=6)
    assert town.run().finished.outcome == "succeeded"
    assert len(town.host.made) == 1
    assert town.outcomes()[-1][2] == "succeeded"
    town.check_end()


def test_a_reclaimed_machine_is_followed_by_another(found):
    town = found()

    def reclaim():
        yield 25.0
        machine = next(iter(town.host.truth.machines.values()))
        town.host.truth.end(machine, EndReason.RECLAIMED)

    town.world.start(reclaim())
    assert town.run().finished.outcome == "succeeded"
    assert [outcome for _, _, outcome in town.outcomes()] == ["reclaimed", "succeeded"]
    assert town.history.launches[0].closed.machines[0].end_reason == "reclaimed"
    town.check_end()


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


# --- histories ------------------------------------------------------------------------------------


def test_controllers_that_are_killed_between_any_two_requests_never_have_two_live_attempts(found):
    check_histories([play(found, seed, several={"placement_group": "auto"}) for seed in range(NUM_HISTORIES)])


@pytest.mark.soak
def test_many_histories_never_have_two_live_attempts(found):
    first = NUM_HISTORIES
    number = int(os.environ.get("CLOUDSPOT_SOAK_EC2", "40"))
    check_histories(
        [play(found, seed, several={"placement_group": "auto"}) for seed in range(first, first + number)]
    )
