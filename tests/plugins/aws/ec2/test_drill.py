"""``cloudspot preempt`` on EC2: the Fault Injection Service takes a spot machine, or it is said why not."""

import pytest
from support.worlds.groups import group_of

from cloudspot.errors import AuthError, CloudspotError
from cloudspot.testing import plaincalls


@pytest.fixture
def drill(cloud):
    """``drill("spot")``: a provider and a machine of that market."""

    def make(market, *, has_role=True):
        if has_role:
            cloud.client("iam").create_role(RoleName="cloudspot-drill", AssumeRolePolicyDocument="{}")
        provider = cloud.provider(instance_types=("g5.xlarge",))
        provisioner = provider.provisioner()
        request = provisioner.render(group_of(cloud.offer(provisioner, market=market)))
        (machine,) = plaincalls.create(provisioner, request, token="token")
        cloud.faults.calls.clear()
        return provider, machine.id

    return make


@pytest.mark.parametrize("notice_seconds", [None, 120.0])
def test_a_spot_machine_gets_its_notice_of_two_minutes_and_nothing_stays(cloud, drill, notice_seconds):
    provider, machine = drill("spot")
    plaincalls.preempt(provider, machine, notice_seconds=notice_seconds)
    assert cloud.host.reclaimed == [(machine, 120.0)]
    assert cloud.ec2._experiments.templates == {}
    assert cloud.faults.actions()[1:] == [
        "CreateExperimentTemplate",
        "StartExperiment",
        "DeleteExperimentTemplate",
    ]


@pytest.mark.parametrize("notice_seconds", [0.0, 30.0])
def test_ec2_gives_no_other_notice(cloud, drill, notice_seconds):
    provider, machine = drill("spot")
    with pytest.raises(CloudspotError, match="120 s after its notice"):
        plaincalls.preempt(provider, machine, notice_seconds=notice_seconds)
    assert cloud.faults.calls == []


def test_a_machine_on_demand_is_never_reclaimed(cloud, drill):
    provider, machine = drill("on-demand")
    with pytest.raises(CloudspotError, match="is not a running spot machine"):
        plaincalls.preempt(provider, machine)
    assert cloud.host.reclaimed == []


def test_a_machine_that_is_gone_is_none_that_runs(cloud, drill):
    provider, machine = drill("spot")
    plaincalls.terminate(provider.provisioner(), [machine])
    with pytest.raises(CloudspotError, match="is not a running spot machine"):
        plaincalls.preempt(provider, machine)


def test_without_its_role_the_drill_says_which_is_missing(cloud, drill):
    provider, machine = drill("spot", has_role=False)
    with pytest.raises(CloudspotError, match=r"as role cloudspot-drill.*Unable to assume role"):
        plaincalls.preempt(provider, machine)


def test_a_template_goes_also_when_the_drill_is_refused(cloud, drill):
    provider, machine = drill("spot")
    cloud.faults.denied.add("fis:StartExperiment")
    with pytest.raises(AuthError, match="fis:StartExperiment"):
        plaincalls.preempt(provider, machine)
    assert cloud.ec2._experiments.templates == {}
    assert cloud.host.reclaimed == []
