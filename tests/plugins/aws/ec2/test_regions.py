"""A job whose machines may be in two regions of the emulated EC2."""

import pytest
from support.worlds.groups import group_of

from cloudspot.errors import SpecError
from cloudspot.model import Market, Resources
from cloudspot.testing import plaincalls
from cloudspot_aws.options import AwsOptions, options_in
from cloudspot_aws.pricing import transfer_price
from cloudspot_aws.provider import AwsProvider
from cloudspot_aws_sandbox.images import BARE_IMAGE_ID, IMAGE_ID, image_in

HOME, OTHER = "us-east-1", "us-west-2"


@pytest.fixture
def make(cloud):
    """``make(**options)``: a provider of both regions."""

    def make(**options):
        wanted = {"region": HOME, "regions": (HOME, OTHER), "instance_types": ("g5.xlarge",)}
        return AwsProvider(AwsOptions(**{**wanted, **options}))

    return make


def launch(provisioner, region, market="spot"):
    offer = next(
        one
        for one in plaincalls.offers(provisioner, Resources())
        if one.zone.startswith(region) and one.market is Market(market)
    )
    (machine,) = plaincalls.create(provisioner, provisioner.render(group_of(offer)), token=f"token-{region}")
    return machine


@pytest.mark.full
def test_offers_are_in_both_each_with_its_own_image_subnet_and_network(make):
    offers = plaincalls.offers(make().provisioner(), Resources())
    by_region = {one.region: one for one in offers}
    assert set(by_region) == {HOME, OTHER}
    assert all(one.zone.startswith(one.region) for one in offers)
    images = {region: one.image for region, one in by_region.items()}
    assert images == {HOME: IMAGE_ID, OTHER: image_in(OTHER, IMAGE_ID)}
    assert images[HOME] != images[OTHER]
    assert {region: one.network for region, one in by_region.items()} == {HOME: HOME, OTHER: OTHER}
    assert not by_region[HOME].reaches(by_region[OTHER])


@pytest.mark.full
def test_a_machine_of_the_other_region_is_made_listed_tagged_read_and_ended_there(cloud, make):
    provisioner = make().provisioner()
    at_home, there = launch(provisioner, HOME), launch(provisioner, OTHER)
    assert there.zone.startswith(OTHER)
    assert [one.metadata["region"] for one in cloud.host.machines.values()] == [HOME, OTHER]
    assert {one.id for one in plaincalls.instances(provisioner, job_id=there.job_id)} == {
        at_home.id,
        there.id,
    }
    assert {one.id for one in plaincalls.instances(make().provisioner())} == {at_home.id, there.id}
    # Only what was made with one region sees no other.
    assert {one.id for one in plaincalls.instances(make(regions=()).provisioner())} == {at_home.id}
    provisioner.announce([at_home, there], {"MASTER_ADDR": "10.0.0.1"})
    assert {name: tags["MASTER_ADDR"] for name, tags in cloud.host.tags.items()} == {
        at_home.id: "10.0.0.1",
        there.id: "10.0.0.1",
    }
    provisioner.console(there)
    plaincalls.terminate(provisioner, [there.id])
    assert cloud.alive == [at_home.id]


@pytest.mark.full
def test_who_has_listed_nothing_ends_machines_wherever_they_are(cloud, make):
    ids = [launch(make().provisioner(), region).id for region in (HOME, OTHER)]
    plaincalls.terminate(make().provisioner(), [*ids, "i-0123456789abcdef0"])
    assert cloud.alive == []


@pytest.mark.full
def test_another_regions_id_is_not_found(cloud, make):
    there = launch(make().provisioner(), OTHER)
    plaincalls.terminate(make(regions=()).provisioner(), [there.id])  # no error, and no effect
    assert cloud.alive == [there.id]
    refused = [call.error for call in cloud.faults.calls if call.action == "TerminateInstances"]
    assert refused == ["InvalidInstanceID.NotFound"]


def test_a_machine_of_the_other_region_is_told_where_the_bucket_and_the_logs_are(make):
    assert make().boot_profile().environment == {"AWS_REGION": HOME, "AWS_DEFAULT_REGION": HOME}
    assert make().pinned_options()["region"] == HOME


