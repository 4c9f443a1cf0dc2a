"""Real controllers on the strict ECS over HTTP, with the plugin between them; the nodes are simulated."""

import base64
import os

import pytest
from cloud_histories import Killed, Town, check_histories, play
from launch_histories import OneAtATime

from cloudspot.controller.decide import BOOT_LIMIT_SECONDS
from cloudspot.jobfile.spec import decode_options
from cloudspot.jobstore import parallel
from cloudspot.jobstore.delivering import DELIVERY_GRACE_SECONDS
from cloudspot.model import EndReason
from cloudspot.story.events import LaunchClosed
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.ecs import EcsProvisioner
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.provider import AliyunProvider
from cloudspot_aliyun.request import RELEASE_GRACE_SECONDS
from cloudspot_aliyun_sandbox.strict_ecs import StrictEcs

NUM_HISTORIES = 8
TYPE = "ecs.gn7i-c8g1.2xlarge"
CHEAP, DEAR = "cn-hangzhou-j", "cn-hangzhou-i"
"""The zones by their price."""


class FatefulClients(AliyunClients):
    """Others run, and controllers die, before each request and after each answer."""

    def __init__(self, town):
        super().__init__(region="cn-hangzhou")
        self._town = town

    def ask_ecs(self, request, *, region=None):
        self._town.meet_fate()
        answer = super().ask_ecs(request, region=region)
        self._town.meet_fate()
        return answer


class EcsTown(Town):
    """A job on the emulated Alibaba Cloud."""

    provider_name = "aliyun"
    zones = (CHEAP, DEAR)
    faults_of_the_api = (
        ("Throttling.User", 400),
        ("InternalError", 500),
        ("ServiceUnavailable", 503),
    )

    def __init__(self, door, secrets, **tables):
        self._door = door
        self._secrets = secrets
        super().__init__(**tables)

    def options(self):
        return {
            "region": "cn-hangzhou",
            "account": "1234567890123456",
            "instance_types": [TYPE],
            "zones": list(self.zones),
            "image_has_cloudspot": True,
        }

    def emulate(self):
        self.ecs = StrictEcs(self.host, secrets=self._secrets, clock=self.unix_time)
        self.ecs.catalogue.prices.update({(TYPE, CHEAP): 1.0, (TYPE, DEAR): 2.0})
        self._door.app = self.ecs
        return self.ecs.faults

    def provider(self):
        provider = AliyunProvider(decode_options(self.spec, "aliyun", AliyunOptions))
        provider._clients = FatefulClients(self)
        provider._provisioner = EcsProvisioner(
            provider.options,
            provider._clients,
            monotonic=lambda: self.world.time,
        )
        return provider

    def zone_of(self, emulated):
        return emulated.metadata["zone-id"]

    def check_leftovers(self):
        assert self.ecs.account.place("cn-hangzhou").deployment_sets == {}
        self.ecs.tick()
        assert self.ecs.machines.alive() == []


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(parallel, "ThreadPoolExecutor", OneAtATime)


@pytest.fixture
def found(ecs_door, cloud):
    """``found(**tables)``: found a town."""
    return lambda **tables: EcsTown(ecs_door, cloud.secrets, **tables)


# --- capacity -------------------------------------------------------------------------------------


def test_the_first_zone_has_no_stock_and_the_next_one_runs_the_job(found):
    town = found()
    town.faults.inject("RunInstances", "OperationDenied.NoStock", status=403, message="sold out")
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes() == [("spot", CHEAP, "capacity"), ("spot", DEAR, "succeeded")]
    closed = [event.text for event in town.events if isinstance(event, LaunchClosed)]
    assert "OperationDenied.NoStock" in closed[0]
    town.check_end()


def test_a_zone_that_ecs_says_is_sold_out_is_not_even_tried(found):
    town = found()
    town.faults.capacity[CHEAP, "*", "*"] = 0
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes() == [("spot", DEAR, "succeeded")]
    town.check_end()


def test_no_zone_has_stock_within_max_wait_and_the_job_fails(found):
    town = found(spot={"policy": "spot", "max_wait": 300.0})
    town.faults.capacity["*", "*", "*"] = 0
    finished = town.run().finished
    assert (finished.outcome, finished.exit_code) == ("failed", 1)
    assert finished.detail == "no spot capacity within spot.max_wait of 300 s"
    assert {outcome for _, _, outcome in town.outcomes()} == {"capacity"}
    assert {zone for _, zone, _ in town.outcomes()} == {CHEAP, DEAR}
    assert town.host.truth.machines == {}
    town.check_end()


def test_without_spot_stock_the_job_goes_by_pay_as_you_go_after_max_wait(found):
    town = found(spot={"max_wait": 120.0})
    town.faults.capacity["*", "*", "spot"] = 0
    assert town.run().finished.outcome == "succeeded"
    markets = [market for market, _, _ in town.outcomes()]
    assert markets == ["spot"] * (len(markets) - 1) + ["on-demand"]
    assert len(markets) > 2
    town.check_end()


