import msgspec
import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from support.worlds.groups import group_of

from cloudspot.errors import AuthError, SpecError, TransientError
from cloudspot.model import Billing, Market, Offer, Resources
from cloudspot.plugin.answercache import FACTS_SECONDS
from cloudspot.plugin.cloudprovider import FAILURE_SECONDS
from cloudspot.testing import plaincalls
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.offers import SPOT_PRICE_SECONDS, AwsOfferFinder
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.pricing import endpoint_region
from cloudspot_aws.provider import AwsProvider
from cloudspot_aws_sandbox import prices
from cloudspot_aws_sandbox.images import IMAGE_ID

DISK = round((15 + 50) * 0.08 / 730, 6)
"""USD an hour of the image's size and 50 GiB as gp3."""
ADDRESS = 0.005


def offers(cloud, resources=None, **options):
    return plaincalls.offers(cloud.provider(**options).provisioner(), resources or Resources())


def test_a_type_is_offered_in_each_zone_that_has_it_on_both_markets_with_its_prices(cloud):
    found = offers(cloud, instance_types=("g5.xlarge",))
    assert {(one.zone, one.market) for one in found} == {
        (f"us-east-1{zone}", market) for zone in "abcdf" for market in Market
    }
    assert {one.on_demand_price_per_hour for one in found} == {round(1.006 + DISK + ADDRESS, 6)}
    spot = {one.zone: one.price_per_hour for one in found if one.market is Market.SPOT}
    assert len(set(spot.values())) == 5
    assert all(0.25 < price - DISK - ADDRESS < 0.51 for price in spot.values())
    assert {one.currency for one in found} == {"USD"}
    assert {one.billing for one in found} == {Billing(minimum_seconds=60, free_if_reclaimed_seconds=3600)}


def test_what_rendering_needs_comes_with_the_offer_and_survives_the_journal(cloud):
    offer = offers(cloud, instance_types=("m5.large",))[0]
    assert offer.region == "us-east-1"
    assert offer.image == "ami-0c10d5b07ca5e0001"
    assert offer.details["root_device"] == "/dev/sda1"
    assert offer.image_gib == 15
    subnets = cloud.client().describe_subnets(SubnetIds=[offer.details["subnet"]])["Subnets"]
    assert [one["AvailabilityZone"] for one in subnets] == [offer.zone]
    assert msgspec.json.decode(msgspec.json.encode(offer), type=Offer) == offer


def parts_of(cloud, resources=None, **options):
    """Return the parts of the price of a machine on demand, which are those of all offers on demand."""
    options = {"instance_types": ("m5.large",), **options}
    found = [one for one in offers(cloud, resources, **options) if one.market is Market.ON_DEMAND]
    assert {one.price_per_hour == one.on_demand_price_per_hour for one in found} == {True}
    ((parts, price),) = {(one.price_text, one.price_per_hour) for one in found}
    counted = [part.rpartition(" ")[2] for part in parts.split(", ")]
    assert price == pytest.approx(sum(float(each) for each in counted if each != "counted"), abs=1e-6)
    return parts


@pytest.mark.parametrize(
    ("resources", "options", "parts"),
    [
        (Resources(), {}, "machine 0.096, disk 0.007123, address 0.005"),
        (Resources(), {"public_ip": False}, "machine 0.096, disk 0.007123"),
        (Resources(disk_bytes=100 * 2**30), {}, "machine 0.096, disk 0.012603, address 0.005"),
        (Resources(), {"disk": 730 * 2**30}, "machine 0.096, disk 0.08, address 0.005"),
        (
            Resources(),
            {"disk": 73 * 2**30, "disk_type": "gp2"},
            "machine 0.096, disk 0.01, address 0.005",
        ),
        (
            Resources(),
            {"disk": 73 * 2**30, "disk_type": "io2", "disk_iops": 500, "public_ip": False},
            "machine 0.096, disk 0.0125, disk performance not counted",
        ),
        (
            Resources(),
            {"disk": 73 * 2**30, "disk_throughput": 250, "public_ip": False},
            "machine 0.096, disk 0.008, disk performance not counted",
        ),
        (
            Resources(),
            {"on_demand_prices": {"m5.large": 0.2}},
            "machine 0.2, disk not counted, address not counted",
        ),
    ],
)
def test_a_price_counts_the_disk_and_the_public_address_and_names_what_it_leaves_out(
    cloud, resources, options, parts
):
    assert parts_of(cloud, resources, **options) == parts