@pytest.mark.full
def test_a_drill_takes_a_machine_where_it_is(cloud, make):
    cloud.client("iam").create_role(RoleName="cloudspot-drill", AssumeRolePolicyDocument="{}")
    provider = make()
    there = launch(provider.provisioner(), OTHER)
    plaincalls.preempt(make(), there.id)
    assert cloud.host.reclaimed == [(there.id, 120.0)]


@pytest.mark.full
def test_the_check_tells_of_each_region(make):
    found = {one.name: one for one in plaincalls.check(make())}
    assert found[f"{HOME}: region"].ok
    assert found[f"{OTHER}: offers"].ok, found
    assert found[f"{OTHER}: launch, spot"].detail.startswith("g5.xlarge in us-west-2")


@pytest.mark.full
def test_a_region_that_does_not_sell_a_named_type_is_named(make):
    provider = make(regions=(HOME, "ap-south-2"), instance_types=("g5.xlarge",))
    with pytest.raises(SpecError, match=r'instance_types: ap-south-2 has no "g5.xlarge"'):
        plaincalls.offers(provider.provisioner(), Resources())


def test_what_names_things_of_one_region_is_meant_for_it():
    options = AwsOptions(
        region=HOME,
        regions=(HOME, OTHER),
        zones=("us-east-1a", "us-west-2b"),
        subnets=("us-east-1/subnet-0123456789abcdef0", "us-west-2/subnet-0123456789abcdef1"),
        security_groups=("us-east-1/sg-0123456789abcdef0", "us-west-2/sg-0123456789abcdef1"),
        on_demand_prices={"g5.xlarge": 1.0, "us-west-2/g5.xlarge": 2.0},
    )
    AwsProvider(options)
    assert options_in(OTHER, options) == AwsOptions(
        region=OTHER,
        zones=("us-west-2b",),
        subnets=("subnet-0123456789abcdef1",),
        security_groups=("sg-0123456789abcdef1",),
        on_demand_prices={"g5.xlarge": 2.0},
    )
    assert options_in(HOME, options).on_demand_prices == {"g5.xlarge": 1.0}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"regions": ("us-east-1", "us-east-1")}, 'regions: names "us-east-1" twice'),
        ({"zones": ("us-east-1a",)}, "zones: none is in us-west-2; name one for each region"),
        ({"zones": ("eu-west-1a",)}, 'zones: "eu-west-1a" is not in region us-east-1 or us-west-2'),
        ({"image": BARE_IMAGE_ID}, "image: an ami-... is in one region"),
        ({"subnets": ("subnet-0123456789abcdef0",)}, 'subnets: "subnet-0123456789abcdef0" is in none'),
        ({"security_groups": ("us-east-1/sg-0123456789abcdef0",)}, "security_groups: none is in us-west-2"),
        (
            {"regions": (), "subnets": ("us-east-1/subnet-0123456789abcdef0",)},
            'subnets: "us-east-1/subnet-0123456789abcdef0" names a region',
        ),
    ],
)
def test_what_is_of_no_region_or_of_one_only_is_refused(make, table, message):
    with pytest.raises(SpecError) as error:
        make(**table)
    assert str(error.value).startswith(f"providers.aws.{message}")


@pytest.mark.full
def test_an_offer_tells_what_a_gib_to_the_jobs_own_region_costs(make):
    found = {
        one.region: one.transfer_price_per_gib for one in plaincalls.offers(make().provisioner(), Resources())
    }
    assert found == {HOME: 0.0, OTHER: 0.02}
    (alone,) = {
        one.transfer_price_per_gib
        for one in plaincalls.offers(make(regions=(OTHER,)).provisioner(), Resources())
    }
    assert alone == 0.02


@pytest.mark.parametrize(
    ("region", "home", "usd"),
    [
        (HOME, HOME, 0.0),
        ("eu-west-1", "us-east-1", 0.02),
        # Either direction may be the dearer one.
        ("ap-northeast-1", "us-east-1", 0.10),
        ("us-east-1", "ap-northeast-1", 0.10),
        ("us-gov-west-1", "us-gov-east-1", 0.15),
        ("sa-east-1", "us-east-1", 0.15),
        ("xx-new-1", "us-east-1", 0.15),
    ],
)
def test_what_is_not_known_is_taken_to_be_dear(region, home, usd):
    assert transfer_price(region, home) == usd
