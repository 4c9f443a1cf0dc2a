import json
from types import MappingProxyType

import botocore.exceptions
import pytest
from support.clouds.emulated_account import Call, EmulatedAccount, Fault
from support.clouds.imagetests import EmulatedImageTests
from support.clouds.provisionertests import (
    SCRIPT,
    AccountTests,
    CloudProvisionerTests,
    CompressedScriptTests,
    LaunchKit,
    RequestTokenTests,
)

from cloudspot.errors import (
    AuthError,
    CapacityError,
    CloudspotError,
    ProvisionError,
    QuotaError,
    TransientError,
)
from cloudspot.model import EndReason, InstanceState, Market
from cloudspot.plugin import cloudprovider
from cloudspot.testing import plaincalls
from cloudspot.testing.account import Sold
from cloudspot.testing.imagekit import KEY
from cloudspot.testing.offerkit import OfferTests
from cloudspot.testing.provisionerkit import ProvisionerTests
from cloudspot.testing.purchasekit import PurchaseTests
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.provider import AwsProvider
from cloudspot_aws_sandbox import prices
from cloudspot_aws_sandbox.images import BARE_IMAGE_ID, IMAGE_ID
from cloudspot_aws_sandbox.schedules import TARGET

ROLE = "arn:aws:iam::123456789012:role/cloudspot-limit"
STORE = "s3://bucket/prefix"


class Kit(LaunchKit):
    defaults = MappingProxyType({"instance_types": ("g5.xlarge",)})
    store = STORE
    where = MappingProxyType({"zone": "us-east-1a"})


@pytest.fixture
def kit(cloud):
    return Kit(cloud)


class Ec2Account(EmulatedAccount):
    options = MappingProxyType({"instance_types": ("g5.xlarge",)})
    calls = MappingProxyType({Call.CREATE: "RunInstances", Call.LIST: "DescribeInstances"})
    errors = MappingProxyType(
        {
            Fault.UNWELL: ("InternalError", 500),
            Fault.THROTTLED: ("RequestLimitExceeded", 503),
            Fault.DENIED: ("UnauthorizedOperation", 403),
            Fault.QUOTA: ("MaxSpotInstanceCountExceeded", 400),
            Fault.REFUSED: ("InvalidAMIID.NotFound", 400),
        }
    )
    unknown_ids = ("i-0123456789abcdef0", "machine-1")


class PlainEc2Account(Ec2Account):
    """Sells two types without accelerators, in all zones."""

    options = MappingProxyType({"instance_types": ("m5.large", "m5.2xlarge")})

    def sold(self):
        from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

        found = []
        for offering in INSTANCE_TYPE_OFFERINGS["availability-zone"]["us-east-1"]:
            name, zone = offering["InstanceType"], offering["Location"]
            if name not in self.options["instance_types"]:
                continue
            kind = INSTANCE_TYPES[name]
            of_markets = {
                Market.SPOT: prices.spot_price(kind, zone),
                Market.ON_DEMAND: prices.on_demand_price(kind),
            }
            found += [
                Sold(
                    instance_type=name,
                    zone=zone,
                    market=market,
                    price_per_hour=price,
                    cpus=kind["VCpuInfo"]["DefaultVCpus"],
                    memory_bytes=kind["MemoryInfo"]["SizeInMiB"] << 20,
                )
                for market, price in of_markets.items()
            ]
        return found

    def facts(self, instance_id):
        client = self.cloud.client()
        (reservation,) = client.describe_instances(InstanceIds=[instance_id])["Reservations"]
        (found,) = reservation["Instances"]
        attached = [{"Name": "attachment.instance-id", "Values": [instance_id]}]
        (volume,) = client.describe_volumes(Filters=attached)["Volumes"]
        return {
            "instance_type": found["InstanceType"],
            "zone": found["Placement"]["AvailabilityZone"],
            "disk_bytes": volume["Size"] << 30,
            "labels": {tag["Key"]: tag["Value"] for tag in found["Tags"]},
        }


