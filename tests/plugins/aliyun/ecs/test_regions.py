"""A job whose machines may be in two regions of the emulated ECS."""

import pytest
from support.worlds.groups import group_of

from cloudspot.errors import AuthError, SpecError, TransientError
from cloudspot.model import Market, Resources
from cloudspot.testing import plaincalls
from cloudspot_aliyun.options import AliyunOptions, options_in
from cloudspot_aliyun.pricing import transfer_price
from cloudspot_aliyun.provider import AliyunProvider

HOME, OTHER = "cn-hangzhou", "cn-beijing"


@pytest.fixture
def make(cloud):
    """``make(**options)``: a provider of both regions."""

    def make(**options):
        wanted = {"region": HOME, "regions": (HOME, OTHER), "instance_types": ("ecs.g7.large",)}
        return AliyunProvider(AliyunOptions(**{**wanted, **options}))

    return make


def launch(provisioner, region, market="spot"):
    offer = next(
        one
        for one in plaincalls.offers(provisioner, Resources())
        if one.zone.startswith(region) and one.market is Market(market)
    )
    (machine,) = plaincalls.create(provisioner, provisioner.render(group_of(offer)), token=f"token-{region}")
    return machine


def test_offers_are_in_both_each_with_its_own_network(make):
    offers = plaincalls.offers(make().provisioner(), Resources())
    assert {one.region for one in offers} == {HOME, OTHER}
    assert all(one.zone.startswith(one.network) and one.network == one.region for one in offers)
    switches = {one.details["vswitch"] for one in offers}
    assert {name for name in switches if "cnbeijing" in name}
    assert len(switches) == len({one.zone for one in offers})


@pytest.mark.full
def test_a_machine_of_the_other_region_is_made_listed_tagged_read_and_ended_there(cloud, make):
    provisioner = make().provisioner()
    at_home, there = launch(provisioner, HOME), launch(provisioner, OTHER)
    assert [one.metadata["region-id"] for one in cloud.host.machines.values()] == [HOME, OTHER]
    assert {one.id for one in plaincalls.instances(provisioner, job_id=there.job_id)} == {
        at_home.id,
        there.id,
    }
    assert {one.id for one in plaincalls.instances(make().provisioner())} == {at_home.id, there.id}
    provisioner.announce([at_home, there], {"MASTER_ADDR": "10.0.0.1"})
    assert [one.tags["MASTER_ADDR"] for one in cloud.ecs.machines.by_id.values()] == ["10.0.0.1"] * 2
    provisioner.console(there)
    plaincalls.terminate(provisioner, [there.id])
    assert cloud.alive == [at_home.id]
    ended = {one.id: one.state.value for one in plaincalls.instances(provisioner)}
    assert ended == {at_home.id: "running", there.id: "ended"}


@pytest.mark.full
def test_who_has_listed_nothing_ends_machines_wherever_they_are(cloud, make):
    ids = [launch(make().provisioner(), region).id for region in (HOME, OTHER)]
    plaincalls.terminate(make().provisioner(), [*ids, "i-bp1unknown0000000000"])
    assert cloud.alive == []


def test_another_regions_id_is_not_found(cloud, make):
    there = launch(make().provisioner(), OTHER)
    plaincalls.terminate(make(regions=()).provisioner(), [there.id])  # no error, and no effect
    assert cloud.alive == [there.id]
    refused = [call.error for call in cloud.faults.calls if call.action == "DeleteInstances"]
    assert set(refused) == {"InvalidInstanceId.NotFound"}


@pytest.mark.full
def test_a_region_that_does_not_answer_leaves_no_listing(cloud, make):
    provisioner = make().provisioner()
    launch(provisioner, OTHER)
    plaincalls.instances(provisioner)
    cloud.faults.denied.add("ecs:DescribeInstances")
    with pytest.raises(AuthError):
        plaincalls.instances(provisioner)
    cloud.faults.denied.clear()
    cloud.faults.inject("DescribeInstances", "ServiceUnavailable", status=503, times=3)
    with pytest.raises(TransientError):
        plaincalls.instances(provisioner)
    assert len(plaincalls.instances(provisioner)) == 1


