"""What an observer hears of ECS's answers; and what the emulated ECS does otherwise on request."""

import pytest
from aliyunsdkcore.acs_exception.exceptions import ServerException
from support.worlds.groups import group_of

from cloudspot.plugin import apirecording
from cloudspot.testing import plaincalls
from cloudspot_aliyun.apihooks import nested
from cloudspot_prove.clouds import cloud_of
from cloudspot_prove.masking import Mask

pytestmark = pytest.mark.full


def launch(cloud, *, num_nodes=1, token="t"):
    provisioner = cloud.provider(instance_types=["ecs.c7.large"]).provisioner()
    group = group_of(cloud.offer(provisioner), num_nodes=num_nodes)
    return plaincalls.create(provisioner, provisioner.render(group), token=token)


def test_an_answer_and_a_refusal_are_told_and_masked(cloud, monkeypatch):
    heard = []
    monkeypatch.setattr(apirecording, "_observers", [heard.append])
    cloud.ask("DescribeSecurityGroups", Tag=[{"Key": "cloudspot"}])
    with pytest.raises(ServerException):
        cloud.ask("DeleteSecurityGroup", SecurityGroupId="sg-none")
    answered, refused = heard
    assert (answered.service, answered.action, answered.code) == ("ecs", "DescribeSecurityGroups", "")
    assert answered.request["Tag"] == [{"Key": "cloudspot"}]
    assert "SecurityGroups" in answered.answer
    assert refused.code.startswith("InvalidSecurityGroupId")
    assert refused.status >= 400
    mask = Mask(b"k" * 32, cloud_of("aliyun").allowed())
    shown = str(mask.tree(answered.answer, "ecs")) + str(mask.tree(refused.request, "ecs"))
    assert "sg-none" not in shown


def test_flat_parameters_are_told_as_lists_and_tables():
    flat = {"A": 1, "Tag.1.Key": "k", "Tag.2.Key": "l", "SystemDisk.Size": 40}
    assert nested(flat) == {"A": 1, "Tag": [{"Key": "k"}, {"Key": "l"}], "SystemDisk": {"Size": 40}}


def test_a_contrary_account_forgets_a_token(cloud):
    cloud.faults.contrary = frozenset({"token-forgotten"})
    (first,) = launch(cloud)
    cloud.now += 11
    (second,) = launch(cloud)
    assert second.id != first.id


def test_a_contrary_account_leaves_gaps_in_the_host_names(cloud):
    cloud.faults.contrary = frozenset({"host-names-with-gaps"})
    made = launch(cloud, num_nodes=2)
    names = [one["HostName"] for one in cloud.describe(*(one.id for one in made)).values()]
    assert sorted(name.rpartition("-")[2] for name in names) == ["0", "2"]
