"""Real controllers on the strict ECS over HTTP, with the plugin between them; the nodes are simulated."""

import base64
from types import MappingProxyType

import pytest
from support.clouds.controllertests import ControllerTests, use_one_thread
from support.worlds.cloud_histories import Killed, Town
from support.worlds.simnodes import Script

from cloudspot.controller.decide import BOOT_LIMIT_SECONDS
from cloudspot.controller.loop import PRICE_SECONDS
from cloudspot.jobfile.spec import decode_options
from cloudspot.jobstore.nodes.delivering import DELIVERY_GRACE_SECONDS
from cloudspot.story.outcomes import launch_end
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.ecs import EcsProvisioner
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.provider import AliyunProvider
from cloudspot_aliyun.request import RELEASE_GRACE_SECONDS
from cloudspot_aliyun_sandbox.strict_ecs import StrictEcs

pytestmark = pytest.mark.full


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
    bill_seconds = 105.0
    """ECS tells a machine's start to the minute."""
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


@pytest.fixture
def found(ecs_door, cloud, monkeypatch):
    """``found(**tables)``: found a town."""
    use_one_thread(monkeypatch)
    return lambda **tables: EcsTown(ecs_door, cloud.secrets, **tables)


class TestControllersOnEcs(ControllerTests):
    first, second = CHEAP, DEAR
    zones_of_first = (CHEAP,)
    launch_call, list_call = "RunInstances", "DescribeInstances"
    throttled = "Throttling.User"
    several = MappingProxyType({"deployment_set": "auto"})
    no_capacity = "OperationDenied.NoStock"
    quota_words = ("ask for more in the Quota Center",)
    is_reclaim_told = False
    num_histories = 8
    soak_variable = "CLOUDSPOT_SOAK_ECS"

    def sell_out_first(self, town):
        town.faults.inject("RunInstances", "OperationDenied.NoStock", status=403, message="sold out")


def test_a_zone_that_ecs_says_is_sold_out_is_not_even_tried(found):
    town = found()
    town.faults.capacity[CHEAP, "*", "*"] = 0
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes() == [("spot", DEAR, "succeeded")]
    town.check_end()


def test_a_bid_below_the_market_waits_and_then_goes_by_pay_as_you_go(found):
    town = found(spot={"max_wait": 60.0}, options={"max_price": 0.5})
    assert town.run().finished.outcome == "succeeded"
    assert {(market, outcome) for market, _, outcome in town.outcomes()} == {
        ("spot", "capacity"),
        ("on-demand", "succeeded"),
    }
    assert "SpotPriceLowerThanPublicPrice" in launch_end(town.history.launches[0]).detail
    town.check_end()


def test_the_bill_follows_the_market_while_a_machine_runs(found):
    town = found(script=Script(doubt=0.0, num_steps=200))

    def rise():
        yield 120.0
        town.ecs.catalogue.prices[TYPE, CHEAP] = 1.5

    town.world.start(rise())
    assert town.run().finished.outcome == "succeeded"
    (launch,) = town.history.launches
    (change,) = launch.prices
    assert (launch.intent.offer.price_per_hour, change.price_per_hour) == (1.14, 1.64)
    assert (change.at - launch.intent.at).total_seconds() >= PRICE_SECONDS
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
