"""The emulated EC2 refuses what the real one refuses, where moto alone would take it."""

import botocore.exceptions
import pytest

from cloudspot.model import EndReason
from cloudspot_aws_sandbox.query import ApiError, parse_parameters

REQUEST = {"ImageId": "ami-0c10d5b07ca5e0001", "InstanceType": "m5.large", "MinCount": 1, "MaxCount": 1}
SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}


@pytest.fixture
def client(cloud):
    return cloud.client()


def refused(call, **arguments):
    with pytest.raises(botocore.exceptions.ClientError) as error:
        call(**arguments)
    return error.value.response["Error"]["Code"]


@pytest.mark.parametrize(
    ("action", "form", "code"),
    [
        ("RunMachines", {}, "InvalidAction"),
        ("RunInstances", {"MinCount": "1", "MaxCount": "1", "Colour": "red"}, "UnknownParameter"),
        ("RunInstances", {"MinCount": "1", "MaxCount": "1", "Placement.Zone": "a"}, "UnknownParameter"),
        ("RunInstances", {"MinCount": "1", "MaxCount": "1", "ImageId.1": "a"}, "UnknownParameter"),
        ("RunInstances", {"MinCount": "1"}, "MissingParameter"),
        ("RunInstances", {"MinCount": "one", "MaxCount": "1"}, "InvalidParameterValue"),
        ("RunInstances", {"MinCount": "1", "MaxCount": "1", "DryRun": "perhaps"}, "InvalidParameterValue"),
        (
            "RunInstances",
            {"MinCount": "1", "MaxCount": "1", "InstanceMarketOptions.MarketType": "bazaar"},
            "InvalidParameterValue",
        ),
    ],
)
def test_a_request_is_read_by_the_services_own_model(action, form, code):
    with pytest.raises(ApiError) as error:
        parse_parameters(action, form)
    assert error.value.code == code


def test_parameters_are_named_and_nested_as_the_sdk_has_them():
    form = {
        "Action": "RunInstances",
        "Version": "2016-11-15",
        "MinCount": "1",
        "MaxCount": "2",
        "ClientToken": "t",
        "NetworkInterface.1.DeviceIndex": "0",
        "NetworkInterface.1.SecurityGroupId.1": "sg-1",
        "NetworkInterface.1.DeleteOnTermination": "true",
        "TagSpecification.1.ResourceType": "instance",
        "TagSpecification.1.Tag.1.Key": "a",
        "TagSpecification.1.Tag.1.Value": "b",
    }
    assert parse_parameters("RunInstances", form) == {
        "MinCount": 1,
        "MaxCount": 2,
        "ClientToken": "t",
        "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": ["sg-1"], "DeleteOnTermination": True}],
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}],
    }


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"ImageId": "ami-1"}, "InvalidAMIID.Malformed"),
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"ImageId": "ami-0c10d5b07ca5e0003"}, "InvalidParameterValue"),
        ({"InstanceType": "z9.huge"}, "InvalidParameterValue"),
        ({"InstanceType": "g5.xlarge", "Placement": {"AvailabilityZone": "us-east-1e"}}, "Unsupported"),
        ({"Placement": {"AvailabilityZone": "us-east-1z"}}, "InvalidParameterValue"),
        ({"Placement": {"GroupName": "nobodys"}}, "InvalidPlacementGroup.Unknown"),
        ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound"),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound"),
        ({"KeyName": "nobodys"}, "InvalidKeyPair.NotFound"),
        ({"IamInstanceProfile": {"Name": "nobodys"}}, "InvalidParameterValue"),
        ({"UserData": "x" * 16385}, "InvalidParameterValue"),
        ({"MinCount": 2}, "InvalidParameterValue"),
        ({"ClientToken": "t" * 65}, "InvalidParameterValue"),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 14}}]},
            "InvalidBlockDeviceMapping",
        ),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sdb", "Ebs": {"VolumeType": "io2"}}]},
            "MissingParameter",
        ),
        (
            {"TagSpecifications": [{"ResourceType": "spot-instances-request", "Tags": []}]},
            "InvalidParameterCombination",
        ),
        ({"TagSpecifications": [{"ResourceType": "vpc", "Tags": []}]}, "InvalidParameterValue"),
        (
            {
                "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "a/b", "Value": "c"}]}],
                "MetadataOptions": {"InstanceMetadataTags": "enabled"},
            },
            "InvalidParameterValue",
        ),
        (
            {"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "aws:a", "Value": "c"}]}]},
            "InvalidParameterValue",
        ),
        (
            {
                "InstanceMarketOptions": {
                    "MarketType": "spot",
                    "SpotOptions": {
                        "SpotInstanceType": "one-time",
                        "InstanceInterruptionBehavior": "stop",
                    },
                }
            },
            "InvalidParameterCombination",
        ),
    ],
)
def test_a_launch_that_ec2_refuses_is_refused(cloud, client, change, code):
    assert refused(client.run_instances, **{**REQUEST, **change}) == code
    assert cloud.host.machines == {}


def test_a_dry_run_is_checked_and_launches_nothing(cloud, client):
    assert refused(client.run_instances, **REQUEST, DryRun=True) == "DryRunOperation"
    assert (
        refused(client.run_instances, **{**REQUEST, "KeyName": "no"}, DryRun=True)
        == "InvalidKeyPair.NotFound"
    )
    assert cloud.host.machines == {}


def test_a_token_counts_in_its_zone(cloud, client):
    def launch(zone):
        answer = client.run_instances(**REQUEST, Placement={"AvailabilityZone": zone}, ClientToken="t")
        return answer["Instances"][0]["InstanceId"]

    assert launch("us-east-1a") == launch("us-east-1a") != launch("us-east-1b")
    assert len(cloud.alive) == 2


