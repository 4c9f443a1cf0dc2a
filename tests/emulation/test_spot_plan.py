"""The plan of an emulated spot market: what there is, and what it costs, by time and zone."""

import pytest

from cloudspot.emulation.api_faults import Faults
from cloudspot.emulation.cloud import EmulatedCloud
from cloudspot.emulation.sandbox_run import parse_market
from cloudspot.emulation.spot_plan import Spell, SpotPlan
from cloudspot.errors import SpecError
from cloudspot_aws_sandbox.cloud import EmulatedAws
from cloudspot_gcp_sandbox.cloud import EmulatedGcp


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def plan_of(clock, *texts, cloud=EmulatedAws):
    return SpotPlan(parse_market(texts, cloud).spells, monotonic=clock)


def test_time_counts_from_the_first_spot_machine(clock):
    plan = plan_of(clock, "after=30s,lasts=1m,capacity=0")
    assert plan.capacity("us-east-1a") is None
    clock.now += 45.0
    assert plan.capacity("us-east-1a") is None
    plan.begin()
    clock.now += 29.0
    plan.begin()
    assert plan.capacity("us-east-1a") is None
    clock.now += 1.0
    assert plan.capacity("us-east-1a") == 0
    clock.now += 60.0
    assert plan.capacity("us-east-1a") is None


def test_a_spell_is_about_the_zones_of_its_pattern_and_the_scarcest_counts(clock):
    plan = plan_of(clock, "zone=us-east-1[ab],capacity=2", "zone=us-east-1a,capacity=1")
    plan.begin()
    assert [plan.capacity(f"us-east-1{zone}") for zone in "abc"] == [1, 2, None]


def test_prices_are_multiplied_and_the_last_spell_counts(clock):
    plan = plan_of(clock, "price=2", "after=10s,lasts=10s,price=0.5")
    assert plan.price_factor("us-east-1a") == 1.0
    plan.begin()
    assert plan.price_factor("us-east-1a") == 2.0
    clock.now += 10.0
    assert plan.price_factor("us-east-1a") == 0.5
    clock.now += 10.0
    assert plan.price_factor("us-east-1a") == 2.0


def test_only_spot_machines_follow_it_and_a_lesser_capacity_of_a_test_counts(clock):
    faults = Faults(spot_plan=SpotPlan([Spell(capacity=3)], monotonic=clock))
    faults.spot_plan.begin()
    assert faults.capacity_of("a", "m5.large", "spot") == 3
    assert faults.capacity_of("a", "m5.large", "on-demand") is None
    faults.capacity["a", "*", "*"] = 1
    assert faults.capacity_of("a", "m5.large", "spot") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("capacity", '"capacity" is not FIELD=VALUE; write after=30s,lasts=1m,capacity=0'),
        ("after=30s", "the spell has neither capacity nor price"),
        ("capacity=-1", "capacity: "),
        ("price=0", "price: "),
        ("capacity=0,zones=a", "zones"),
        ("after=soon,capacity=0", "after: expected a duration"),
    ],
)
def test_a_value_that_is_wrong_is_told_before_anything_starts(text, message):
    with pytest.raises(SpecError) as error:
        parse_market([text], EmulatedAws)
    assert str(error.value).startswith(f"--market {text}: ")
    assert message in str(error.value)


def test_what_a_cloud_cannot_follow_is_refused():
    assert parse_market(["capacity=0"], EmulatedGcp).spells == (Spell(capacity=0),)
    with pytest.raises(
        SpecError, match=r"^--market: price: Google's spot prices do not change within a day$"
    ):
        parse_market(["price=2"], EmulatedGcp)

    class Plain(EmulatedCloud):
        name = "plain"
        start = environment = machine_environment = stop = None

    with pytest.raises(
        SpecError, match=r"^--market: the emulated plain does not support a plan for its spot"
    ):
        parse_market(["capacity=0"], Plain)