@pytest.mark.full
def test_only_machines_in_subnets_that_give_public_addresses_have_one_unless_it_is_said(cloud):
    subnets = [one["SubnetId"] for one in cloud.client().describe_subnets()["Subnets"]]
    for one in subnets:
        cloud.client().modify_subnet_attribute(SubnetId=one, MapPublicIpOnLaunch={"Value": False})
    assert parts_of(cloud) == "machine 0.096, disk 0.007123"
    assert parts_of(cloud, public_ip=True) == "machine 0.096, disk 0.007123, address 0.005"


def test_a_disk_whose_price_cannot_be_learned_is_left_out_and_asked_for_after_a_minute(cloud, ec2_clients):
    now = 0.0
    options = AwsOptions(instance_types=("m5.large",), public_ip=False)
    finder = AwsOfferFinder(options, ec2_clients, monotonic=lambda: now)

    def parts():
        return {one.price_text for one in finder.offers(Resources()) if one.market is Market.ON_DEMAND}

    cloud.faults.inject("GetProducts", "InternalErrorException", times=3)
    assert parts() == {"machine 0.096, disk not counted"}
    assert parts() == {"machine 0.096, disk not counted"}
    now = FAILURE_SECONDS
    assert parts() == {"machine 0.096, disk 0.007123"}


def test_only_the_zones_of_the_options_are_offered(cloud):
    found = offers(cloud, instance_types=("m5.large",), zones=("us-east-1b", "us-east-1c"))
    assert {one.zone for one in found} == {"us-east-1b", "us-east-1c"}


def test_only_the_zones_of_the_subnets_are_offered(cloud):
    subnets = cloud.client().describe_subnets()["Subnets"]
    chosen = [one for one in subnets if one["AvailabilityZone"] in {"us-east-1a", "us-east-1d"}]
    found = offers(cloud, instance_types=("m5.large",), subnets=tuple(one["SubnetId"] for one in chosen))
    assert {one.zone: one.details["subnet"] for one in found} == {
        one["AvailabilityZone"]: one["SubnetId"] for one in chosen
    }


def test_a_type_that_exists_on_one_market_only_is_offered_there(cloud):
    found = offers(cloud, instance_types=("u-3tb1.56xlarge",), on_demand_prices={"u-3tb1.56xlarge": 27.3})
    assert {one.market for one in found} == {Market.ON_DEMAND}


@pytest.mark.full
def test_types_are_found_by_accelerator_cheapest_first(cloud):
    found = offers(cloud, Resources(accelerator="a10g", accelerator_count=4))
    assert {one.instance_type for one in found} == {"g5.12xlarge", "g5.24xlarge", "g5.48xlarge"}


@pytest.mark.full
def test_an_accelerator_of_many_words_is_found_with_dashes(cloud):
    found = offers(cloud, Resources(accelerator="rtx-pro-4500", accelerator_count=1))
    assert {one.instance_type for one in found} <= {f"g7.{n}xlarge" for n in (2, 4, 8, 12, 24, 48)}
    assert found


@pytest.mark.full
def test_types_are_found_by_cpus_and_memory_without_an_accelerator(cloud):
    found = offers(cloud, Resources(cpus=16, memory_bytes=60 * 2**30))
    names = sorted({one.instance_type for one in found})
    assert len(names) == 4
    types = cloud.client().describe_instance_types(InstanceTypes=names)["InstanceTypes"]
    for one in types:
        assert one["VCpuInfo"]["DefaultVCpus"] >= 16
        assert one["MemoryInfo"]["SizeInMiB"] >= 60 * 1024
        assert "GpuInfo" not in one
        assert one["ProcessorInfo"]["SupportedArchitectures"] == ["x86_64"]


@pytest.mark.full
def test_a_job_that_asks_for_nothing_gets_small_machines_that_can_train(cloud):
    names = sorted({one.instance_type for one in offers(cloud)})
    types = cloud.client().describe_instance_types(InstanceTypes=names)["InstanceTypes"]
    assert {one["VCpuInfo"]["DefaultVCpus"] for one in types} == {2}
    assert min(one["MemoryInfo"]["SizeInMiB"] for one in types) >= 8192


def test_of_the_named_types_those_that_fit_are_offered(cloud):
    found = offers(
        cloud, Resources(accelerator="A10G", accelerator_count=1), instance_types=("m5.large", "g5.xlarge")
    )
    assert {one.instance_type for one in found} == {"g5.xlarge"}


