"""``cloudspot preempt`` on Compute Engine: a simulated preemption, or it is said why not."""

import pytest
from support.worlds.groups import group_of

from cloudspot.errors import AuthError, CloudspotError
from cloudspot.model import EndReason
from cloudspot.testing import plaincalls


@pytest.fixture
def drill(cloud):
    """``drill("spot")``: a provider and a machine of that market."""

    def make(market, **options):
        provider = cloud.provider(**options)
        provisioner = provider.provisioner()
        request = provisioner.render(group_of(cloud.offer(provisioner, market=market)))
        (machine,) = plaincalls.create(provisioner, request, token="token")
        cloud.faults.calls.clear()
        return provider, machine.id

    return make


@pytest.mark.parametrize(
    ("options", "notice_seconds", "total"),
    [
        ({}, None, 150.0),
        ({}, 120.0, 150.0),
        ({"preemption_notice": 0.0}, None, 30.0),
        ({"preemption_notice": 0.0}, 30.0, 30.0),
    ],
)
def test_a_spot_machine_is_taken_with_the_notice_that_it_was_launched_with(
    cloud, drill, options, notice_seconds, total
):
    provider, machine = drill("spot", **options)
    plaincalls.preempt(provider, machine, notice_seconds=notice_seconds)
    assert cloud.host.reclaimed == [(machine.split("/")[1], total)]
    assert cloud.faults.actions() == [
        "compute.instances.get",
        "compute.instances.simulateMaintenanceEvent",
    ]
    (found,) = plaincalls.instances(provider.provisioner())
    assert found.end_reason is EndReason.RECLAIMED


@pytest.mark.parametrize("notice_seconds", [0.0, 60.0])
def test_compute_engine_gives_no_other_notice(cloud, drill, notice_seconds):
    provider, machine = drill("spot")
    with pytest.raises(CloudspotError, match="always reclaims this machine 120 s after its notice"):
        plaincalls.preempt(provider, machine, notice_seconds=notice_seconds)
    assert cloud.host.reclaimed == []


def test_a_machine_on_demand_is_never_reclaimed(cloud, drill):
    provider, machine = drill("on-demand")
    with pytest.raises(
        CloudspotError, match=r"is not a running spot machine, .* instances delete cs-digits-1-"
    ):
        plaincalls.preempt(provider, machine)
    assert cloud.host.reclaimed == []


def test_a_machine_that_is_gone_is_not_there(cloud, drill):
    provider, machine = drill("spot")
    plaincalls.terminate(provider.provisioner(), [machine])
    with pytest.raises(CloudspotError, match="there is no machine us-central1-a/cs-digits-1-"):
        plaincalls.preempt(provider, machine)


def test_what_is_no_machine_of_ours_is_not_touched(cloud, drill):
    provider, _ = drill("spot")
    with pytest.raises(
        CloudspotError, match="web-1 is not one of cloudspot's machines; expected ZONE/NAME/NUMBER"
    ):
        plaincalls.preempt(provider, "web-1")
    assert cloud.faults.calls == []


def test_the_right_that_is_missing_is_named(cloud, drill):
    provider, machine = drill("spot")
    cloud.faults.denied.add("compute.instances.simulateMaintenanceEvent")
    with pytest.raises(
        AuthError, match=r"Required 'compute\.instances\.simulateMaintenanceEvent' permission"
    ):
        plaincalls.preempt(provider, machine)