class TestEc2Kit(ProvisionerTests, PurchaseTests, OfferTests):
    deviations = MappingProxyType(
        {
            "test_all_that_the_cloud_sells_is_offered_that_has_the_resources_and_nothing_else[accelerators]": (
                "types that a job names are offered, whatever they have; see test_sold.py"
            ),
            "test_a_machine_bears_the_labels_of_its_job": "labels are carried on Kubernetes alone",
            "test_a_machine_ends_when_its_time_is_over_whoever_has_forgotten_it": "EC2 has no such limit",
        }
    )

    @pytest.fixture
    def account(self, cloud):
        return PlainEc2Account(cloud)


class TestEc2Images(EmulatedImageTests):
    create, remove = "CreateImage", "DeregisterImage"
    create_right, remove_right = "ec2:CreateImage", "ec2:DeregisterImage"
    other_image = BARE_IMAGE_ID

    @pytest.fixture
    def account(self, cloud):
        return Ec2Account(cloud)

    def test_only_an_image_of_cloudspots_making_is_removed(self, account):
        with pytest.raises(CloudspotError, match="was not made by cloudspot"):
            account.provider().image_host().remove(IMAGE_ID)

    @pytest.mark.full
    def test_a_snapshot_that_stays_is_told(self, account):
        made = self._make(account)
        account.cloud.faults.denied.add("ec2:DeleteSnapshot")
        with pytest.raises(
            CloudspotError, match=r"but its snapshot snap-\w+ is not, and is billed: missing-permissions"
        ):
            account.provider().image_host().remove(made.id)
        assert account.provider().image_host().find(KEY) is None

    @pytest.mark.full
    def test_the_snapshot_goes_with_the_image(self, account):
        made = self._make(account)
        client = account.cloud.client()
        (one,) = client.describe_images(ImageIds=[made.id])["Images"]
        snapshot = one["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
        (kept,) = client.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"]
        assert {tag["Key"]: tag["Value"] for tag in kept["Tags"]}["cloudspot-setup"] == KEY
        account.provider().image_host().remove(made.id)
        filters = [{"Name": "tag-key", "Values": ["cloudspot-setup"]}]
        assert client.describe_snapshots(Filters=filters)["Snapshots"] == []


class TestEc2Promises(CloudProvisionerTests, RequestTokenTests, CompressedScriptTests, AccountTests):
    name = "AWS"
    service = "EC2"
    console_right = "ec2:GetConsoleOutput"
    launch_call, list_call = "RunInstances", "DescribeInstances"
    throttled = ("RequestLimitExceeded", 503)
    zone, type = "us-east-1a", "g5.xlarge"
    image_gib = 15
    max_script_bytes = 16384
    account = "123456789012"
    no_capacity = r"launching 2 spot g5.xlarge in us-east-1a: .*sufficient g5"
    strangers = ("i-0123456789abcdef0", "i-0123456789abcdef1", "machine-1")
    not_visible = r"InvalidInstanceID\.NotFound"
    unreached = r"no answer from 127\.0\.0\.1:1"
    going_reason = EndReason.TERMINATED

    @pytest.fixture
    def door(self, ec2_server):
        return ec2_server

    def give_role(self, body, name):
        body["run_instances"]["IamInstanceProfile"] = {"Name": name}

    def disk_gib(self, request):
        return request.body["run_instances"]["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]

    def launch_stranger(self, kit):
        kit.cloud.client().run_instances(
            ImageId="ami-0c10d5b07ca5e0001", InstanceType="m5.large", MinCount=1, MaxCount=1
        )

    def tamper(self, kit, instance):
        kit.cloud.client().create_tags(
            Resources=[instance.id], Tags=[{"Key": "cloudspot-launch", "Value": "first"}]
        )

    def without_api(self, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        return AwsProvider(AwsOptions(region="us-east-1")).provisioner()

    def check_facts(self, kit, rank, instance, machine):
        facts = machine.metadata
        assert facts["ami-launch-index"] == rank
        assert facts["instance-profile"] == "cloudspot-node"
        assert (facts["http-tokens"], facts["instance-metadata-tags"]) == ("required", "enabled")
        assert facts["availability-zone"] == "us-east-1a"

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            ("InsufficientHostCapacity", CapacityError),
            ("UnfulfillableCapacity", CapacityError),
            ("InsufficientFreeAddressesInSubnet", CapacityError),
            ("InstanceLimitExceeded", QuotaError),
            ("VolumeLimitExceeded", QuotaError),
            ("PendingVerification", QuotaError),
            ("Unsupported", ProvisionError),
            ("InvalidParameterCombination", ProvisionError),
            ("InternalError", TransientError),
            ("Unavailable", TransientError),
            ("OptInRequired", AuthError),
            ("AuthFailure", AuthError),
        ],
    )
    def test_each_refusal_says_what_to_do_next(self, kit, code, kind):
        self.check_refusal(kit, code, 500 if kind is TransientError else 400, kind)


# --- the request ----------------------------------------------------------------------------------


def test_the_request_holds_all_that_ec2_is_asked_for(cloud):
    kit = Kit(
        cloud,
        key_name=None,
        max_price=0.9,
        disk=200 * 2**30,
        disk_throughput=500,
        metadata_hops=2,
        public_ip=False,
        tags={"team": "vision"},
    )
    body = kit.request(num_nodes=2).body
    assert body["region"] == "us-east-1"
    asked = body["run_instances"]
    assert {
        name: value for name, value in asked.items() if name not in {"TagSpecifications", "NetworkInterfaces"}
    } == {
        "ImageId": "ami-0c10d5b07ca5e0001",
        "InstanceType": "g5.xlarge",
        "MinCount": 2,
        "MaxCount": 2,
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "IamInstanceProfile": {"Name": "cloudspot-node"},
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/sda1",
                "Ebs": {
                    "VolumeSize": 200,
                    "VolumeType": "gp3",
                    "DeleteOnTermination": True,
                    "Throughput": 500,
                },
            }
        ],
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 2,
            "InstanceMetadataTags": "enabled",
        },
        "InstanceInitiatedShutdownBehavior": "terminate",
        "UserData": SCRIPT,
        "InstanceMarketOptions": {
            "MarketType": "spot",
            "SpotOptions": {
                "SpotInstanceType": "one-time",
                "InstanceInterruptionBehavior": "terminate",
                "MaxPrice": "0.9",
            },
        },
    }
    (interface,) = asked["NetworkInterfaces"]
    assert interface.pop("SubnetId").startswith("subnet-")
    assert interface == {"DeviceIndex": 0, "DeleteOnTermination": True, "AssociatePublicIpAddress": False}
    found = {one["ResourceType"]: one["Tags"] for one in asked["TagSpecifications"]}
    assert sorted(found) == ["instance", "spot-instances-request", "volume"]
    assert {tag["Key"]: tag["Value"] for tag in found["instance"]} == {
        "Name": "digits-1-1",
        "team": "vision",
        "cloudspot-job": "digits-1",
        "cloudspot-launch": "1",
        "cloudspot-num-nodes": "2",
        "cloudspot-store": "s3://bucket/prefix",
        "cloudspot-max-seconds": "3600",
        "MASTER_PORT": "29500",
    }