@pytest.mark.full
def test_burstable_and_xen_types_are_bought_only_by_their_names(cloud):
    pages = cloud.client().get_paginator("describe_instance_types").paginate()
    facts = {one["InstanceType"]: one for page in pages for one in page["InstanceTypes"]}
    sizes = [(2, 2), (2, 8), (2, 16), (4, 16), (8, 32), (16, 64)]
    names = set()
    for cpus, gib in sizes:
        names |= {one.instance_type for one in offers(cloud, Resources(cpus=cpus, memory_bytes=gib * 2**30))}
    assert len(names) > 10
    assert not [name for name in names if facts[name]["BurstablePerformanceSupported"]]
    assert not [name for name in names if name.startswith("t")]  # EC2's list does not say so of T8i
    assert not [name for name in names if facts[name]["NetworkInfo"]["EnaSupport"] == "unsupported"]
    for name in ("t3.large", "t8i.small", "m3.xlarge"):
        assert {one.instance_type for one in offers(cloud, instance_types=(name,))} == {name}


def test_a_burstable_type_gets_no_credits_that_cost_extra(cloud):
    named = cloud.provider(instance_types=("t3.large", "m7i-flex.large")).provisioner()
    for offer in plaincalls.offers(named, Resources()):
        group = group_of(offer, store_url="s3://bucket", max_seconds=3600.0)
        body = named.render(group).body["run_instances"]
        expected = {"CpuCredits": "standard"} if offer.instance_type == "t3.large" else None
        assert body.get("CreditSpecification") == expected


@pytest.mark.full
def test_a_type_that_cannot_boot_the_image_is_refused_by_name_and_never_chosen(cloud):
    assert offers(cloud, instance_types=("m3.xlarge",))
    from moto.ec2.models import ec2_backends

    backend = ec2_backends[DEFAULT_ACCOUNT_ID]["us-east-1"]
    backend.amis[IMAGE_ID].boot_mode = "uefi"
    with pytest.raises(
        SpecError, match=r'"m3\.xlarge" is x86_64 \(legacy-bios\), but image ami-\w+ is x86_64 \(uefi\)$'
    ):
        offers(cloud, instance_types=("m3.xlarge",))
    chosen = {one.instance_type for one in offers(cloud, Resources(cpus=8, memory_bytes=32 * 2**30))}
    found = cloud.client().describe_instance_types(InstanceTypes=sorted(chosen))["InstanceTypes"]
    assert found
    assert all("uefi" in one["SupportedBootModes"] for one in found)


@pytest.mark.full
def test_nothing_that_fits_gives_no_offer(cloud):
    assert offers(cloud, Resources(accelerator="B9000", accelerator_count=1)) == ()


@pytest.mark.full
def test_types_for_a_placement_group_can_be_in_one(cloud):
    names = {one.instance_type for one in offers(cloud, placement_group="auto")}
    types = cloud.client().describe_instance_types(InstanceTypes=sorted(names))["InstanceTypes"]
    assert all("cluster" in one["PlacementGroupInfo"]["SupportedStrategies"] for one in types)
    with pytest.raises(SpecError, match="cannot be in a cluster placement group"):
        offers(cloud, placement_group="auto", instance_types=("t3.large",))


@pytest.mark.full
def test_a_price_that_is_given_is_not_asked_for(cloud):
    cloud.faults.denied = {"pricing:GetProducts"}
    found = offers(cloud, instance_types=("m5.large",), on_demand_prices={"m5.large": 0.2})
    assert {one.on_demand_price_per_hour for one in found} == {0.2}
    with pytest.raises(
        AuthError, match=r"; alternatively, set the price in providers\.aws\.on_demand_prices$"
    ):
        offers(cloud, instance_types=("m5.large",))


def test_the_price_of_a_spot_machine_is_the_one_in_force_in_its_zone(cloud, monkeypatch):
    provisioner = cloud.provider(instance_types=("m5.large",)).provisioner()
    first = cloud.offer(provisioner, zone="us-east-1b")
    assert provisioner.current_price(first) == first.price_per_hour
    usual = prices.spot_price
    monkeypatch.setattr(prices, "spot_price", lambda type_, zone, factor: usual(type_, zone) + 0.25)
    assert provisioner.current_price(first) == first.price_per_hour  # asked for a moment ago
    later = cloud.provider(instance_types=("m5.large",)).provisioner()
    assert later.current_price(first) == pytest.approx(first.price_per_hour + 0.25)
    asked = [call.parameters for call in cloud.faults.calls if call.action == "DescribeSpotPriceHistory"]
    assert asked[-1]["InstanceTypes"] == ["m5.large"]
    gone = msgspec.structs.replace(first, zone="us-east-1z")
    assert later.current_price(gone) is None


