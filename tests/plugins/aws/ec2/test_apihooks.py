"""What an observer hears of EC2's answers, by the real SDK; and what the emulated EC2 does otherwise on request."""

import botocore.exceptions
import pytest
from support.worlds.groups import group_of

from cloudspot.errors import TransientError
from cloudspot.model import EndReason
from cloudspot.plugin import apirecording
from cloudspot.testing import plaincalls
from cloudspot_aws.clients import AwsClients
from cloudspot_prove.clouds import cloud_of
from cloudspot_prove.masking import Mask

pytestmark = pytest.mark.full


@pytest.fixture
def told(monkeypatch):
    heard = []
    monkeypatch.setattr(apirecording, "_observers", [heard.append])
    return heard


def test_an_answer_and_a_refusal_are_told_with_what_was_asked(cloud, told):
    ec2 = AwsClients(region="us-east-1").client("ec2")
    ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])
    with pytest.raises(botocore.exceptions.ClientError):
        ec2.describe_images(ImageIds=["ami-00000000000000000"])
    answered, refused = told
    assert (answered.service, answered.action, answered.status, answered.code) == (
        "ec2",
        "DescribeSubnets",
        200,
        "",
    )
    assert answered.request == {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
    assert len(answered.answer["Subnets"]) > 1
    assert (refused.action, refused.status, refused.code) == ("DescribeImages", 400, "InvalidAMIID.NotFound")


def test_clients_tell_nothing_where_nobody_observes(cloud, monkeypatch):
    monkeypatch.setattr(apirecording, "_observers", [])
    client = AwsClients(region="us-east-1").client("ec2")
    heard = []
    monkeypatch.setattr(apirecording, "_observers", [heard.append])
    client.describe_subnets()
    assert heard == []


def test_what_is_told_of_a_real_answer_is_masked_by_the_sdks_own_model(cloud, told):
    AwsClients(region="us-east-1").client("ec2").describe_subnets()
    masked = Mask(b"k" * 32, cloud_of("aws").allowed()).tree(told[0].answer, "ec2")
    first = masked["Subnets"][0]
    assert first["AvailabilityZone"].startswith("us-east-1")
    assert first["SubnetId"].startswith("~")
    assert first["OwnerId"].startswith("~")
    assert first["CidrBlock"].startswith("~")
    assert "123456789012" not in str(masked)


def launch(cloud, *, num_nodes=1, token="t"):
    provisioner = cloud.provider(instance_types=["m6a.large"]).provisioner()
    group = group_of(cloud.offer(provisioner), num_nodes=num_nodes)
    return plaincalls.create(provisioner, provisioner.render(group), token=token)


def test_a_contrary_account_gives_all_machines_one_index(cloud):
    cloud.faults.contrary = frozenset({"same-launch-index"})
    launch(cloud, num_nodes=2)
    found = cloud.client().describe_instances()["Reservations"]
    assert [one["AmiLaunchIndex"] for part in found for one in part["Instances"]] == [0, 0]


def test_a_contrary_account_forgets_a_token(cloud):
    cloud.faults.contrary = frozenset({"token-forgotten"})
    (first,) = launch(cloud)
    cloud.now += 9
    assert [one.id for one in launch(cloud)] == [first.id]
    cloud.now += 2
    (second,) = launch(cloud)
    assert second.id != first.id


def test_a_contrary_account_does_not_know_the_profile_for_a_minute(cloud):
    cloud.faults.contrary = frozenset({"profile-unknown"})
    with pytest.raises(TransientError, match="may be too new to be known"):
        launch(cloud)
    cloud.now += 61
    assert len(launch(cloud)) == 1


def test_a_contrary_account_stops_a_machine_that_shuts_itself_down_until_it_is_terminated(cloud):
    cloud.faults.contrary = frozenset({"shutdown-stops"})
    (machine,) = launch(cloud)
    cloud.host.end(machine.id, EndReason.SELF)

    def state():
        found = cloud.client().describe_instances()["Reservations"][0]["Instances"][0]
        return found["State"]["Name"]

    assert state() == "stopped"
    cloud.client().terminate_instances(InstanceIds=[machine.id])
    assert state() == "terminated"


def test_a_contrary_price_list_has_no_volumes(cloud):
    cloud.faults.contrary = frozenset({"disk-without-price"})
    provisioner = cloud.provider(instance_types=["m6a.large"]).provisioner()
    assert "disk not counted" in cloud.offer(provisioner).price_text