def test_a_machine_on_demand_is_asked_for_without_a_word_of_spot(kit):
    asked = kit.request(market="on-demand").body["run_instances"]
    assert "InstanceMarketOptions" not in asked
    assert [one["ResourceType"] for one in asked["TagSpecifications"]] == ["instance", "volume"]


# --- create ---------------------------------------------------------------------------------------


def test_a_token_whose_machines_are_gone_makes_no_others(kit):
    (instance,) = kit.launch()
    kit.cloud.host.end(instance.id, EndReason.RECLAIMED)
    with pytest.raises(CapacityError, match="IdempotentInstanceTerminated"):
        kit.launch()
    assert kit.cloud.alive == []


def test_a_token_without_capacity_works_when_there_is_some(kit):
    kit.cloud.faults.capacity["us-east-1a", "*", "*"] = 0
    with pytest.raises(CapacityError):
        kit.launch()
    kit.cloud.faults.capacity.clear()
    assert len(kit.launch()) == 1


def test_a_bid_below_the_price_is_a_lack_of_capacity(cloud):
    with pytest.raises(CapacityError, match="SpotMaxPriceTooLow"):
        Kit(cloud, max_price=0.01).launch()


@pytest.mark.parametrize(
    ("market", "code"), [("spot", "MaxSpotInstanceCountExceeded"), ("on-demand", "VcpuLimitExceeded")]
)
def test_a_quota_says_what_to_ask_for(kit, market, code):
    kit.cloud.faults.vcpu_quota[market] = 4
    kit.launch(market=market)
    with pytest.raises(QuotaError, match=rf"{code}.*; ask for more in Service Quotas"):
        kit.launch(market=market, token="token-2", launch=2)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ImageId": "ami-0123456789abcdef0"}, "image"),
        ({"InstanceType": "z9.huge"}, "instance_types"),
        ({"KeyName": "nobodys"}, "key_name"),
        ({"IamInstanceProfile": {"Name": "nobodys"}}, "instance_profile"),
        ({"Placement": {"AvailabilityZone": "us-east-1a", "GroupName": "nobodys"}}, "placement_group"),
        ({"NetworkInterfaces": [{"DeviceIndex": 0, "SubnetId": "subnet-0123456789abcdef0"}]}, "subnets"),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 1}}]},
            "disk",
        ),
    ],
)
def test_what_was_removed_since_the_offers_is_named_by_its_option(kit, monkeypatch, change, field):
    monkeypatch.setattr(cloudprovider, "NEW_ROLE_SECONDS", 0.0)
    request = kit.request()
    request.body["run_instances"].update(change)
    with pytest.raises(
        ProvisionError, match=rf"^providers\.aws\.{field}: launching 1 spot \w+\.\w+ in us-east-1a: "
    ):
        plaincalls.create(kit.provisioner, request, token="t")