def test_a_spot_machine_has_a_request_that_ends_with_it(cloud, client):
    (instance,) = client.run_instances(**REQUEST, **SPOT)["Instances"]
    assert instance["InstanceLifecycle"] == "spot"
    request_id = instance["SpotInstanceRequestId"]

    def request():
        (found,) = client.describe_spot_instance_requests(SpotInstanceRequestIds=[request_id])[
            "SpotInstanceRequests"
        ]
        return found["State"], found["InstanceId"]

    assert request() == ("active", instance["InstanceId"])
    cloud.host.end(instance["InstanceId"], EndReason.RECLAIMED)
    assert request() == ("closed", instance["InstanceId"])
    (reservation,) = client.describe_instances()["Reservations"]
    assert reservation["Instances"][0]["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_every_machine_of_a_launch_has_the_profile(client):
    arguments = {**REQUEST, "MinCount": 3, "MaxCount": 3, "IamInstanceProfile": {"Name": "cloudspot-node"}}
    found = client.run_instances(**arguments)["Instances"]
    assert {one["IamInstanceProfile"]["Arn"].rpartition("/")[2] for one in found} == {"cloudspot-node"}
    assert [one["AmiLaunchIndex"] for one in found] == [0, 1, 2]


def test_machines_are_shutting_down_before_they_are_terminated(cloud, client):
    (instance,) = client.run_instances(**REQUEST)["Instances"]
    cloud.host.ends_at_once = False
    (answer,) = client.terminate_instances(InstanceIds=[instance["InstanceId"]])["TerminatingInstances"]
    assert (answer["PreviousState"]["Name"], answer["CurrentState"]["Name"]) == ("running", "shutting-down")


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        (["i-1"], "InvalidInstanceID.Malformed"),
        (["i-0123456789abcdef0"], "InvalidInstanceID.NotFound"),
        (["i-0123456789abcdef0", "i-0123456789abcdef1"], "InvalidInstanceID.NotFound"),
    ],
)
def test_unknown_ids_fail_the_whole_call(cloud, client, ids, code):
    (instance,) = client.run_instances(**REQUEST)["Instances"]
    assert refused(client.terminate_instances, InstanceIds=[instance["InstanceId"], *ids]) == code
    assert refused(client.create_tags, Resources=ids, Tags=[{"Key": "a", "Value": "b"}]) == code
    assert cloud.alive == [instance["InstanceId"]]


def test_a_cluster_group_stays_in_one_zone_and_holds_its_machines(cloud, client):
    client.create_placement_group(GroupName="g", Strategy="cluster")
    assert refused(client.create_placement_group, GroupName="g", Strategy="cluster") == (
        "InvalidPlacementGroup.Duplicate"
    )
    place = {"GroupName": "g", "AvailabilityZone": "us-east-1a"}
    (instance,) = client.run_instances(**REQUEST, Placement=place)["Instances"]
    elsewhere = {**place, "AvailabilityZone": "us-east-1b"}
    assert refused(client.run_instances, **REQUEST, Placement=elsewhere) == "InvalidParameterValue"
    burstable = {**REQUEST, "InstanceType": "t3.large"}
    assert refused(client.run_instances, **burstable, Placement=place) == "InvalidParameterCombination"
    assert refused(client.delete_placement_group, GroupName="g") == "InvalidPlacementGroup.InUse"
    cloud.host.end(instance["InstanceId"], EndReason.SELF)
    client.delete_placement_group(GroupName="g")
    assert refused(client.delete_placement_group, GroupName="g") == "InvalidPlacementGroup.Unknown"


@pytest.mark.full
def test_types_come_in_pages_of_a_hundred(client):
    assert len(client.describe_instance_types()["InstanceTypes"]) == 100
    pages = list(client.get_paginator("describe_instance_types").paginate())
    assert len(pages) > 5
    assert refused(client.describe_instance_types, InstanceTypes=["z9.huge"]) == "InvalidInstanceType"


def test_what_the_emulation_lacks_is_an_error_and_no_empty_answer(client):
    code = refused(client.describe_instance_types, Filters=[{"Name": "hypervisor", "Values": ["nitro"]}])
    assert code == "SandboxNotImplemented"


def test_all_calls_are_recorded_with_what_they_came_to(cloud, client):
    refused(client.run_instances, **{**REQUEST, "KeyName": "nobodys"})
    client.describe_instances()
    assert [(call.service, call.action, call.region, call.error) for call in cloud.faults.calls] == [
        ("ec2", "RunInstances", "us-east-1", "InvalidKeyPair.NotFound"),
        ("ec2", "DescribeInstances", "us-east-1", None),
    ]
    assert cloud.faults.calls[0].parameters["KeyName"] == "nobodys"


def test_a_stopped_machine_stays_until_it_is_terminated_and_one_of_a_spot_request_cannot_be_stopped(client):
    (stays, spot) = (
        client.run_instances(**REQUEST, **more)["Instances"][0]["InstanceId"] for more in ({}, SPOT)
    )
    assert refused(client.stop_instances, InstanceIds=[stays, spot]) == "UnsupportedOperation"
    client.stop_instances(InstanceIds=[stays])
    states = {"Filters": [{"Name": "instance-state-name", "Values": ["stopped"]}]}
    (found,) = client.describe_instances(**states)["Reservations"]
    assert found["Instances"][0]["InstanceId"] == stays
    client.terminate_instances(InstanceIds=[stays])
    assert client.describe_instances(**states)["Reservations"] == []


def test_a_volume_is_deleted_only_if_no_machine_has_it(client):
    client.run_instances(**REQUEST)
    (volume,) = client.describe_volumes()["Volumes"]
    assert refused(client.delete_volume, VolumeId=volume["VolumeId"]) == "VolumeInUse"