def test_a_bid_below_the_market_waits_and_then_goes_by_pay_as_you_go(found):
    town = found(spot={"max_wait": 60.0}, options={"max_price": 0.5})
    assert town.run().finished.outcome == "succeeded"
    assert {(market, outcome) for market, _, outcome in town.outcomes()} == {
        ("spot", "capacity"),
        ("on-demand", "succeeded"),
    }
    assert "SpotPriceLowerThanPublicPrice" in town.history.launches[0].closed.detail
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
    assert "ask for more in the Quota Center" in town.warnings()[0]
    town.check_end()


def test_two_nodes_are_all_or_none(found):
    town = found(nodes={"min": 2, "max": 2})
    town.faults.capacity[CHEAP, "*", "*"] = 1
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes() == [("spot", CHEAP, "capacity"), ("spot", DEAR, "succeeded")]
    assert len(town.host.made) == 2
    town.check_end()


def test_every_third_call_is_throttled_and_the_job_succeeds(found):
    town = found(nodes={"min": 2, "max": 2}, options={"deployment_set": "auto"})
    town.faults.throttle_every = 3
    assert town.run().finished.outcome == "succeeded"
    assert any(call.error == "Throttling.User" for call in town.faults.calls)
    town.faults.throttle_every = 0
    town.check_end()


def test_an_unwell_api_costs_time_and_no_machine(found):
    town = found()
    town.faults.inject("RunInstances", "InternalError", happens=True)
    town.faults.inject("DescribeInstances", "ServiceUnavailable", status=503, times=6)
    assert town.run().finished.outcome == "succeeded"
    assert len(town.host.made) == 1
    town.check_end()


def test_machines_whose_controller_dies_right_after_their_launch_are_released_by_ecs(found):
    town = found(nodes={"min": 2, "max": 2}, limits={"max_runtime": "1h"})

    def meet_fate():
        if "RunInstances" in town.faults.actions():
            raise Killed

    town.meet_fate = meet_fate
    with pytest.raises(Killed):
        town.run()
    machines = list(town.ecs.machines.by_id.values())
    assert len(machines) == 2
    life = 3600.0 + BOOT_LIMIT_SECONDS + DELIVERY_GRACE_SECONDS + RELEASE_GRACE_SECONDS
    due = town.journal[0].at.timestamp() + life
    assert all(due <= one.auto_release_at < due + 60.0 for one in machines)


def test_a_reclaimed_machine_is_followed_by_another(found):
    town = found()

    def reclaim():
        yield 25.0
        machine = next(iter(town.host.truth.machines.values()))
        town.host.truth.end(machine, EndReason.RECLAIMED)

    town.world.start(reclaim())
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes()[-1][2] == "succeeded"
    assert len(town.outcomes()) == 2
    town.check_end()


def test_a_living_machine_that_ecs_does_not_show_for_a_while_is_not_replaced(found):
    town = found()

    def hide():
        yield 25.0
        (machine,) = town.ecs.machines.by_id.values()
        # Neither a listing nor its own id finds it.
        machine.visible_at = town.unix_time() + EcsProvisioner.absence_proves_after_seconds - 60.0

    town.world.start(hide())
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes() == [("spot", CHEAP, "succeeded")]
    assert len(town.host.made) == 1
    town.world.run(until=town.world.time + EcsProvisioner.absence_proves_after_seconds)
    town.settle()
    town.check_end()


def test_the_intents_bytes_are_what_ecs_gets(found):
    town = found()
    town.run()
    intent = town.journal[0]
    (call,) = [call for call in town.faults.calls if call.action == "RunInstances"]
    asked = intent.request.body["run_instances"]
    assert call.parameters["ClientToken"] == intent.token
    assert (len(intent.token) <= 64, intent.token.isascii()) == (True, True)
    sent = base64.b64decode(call.parameters["UserData"]).decode()
    assert sent == intent.request.body["user_data"]
    assert sent.startswith("#!/usr/bin/env bash\n")
    sent = {name: value for name, value in call.parameters.items() if name in asked}
    assert sent == {name: str(asked[name]) for name in sent}
    assert len(sent) == len([value for value in asked.values() if not isinstance(value, (list, dict))])


# --- histories ------------------------------------------------------------------------------------


def test_controllers_that_are_killed_between_any_two_requests_never_have_two_live_attempts(found):
    check_histories([play(found, seed, several={"deployment_set": "auto"}) for seed in range(NUM_HISTORIES)])


@pytest.mark.soak
def test_many_histories_never_have_two_live_attempts(found):
    first = NUM_HISTORIES
    number = int(os.environ.get("CLOUDSPOT_SOAK_ECS", "40"))
    check_histories(
        [play(found, seed, several={"deployment_set": "auto"}) for seed in range(first, first + number)]
    )