def test_a_right_that_is_missing_is_named(kit):
    request = kit.request()
    kit.cloud.faults.denied = {"iam:PassRole"}
    with pytest.raises(AuthError) as error:
        plaincalls.create(kit.provisioner, request, token="t")
    assert str(error.value) == (
        "launching 1 spot g5.xlarge in us-east-1a: the credentials lack iam:PassRole; "
        "an administrator runs: cloudspot setup aws"
    )


def test_a_right_that_cannot_be_decoded_is_told_as_the_calls_own(kit):
    request = kit.request()
    kit.cloud.faults.denied = {"iam:PassRole", "sts:DecodeAuthorizationMessage"}
    with pytest.raises(AuthError, match="the credentials lack ec2:RunInstances"):
        plaincalls.create(kit.provisioner, request, token="t")


def test_expired_credentials_stop_everything(kit, monkeypatch):
    request = kit.request()
    kit.cloud.faults.expired_keys.add("AKIAIOSFODNN7EXAMPLE")
    with pytest.raises(AuthError, match="the AWS credentials have expired; log in again"):
        plaincalls.create(kit.provisioner, request, token="t")


# --- listing --------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_listing_has_every_page(kit):
    for launch in range(1, 9):
        kit.launch(launch=launch, token=f"t-{launch}")
    pages = kit.cloud.client().get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 5})
    assert len(list(pages)) == 2
    assert sorted(one.launch for one in kit.listed().values()) == list(range(1, 9))


def test_a_machine_with_an_empty_tag_is_nobodys_and_spoils_no_list(kit):
    nobodys, mine = kit.launch(num_nodes=2)
    kit.cloud.client().create_tags(Resources=[nobodys.id], Tags=[{"Key": "cloudspot-job", "Value": ""}])
    assert [*kit.listed(job_id=None)] == [mine.id]


def test_another_servers_answer_is_no_list_without_machines(kit, ec2_server):
    request = kit.request()

    def foreign(_environ, start_response):
        start_response("200 OK", [("Content-Type", "text/xml")])
        return [b"<Welcome><to>the hotel's network</to></Welcome>"]

    ec2_server.app = foreign
    with pytest.raises(TransientError, match=r"^listing the machines: the answer cannot be read$"):
        plaincalls.instances(kit.provisioner)
    with pytest.raises(TransientError, match=r"^creating the machines: the answer cannot be read$"):
        plaincalls.create(kit.provisioner, request, token="t")


@pytest.mark.parametrize(
    "reason", [EndReason.RECLAIMED, EndReason.SELF, EndReason.TERMINATED, EndReason.LOST]
)
def test_an_ended_machine_says_why(kit, reason):
    (instance,) = kit.launch()
    kit.cloud.host.end(instance.id, reason)
    found = kit.listed()[instance.id]
    assert (found.state, found.end_reason) == (InstanceState.ENDED, reason)