def test_the_accounts_own_image_is_in_its_region_only(make):
    provider = make(image_family="cloudspot-bare")
    with pytest.raises(SpecError, match='image_family: there is no "cloudspot-bare" in cn-beijing'):
        plaincalls.offers(provider.provisioner(), Resources())


def test_a_machine_of_the_other_region_is_told_where_the_bucket_is_and_ends_itself_where_it_is(make):
    profile = make().boot_profile()
    assert profile.environment == {"ALIBABA_CLOUD_REGION_ID": HOME}
    assert "region-id" in profile.end_code
    assert HOME not in profile.end_code


@pytest.mark.full
def test_the_check_tells_of_each_region(make):
    found = {one.name: one for one in plaincalls.check(make())}
    assert found[f"{HOME}: region"].ok
    assert found[f"{OTHER}: launch, spot"].detail.startswith("ecs.g7.large in cn-beijing")


def test_what_names_things_of_one_region_is_meant_for_it():
    options = AliyunOptions(
        region=HOME,
        regions=(HOME, OTHER),
        vswitches=("cn-hangzhou/vsw-bp1234567890abcdefgh", "cn-beijing/vsw-2ze34567890abcdefgh"),
        security_groups=("cn-hangzhou/sg-bp1234567890abcdefgh", "cn-beijing/sg-2ze34567890abcdefgh"),
        on_demand_prices={"ecs.g7.large": 1.0, "cn-beijing/ecs.g7.large": 2.0},
    )
    AliyunProvider(options)
    assert options_in(OTHER, options) == AliyunOptions(
        region=OTHER,
        vswitches=("vsw-2ze34567890abcdefgh",),
        security_groups=("sg-2ze34567890abcdefgh",),
        on_demand_prices={"ecs.g7.large": 2.0},
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"zones": ("cn-hangzhou-i",)}, "zones: none is in cn-beijing; name one for each region"),
        ({"image": "m-bp1cloudspotbare0001"}, "image: an image is in one region"),
        ({"deployment_set": "ds-bp1234567890abcdefgh"}, "deployment_set: a set is in one region"),
        ({"vswitches": ("vsw-bp1234567890abcdefgh",)}, 'vswitches: "vsw-bp1234567890abcdefgh" is in none'),
        (
            {"security_groups": tuple(f"{r}/sg-bp123456789{i}" for r in (HOME, OTHER) for i in range(6))},
            "security_groups: a machine has at most 5, got 6",
        ),
    ],
)
def test_what_is_of_no_region_or_of_one_only_is_refused(make, table, message):
    with pytest.raises(SpecError) as error:
        make(**table)
    assert str(error.value).startswith(f"providers.aliyun.{message}")


def test_an_offer_tells_what_a_gib_to_the_jobs_own_region_costs(make):
    offers = plaincalls.offers(make().provisioner(), Resources())
    found = {one.region: one.transfer_price_per_gib for one in offers}
    assert found == {HOME: 0.0, OTHER: pytest.approx(1.2)}
    assert {one.currency for one in offers} == {"CNY"}


@pytest.mark.parametrize(
    ("region", "home", "currency", "price"),
    [
        (HOME, HOME, "CNY", 0.0),
        ("ap-southeast-1", "us-west-1", "USD", 0.16),
        ("me-east-1", "us-west-1", "USD", 0.45),
        ("us-west-1", "me-east-1", "CNY", 0.45 * 7.5),
    ],
)
def test_what_differs_by_region_is_taken_to_be_dear(region, home, currency, price):
    assert transfer_price(region, home, currency) == price


def test_machines_without_a_way_to_a_bucket_elsewhere_are_warned_of_on_submission(make, caplog):
    make(regions=()).pinned_options()
    make(regions=(HOME,)).pinned_options()
    make(public_bandwidth=100).pinned_options()
    assert caplog.messages == []
    make().pinned_options()
    (said,) = caplog.messages
    assert said.startswith("machines in cn-beijing have no public address")
    assert "a bucket in cn-hangzhou only through a NAT gateway or CEN" in said