def test_a_price_that_may_not_be_read_is_an_error_of_rights_and_one_that_fails_is_asked_for_again(cloud):
    provisioner = cloud.provider(instance_types=("m5.large",)).provisioner()
    offer = cloud.offer(provisioner)
    later = cloud.provider(instance_types=("m5.large",)).provisioner()
    cloud.faults.inject("DescribeSpotPriceHistory", "InternalError", times=3)
    with pytest.raises(TransientError, match="reading spot prices"):
        later.current_price(offer)
    cloud.faults.denied = {"ec2:DescribeSpotPriceHistory"}
    with pytest.raises(AuthError, match="reading spot prices"):
        later.current_price(offer)


@pytest.mark.parametrize(
    ("region", "endpoint"),
    [
        ("us-east-1", "us-east-1"),
        ("us-west-2", "us-east-1"),
        ("sa-east-1", "us-east-1"),
        ("eu-north-1", "eu-central-1"),
        ("me-south-1", "eu-central-1"),
        ("ap-northeast-2", "ap-south-1"),
    ],
)
def test_the_price_list_is_asked_where_it_is(region, endpoint):
    assert endpoint_region(region) == endpoint


def test_the_price_list_of_another_region_is_asked_elsewhere(cloud):
    provider = AwsProvider(AwsOptions(region="eu-west-1", instance_types=("m5.large",)))
    found = plaincalls.offers(provider.provisioner(), Resources())
    assert {one.zone for one in found} == {"eu-west-1a", "eu-west-1b", "eu-west-1c"}
    assert [call.region for call in cloud.faults.calls if call.action == "GetProducts"] == [
        "eu-central-1"
    ] * 2


def test_what_does_not_change_is_asked_for_once_an_hour_and_prices_once_a_minute(cloud, ec2_clients):
    now = 0.0
    finder = AwsOfferFinder(AwsOptions(instance_types=("m5.large",)), ec2_clients, monotonic=lambda: now)

    def asked():
        before = len(cloud.faults.calls)
        finder.offers(Resources())
        return sorted(call.action for call in cloud.faults.calls[before:])

    facts = [
        "DescribeImages",
        "DescribeInstanceTypeOfferings",
        "DescribeInstanceTypes",
        "DescribeSpotPriceHistory",
        "DescribeSubnets",
        "GetInstanceProfile",
        "GetParameter",
        "GetProducts",
        "GetProducts",
    ]
    assert asked() == facts
    assert asked() == []
    now = SPOT_PRICE_SECONDS
    assert asked() == ["DescribeSpotPriceHistory"]
    now = FACTS_SECONDS
    assert asked() == facts


def test_a_failure_is_not_kept(cloud):
    provisioner = cloud.provider(instance_types=("m5.large",)).provisioner()
    cloud.faults.inject("DescribeSubnets", "InternalError", times=3)
    with pytest.raises(TransientError, match="looking up the default subnets"):
        plaincalls.offers(provisioner, Resources())
    assert plaincalls.offers(provisioner, Resources())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"region": "us-east-9"},
            'providers.aws.region: there is no region "us-east-9" in this boto3; did you mean "us-east-2"?',
        ),
        (
            {"image": "ami-0123456789abcdef0"},
            'providers.aws.image: there is no "ami-0123456789abcdef0" in this region (InvalidAMIID.NotFound)',
        ),
        (
            {"image": "/aws/service/ami/none"},
            'providers.aws.image: there is no "/aws/service/ami/none" in this region (ParameterNotFound)',
        ),
        (
            {"instance_types": ("g5.xlrge",)},
            'providers.aws.instance_types: us-east-1 has no "g5.xlrge"; did you mean "g5.xlarge"?',
        ),
        (
            {"instance_types": ("m5.large", "z9.huge")},
            'providers.aws.instance_types: us-east-1 has no "z9.huge"',
        ),
        (
            {"image": "ami-0c10d5b07ca5e0003", "instance_types": ("m5.large",)},
            (
                'providers.aws.instance_types: "m5.large" is x86_64 (legacy-bios/uefi), but image '
                "ami-0c10d5b07ca5e0003 is arm64 (uefi)"
            ),
        ),
        (
            {"subnets": ("subnet-0123456789abcdef0",)},
            (
                'providers.aws.subnets: there is no "subnet-0123456789abcdef0" in this region '
                "(InvalidSubnetID.NotFound)"
            ),
        ),
        (
            {"zones": ("us-east-1z",)},
            (
                'providers.aws.zones: no subnet in "us-east-1z"; there are us-east-1a, us-east-1b, us-east-1c, '
                "us-east-1d, us-east-1e, us-east-1f"
            ),
        ),
        (
            {"security_groups": ("sg-0123456789abcdef0",)},
            (
                'providers.aws.security_groups: there is no "sg-0123456789abcdef0" in this region '
                "(InvalidGroup.NotFound)"
            ),
        ),
        (
            {"key_name": "mine"},
            'providers.aws.key_name: there is no "mine" in this region (InvalidKeyPair.NotFound)',
        ),
        (
            {"placement_group": "mine"},
            'providers.aws.placement_group: there is no "mine" in this region (InvalidPlacementGroup.Unknown)',
        ),
        (
            {"instance_profile": "nobody"},
            'providers.aws.instance_profile: there is no "nobody"; cloudspot setup aws makes it',
        ),
    ],
)
def test_an_option_that_names_what_does_not_exist_is_told_before_anything_is_launched(
    cloud, options, message
):
    with pytest.raises(SpecError) as error:
        offers(cloud, **options)
    assert str(error.value) == message
    assert cloud.faults.count("RunInstances") == 0