@pytest.mark.parametrize(
    ("code", "said", "reason", "advice"),
    [
        ("Client.InternalError", "Client error on launch", "unstartable", "encrypted with a key"),
        (
            "Client.InvalidSnapshot.NotFound",
            "The snapshot was not found",
            "unstartable",
            "providers.aws.image",
        ),
        ("Client.VolumeLimitExceeded", "Volume limit exceeded", "quota", "Service Quotas"),
        ("Server.InsufficientInstanceCapacity", "There was too little capacity", "capacity", ""),
        ("Server.InternalError", "Internal error on launch", "lost", ""),
        ("Client.SomethingNew", "Nobody knows", "unknown", ""),
    ],
)
def test_a_machine_that_died_at_its_launch_says_why_and_what_to_do(kit, code, said, reason, advice):
    kit.cloud.ec2.machines.launch_failures.append((code, said))
    (instance,) = kit.launch()
    assert instance.state is InstanceState.PENDING
    found = kit.listed()[instance.id]
    assert (found.state, found.end_reason) == (InstanceState.ENDED, EndReason(reason))
    assert found.detail.startswith(f"{code}: {said}")
    assert advice in found.detail


def test_an_ended_machine_is_listed_for_an_hour_with_its_end(kit):
    (instance,) = kit.launch()
    kit.cloud.now += 100
    plaincalls.terminate(kit.provisioner, [instance.id])
    found = kit.listed()[instance.id]
    assert found.launched_at.timestamp() == kit.cloud.now - 100
    assert found.ended_at.timestamp() == kit.cloud.now
    kit.cloud.now += 3599
    assert instance.id in kit.listed()
    kit.cloud.now += 2
    assert kit.listed() == {}


def test_a_stopped_machine_is_not_dead(kit):
    (instance,) = kit.launch()
    kit.cloud.ec2.machines.by_id[instance.id].instance.stop()
    kit.cloud.host.status.clear()  # nobody but EC2 has stopped it
    assert kit.listed()[instance.id].state is InstanceState.SHUTTING_DOWN


# --- announce, terminate, release -----------------------------------------------------------------


@pytest.mark.full
def test_announced_facts_and_names_are_tags_on_each_machine(kit):
    made = kit.launch(num_nodes=2)
    facts = {"MASTER_ADDR": made[0].address, "NUM_NODES": "2"}
    for _ in range(2):
        kit.provisioner.announce(made, facts)
    for rank, one in enumerate(made):
        found = kit.cloud.host.tags[one.id]
        assert {name: found[name] for name in ("MASTER_ADDR", "NUM_NODES", "MASTER_PORT")} == {
            **facts,
            "MASTER_PORT": "29500",
        }
        assert (found["Name"], found["cloudspot-node"]) == (f"digits-1-1-{rank}", str(rank))


@pytest.mark.full
def test_tags_may_show_late(kit):
    made = kit.launch()
    kit.cloud.faults.tag_lag_seconds = 5.0
    kit.provisioner.announce(made, {"MASTER_ADDR": "172.31.0.4"})
    kit.listed()
    assert "MASTER_ADDR" not in kit.cloud.host.tags[made[0].id]
    kit.cloud.now += 5
    kit.listed()
    assert kit.cloud.host.tags[made[0].id]["MASTER_ADDR"] == "172.31.0.4"


@pytest.mark.full
def test_a_machine_takes_its_volume_along(kit):
    made = kit.launch(num_nodes=2)
    volumes = kit.cloud.client().describe_volumes(
        Filters=[{"Name": "tag:cloudspot-job", "Values": ["digits-1"]}]
    )["Volumes"]
    assert [one["Size"] for one in volumes] == [65, 65]
    plaincalls.terminate(kit.provisioner, [one.id for one in made])
    assert kit.cloud.client().describe_volumes()["Volumes"] == []


@pytest.mark.full
def test_a_placement_group_is_made_used_and_removed_with_the_job(cloud):
    kit = Kit(cloud, placement_group="auto")
    made = kit.launch(num_nodes=2)
    client = cloud.client()
    (group,) = client.describe_placement_groups()["PlacementGroups"]
    assert (group["GroupName"], group["Strategy"]) == (
        "cloudspot-digits-1-9737a7d8-us-east-1a",
        "cluster",
    )
    (reservation,) = client.describe_instances()["Reservations"]
    assert {one["Placement"]["GroupName"] for one in reservation["Instances"]} == {group["GroupName"]}
    with pytest.raises(TransientError, match=r"InvalidPlacementGroup\.InUse"):
        kit.provisioner.release("digits-1", store_url=STORE)
    plaincalls.terminate(kit.provisioner, [one.id for one in made])
    kit.provisioner.release("digits-1", store_url="s3://bucket/another")
    assert client.describe_placement_groups()["PlacementGroups"] == [group]
    for _ in range(2):
        kit.provisioner.release("digits-1", store_url=STORE)
    assert client.describe_placement_groups()["PlacementGroups"] == []


@pytest.mark.full
def test_another_stores_job_of_the_same_id_has_a_placement_group_of_its_own_and_its_machines_say_whose_they_are(
    cloud,
):
    kit = Kit(cloud, placement_group="auto")
    kit.launch(num_nodes=2)
    kit.launch(num_nodes=2, token="token-2", store_url="s3://bucket/another")
    assert len(cloud.client().describe_placement_groups()["PlacementGroups"]) == 2
    assert sorted(one.store_url for one in plaincalls.instances(kit.provisioner, job_id="digits-1")) == [
        *["s3://bucket/another"] * 2,
        *[STORE] * 2,
    ]


@pytest.mark.full
def test_a_node_that_is_replaced_alone_joins_the_placement_group_of_its_job(cloud):
    kit = Kit(cloud, placement_group="auto")
    kit.launch(num_nodes=2)
    (one,) = kit.launch(num_nodes=1, job_nodes=2, launch=2, token="token-2")
    (group,) = cloud.client().describe_placement_groups()["PlacementGroups"]
    (reservation,) = cloud.client().describe_instances(InstanceIds=[one.id])["Reservations"]
    assert reservation["Instances"][0]["Placement"]["GroupName"] == group["GroupName"]


def test_a_job_of_one_node_needs_no_placement_group(cloud):
    kit = Kit(cloud, placement_group="auto")
    kit.launch()
    assert cloud.faults.count("CreatePlacementGroup") == 0


def test_a_placement_group_of_ones_own_is_used_and_stays(cloud):
    cloud.client().create_placement_group(GroupName="mine", Strategy="cluster")
    kit = Kit(cloud, placement_group="mine")
    made = kit.launch()
    plaincalls.terminate(kit.provisioner, [one.id for one in made])
    kit.provisioner.release("digits-1")
    groups = cloud.client().describe_placement_groups()["PlacementGroups"]
    assert [group["GroupName"] for group in groups] == ["mine"]


def test_without_a_placement_group_release_asks_nobody(kit):
    kit.provisioner.release("digits-1")
    assert kit.cloud.faults.calls == []


def schedules(cloud):
    """Return the schedules there are by the machine that each ends."""
    scheduler = cloud.client("scheduler")
    names = [one["Name"] for one in scheduler.list_schedules()["Schedules"]]
    found = [scheduler.get_schedule(Name=name) for name in names]
    return {json.loads(one["Target"]["Input"])["InstanceIds"][0]: one for one in found}


@pytest.mark.full
def test_a_limit_outside_the_machine_is_scheduled_once_and_removed_with_the_job(cloud):
    kit = Kit(cloud, limit_role=ROLE)
    made = kit.launch(num_nodes=2)
    found = schedules(cloud)
    assert sorted(found) == sorted(one.id for one in made)
    for instance_id, schedule in found.items():
        assert schedule["ScheduleExpression"] == "at(2026-09-21T15:23:20)"  # now, an hour and ten minutes
        assert schedule["Target"]["Arn"] == "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
        assert schedule["Target"]["RoleArn"] == ROLE
        assert json.loads(schedule["Target"]["Input"]) == {"InstanceIds": [instance_id]}
    kit.provisioner.release("digits-1", store_url="s3://bucket/another")
    assert len(schedules(cloud)) == 2
    for _ in range(2):
        kit.provisioner.release("digits-1", store_url=STORE)
    assert schedules(cloud) == {}