def test_a_profile_without_a_role_is_told(cloud):
    cloud.make_profile("empty", has_role=False)
    with pytest.raises(SpecError, match='"empty" has no role; add one'):
        offers(cloud, instance_profile="empty")


def test_subnets_of_two_vpcs_are_refused_since_nodes_in_two_zones_could_not_reach_each_other(cloud):
    client = cloud.client()
    vpc = client.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    made = client.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/24", AvailabilityZone="us-east-1b")["Subnet"]
    first = next(
        one for one in client.describe_subnets()["Subnets"] if one["AvailabilityZone"] == "us-east-1a"
    )
    with pytest.raises(
        SpecError, match=rf"^providers\.aws\.subnets: the subnets are in 2 VPCs \(.*{vpc}.*\)"
    ):
        offers(cloud, instance_types=("m5.large",), subnets=(first["SubnetId"], made["SubnetId"]))


def test_a_region_without_a_default_vpc_needs_subnets(cloud):
    client = cloud.client()
    for subnet in client.describe_subnets()["Subnets"]:
        client.delete_subnet(SubnetId=subnet["SubnetId"])
    with pytest.raises(SpecError, match=r"providers\.aws\.subnets: missing; us-east-1 has no default VPC"):
        offers(cloud)


def test_two_subnets_in_one_zone_are_ambiguous(cloud):
    client = cloud.client()
    first = client.describe_subnets()["Subnets"][0]
    other = client.create_subnet(
        VpcId=first["VpcId"], CidrBlock="172.31.240.0/24", AvailabilityZone=first["AvailabilityZone"]
    )["Subnet"]
    with pytest.raises(SpecError, match=f"are both in {first['AvailabilityZone']}"):
        offers(cloud, subnets=(first["SubnetId"], other["SubnetId"]))


def test_without_the_right_to_look_at_profiles_the_launch_itself_will_tell(cloud):
    cloud.faults.denied = {"iam:GetInstanceProfile"}
    assert offers(cloud, instance_types=("m5.large",), instance_profile="nobody")


def test_without_credentials_one_line_says_what_to_do(cloud, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AuthError, match="no AWS credentials found; run `aws configure`"):
        plaincalls.offers(AwsProvider(AwsOptions(region="us-east-1")).provisioner(), Resources())


def test_without_a_region_one_line_says_what_to_set(cloud):
    with pytest.raises(SpecError) as error:
        plaincalls.offers(AwsProvider().provisioner(), Resources())
    assert str(error.value) == (
        "no AWS region: set providers.aws.region, AWS_REGION or the profile's region (aws configure)"
    )


def test_region_and_account_are_pinned_on_submission(cloud, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert AwsProvider().pinned_options() == {"region": "eu-west-1", "account": "123456789012"}
    options = AwsOptions(region="us-east-1", account="999999999999")
    assert AwsProvider(options).pinned_options() == {"region": "us-east-1", "account": "999999999999"}


def test_the_boot_profile_tells_the_sdk_its_region(cloud):
    profile = cloud.provider(image_has_cloudspot=True, agent_python="/opt/agent/bin/python").boot_profile()
    assert profile.environment == {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    assert (profile.agent_python, profile.train_python) == (
        "/opt/agent/bin/python",
        "/opt/pytorch/bin/python",
    )
    assert (profile.has_cloudspot, profile.shutdown_command) == (True, "shutdown -h now")
    assert AwsClients(region="us-east-1").region == "us-east-1"