@pytest.mark.full
def test_each_machine_has_its_own_limit_also_if_whoever_created_it_was_killed_before_it_was_scheduled(cloud):
    Kit(cloud).launch(num_nodes=1, job_nodes=2)
    cloud.now += 600.0
    Kit(cloud).launch(num_nodes=1, job_nodes=2, launch=2, token="token-2", max_seconds=1800.0)
    kit = Kit(cloud, limit_role=ROLE)
    listed = kit.listed()
    for _ in range(2):
        kit.provisioner.announce(list(listed.values()), {"MASTER_ADDR": "172.31.0.4"})
    ends = {listed[one].launch: found["ScheduleExpression"] for one, found in schedules(cloud).items()}
    assert ends == {1: "at(2026-09-21T15:23:20)", 2: "at(2026-09-21T15:03:20)"}


@pytest.mark.full
def test_the_limit_ends_the_machine_that_is_left_when_its_time_is_up(cloud):
    kit = Kit(cloud, limit_role=ROLE)
    gone, left = (one.id for one in kit.launch(num_nodes=2))
    cloud.host.end(gone, EndReason.RECLAIMED)
    kit.listed()
    cloud.now += 3600.0 + 599.0  # an hour that the launch may take, and almost ten minutes
    assert kit.listed()[left].state is InstanceState.RUNNING
    cloud.now += 1.0  # By now EC2 has forgotten the one that was reclaimed.
    assert kit.listed()[left].end_reason is EndReason.TERMINATED
    assert cloud.host.terminated == [left]
    assert list(schedules(cloud)) == [gone]  # its schedule fails and is tried again


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ScheduleExpression": "at(tomorrow)"}, r"Invalid Schedule Expression at\(tomorrow\)"),
        ({"role": "arn:aws:iam::123456789012:role/cloudspot-node"}, "must allow AWS EventBridge Scheduler"),
        ({"role": "arn:aws:iam::123456789012:role/nobody"}, "must allow AWS EventBridge Scheduler"),
        ({"Input": "{}"}, "InstanceIds is required"),
    ],
)
def test_a_schedule_that_could_not_be_carried_out_is_refused(cloud, changes, message):
    target = {"Arn": TARGET, "RoleArn": changes.get("role", ROLE), "Input": '{"InstanceIds": ["i-01234567"]}'}
    with pytest.raises(botocore.exceptions.ClientError, match=message):
        cloud.client("scheduler").create_schedule(
            Name="one",
            ScheduleExpression=changes.get("ScheduleExpression", "at(2030-01-01T00:00:00)"),
            FlexibleTimeWindow={"Mode": "OFF"},
            Target={**target, **{name: value for name, value in changes.items() if name in target}},
        )


def test_moto_alone_would_have_been_kinder(cloud):
    """What the strict EC2 refuses in the tests above is not refused by a plain client's luck."""
    client = cloud.client()
    with pytest.raises(botocore.exceptions.ClientError, match=r"InvalidAMIID\.NotFound"):
        client.run_instances(ImageId="ami-00000000", InstanceType="m5.large", MinCount=1, MaxCount=1)


# --- consoles -----------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("instance_type", ["g5.xlarge", "t2.micro"])
def test_a_console_that_cannot_be_told_at_once_is_told_once_it_is_posted(kit, instance_type):
    """Only Nitro machines tell the newest output, and no ended one does."""
    kit = Kit(kit.cloud, instance_types=(instance_type,))
    (instance,) = kit.launch()
    kit.cloud.host.consoles[instance.id] = "booting\n"
    kit.listed()
    assert kit.provisioner.console(instance) == ("booting\n" if instance_type == "g5.xlarge" else "")
    kit.cloud.now += 240.0
    kit.listed()
    assert kit.provisioner.console(instance) == "booting\n"
    kit.cloud.host.consoles[instance.id] = "booting\nno role\n"
    kit.cloud.host.end(instance.id, EndReason.SELF)
    kit.listed()
    assert kit.provisioner.console(instance) == "booting\n"
    kit.cloud.now += 240.0
    kit.listed()
    assert kit.provisioner.console(instance) == "booting\nno role\n"
