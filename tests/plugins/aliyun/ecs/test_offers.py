import pytest

from cloudspot.errors import AuthError, SpecError, TransientError
from cloudspot.model import Market, Resources
from cloudspot.plugin.cloudprovider import FAILURE_SECONDS
from cloudspot.testing import plaincalls
from cloudspot_aliyun.offers import STOCK_SECONDS
from cloudspot_aliyun_sandbox.market import KINDS, spot_price

GIB = 2**30
A10 = "ecs.gn7i-c8g1.2xlarge"
HANGZHOU = ("cn-hangzhou-h", "cn-hangzhou-i", "cn-hangzhou-j")


DISK = 0.14
"""CNY an hour of the image's size and 50 GiB as cloud_essd."""


def offers(cloud, resources=None, **options):
    return plaincalls.offers(cloud.provider(**options).provisioner(), resources or Resources())


def failure(cloud, resources=None, **options):
    with pytest.raises(SpecError) as error:
        offers(cloud, resources, **options)
    return str(error.value)


# --- types and prices -----------------------------------------------------------------------------


@pytest.mark.full
def test_without_a_table_the_cheapest_types_that_fit_are_offered_in_every_zone(cloud):
    found = offers(cloud, Resources(cpus=2, memory_bytes=2 * 2**30))
    assert sorted({one.instance_type for one in found}) == [
        "ecs.c7.large",
        "ecs.c7.xlarge",
        "ecs.g7.large",
        "ecs.u1-c1m4.large",
    ]
    assert {one.zone for one in found} == set(HANGZHOU)
    assert len(found) == 4 * 3 * 2


@pytest.mark.full
def test_a_job_that_asks_for_no_accelerator_gets_none_and_nothing_that_is_throttled(cloud):
    kinds = [KINDS[one.instance_type] for one in offers(cloud)]
    assert {kind.num_gpus for kind in kinds} == {0}
    assert {kind.architecture for kind in kinds} == {"X86"}
    assert {kind.level for kind in kinds} == {"EnterpriseLevel"}
    assert min(kind.memory_gib for kind in kinds) >= 8


@pytest.mark.parametrize("name", ["A10", "nvidia a10", "NVIDIA-A10".replace("-", " ")])
def test_an_accelerator_is_known_by_the_name_that_people_use(cloud, name):
    found = offers(cloud, Resources(accelerator=name, accelerator_count=1))
    assert len({one.instance_type for one in found}) == 4
    assert {KINDS[one.instance_type].gpu for one in found} == {"NVIDIA A10"}
    assert {one.zone for one in found} == set(HANGZHOU[1:])


@pytest.mark.parametrize(
    ("options", "is_bare"),
    [
        ({}, True),
        ({"image": "ubuntu_24_04_x64_20G_alibase_20261101.vhd"}, False),
        ({"image_family": "acs:ubuntu_24_04_x64"}, False),
    ],
)
def test_the_bare_default_image_is_warned_of(cloud, options, is_bare):
    """It was told of only where an accelerator was asked for, though it has no PyTorch either."""
    lacks = cloud.provider(**options).boot_profile().lacks
    assert bool(lacks) is is_bare
    if is_bare:
        assert "has neither PyTorch nor a GPU driver" in lacks
        assert "pip install torch" in lacks
        assert "ubuntu-drivers install --gpgpu" in lacks


def test_two_accelerators_are_on_one_machine(cloud):
    found = offers(cloud, Resources(accelerator="A10", accelerator_count=2))
    assert {KINDS[one.instance_type].num_gpus for one in found} == {2, 4, 8}


def test_nothing_fits_and_nothing_is_offered(cloud):
    assert offers(cloud, Resources(accelerator="B200", accelerator_count=8)) == ()


def test_an_offer_holds_the_newest_price_and_what_rendering_needs(cloud):
    found = {(one.zone, one.market): one for one in offers(cloud, instance_types=(A10,))}
    one = found["cn-hangzhou-i", Market.SPOT]
    assert one.price_per_hour == round(spot_price(KINDS[A10], "cn-hangzhou-i") + DISK, 6)
    assert (one.on_demand_price_per_hour, one.currency) == (9.5 + DISK, "CNY")
    (group,) = cloud.place.groups
    assert one.details == {
        "vswitch": "vsw-bp1cnhangzhou0002",
        "security_groups": group,
        "release_rate": "5-10%",
    }
    assert (one.region, one.image_gib, one.extras_per_hour) == ("cn-hangzhou", 20, 0.14)
    assert one.image == "ubuntu_24_04_x64_20G_alibase_20261101.vhd"
    assert one.price_text == "machine 2.39, disk 0.14"
    assert "release_rate" not in found["cn-hangzhou-i", Market.ON_DEMAND].details
    # The history tells the pay-as-you-go price as well; only the disk's is asked for, once.
    (asked,) = cloud.calls("DescribePrice")
    assert (asked["SystemDisk.Category"], asked["SystemDisk.Size"]) == ("cloud_essd", "70")


def test_the_price_of_a_spot_machine_is_the_newest_of_its_zone_and_never_above_the_limit(cloud):
    provisioner = cloud.provider(instance_types=(A10,), max_price=5.0).provisioner()
    first = cloud.offer(provisioner, zone="cn-hangzhou-i")
    assert provisioner.current_price(first) == first.price_per_hour
    prices = cloud.ecs.catalogue.prices
    prices[A10, "cn-hangzhou-i"] = 3.2
    assert provisioner.current_price(first) == first.price_per_hour  # asked for a moment ago
    cloud.monotonic += STOCK_SECONDS
    assert provisioner.current_price(first) == 3.34
    cloud.monotonic += STOCK_SECONDS
    prices[A10, "cn-hangzhou-i"] = 7.5
    assert provisioner.current_price(first) == 5.14
    cloud.monotonic += STOCK_SECONDS
    cloud.ecs.catalogue.silent.add((A10, "cn-hangzhou-i"))
    prices[A10, "cn-hangzhou-i"] = 1.5
    assert provisioner.current_price(first) == 1.64


def test_a_price_that_ecs_does_not_tell_now_is_asked_for_again(cloud):
    provisioner = cloud.provider(instance_types=(A10,)).provisioner()
    first = cloud.offer(provisioner)
    cloud.monotonic += STOCK_SECONDS
    cloud.faults.inject("DescribeSpotPriceHistory", "InvalidParameter", status=400, times=1)
    with pytest.raises(TransientError, match="reading spot prices"):
        provisioner.current_price(first)
    assert provisioner.current_price(first) == first.price_per_hour


def test_a_protected_hour_has_a_price_of_its_own(cloud):
    found = offers(cloud, instance_types=(A10,), zones=("cn-hangzhou-i",), protected_hour=True)
    prices = {one.market: one.price_per_hour for one in found}
    machine = spot_price(KINDS[A10], "cn-hangzhou-i", is_protected=True)
    assert prices[Market.SPOT] == round(machine + DISK, 6)
    assert {call["SpotDuration"] for call in cloud.calls("DescribeSpotPriceHistory")} == {"1"}


@pytest.mark.full
def test_a_type_that_is_shared_or_has_credits_is_bought_only_by_its_name(cloud):
    slow = {"ecs.s6-c1m4.large", "ecs.t6-c1m4.large"}
    small = Resources(cpus=2, memory_bytes=8 * 2**30)
    assert not slow & {one.instance_type for one in offers(cloud, small)}
    assert {one.instance_type for one in offers(cloud, small, instance_types=sorted(slow))} == slow


def test_a_type_without_a_spot_market_is_offered_by_pay_as_you_go_at_its_list_price(cloud):
    (one, *_) = found = offers(cloud, instance_types=("ecs.t6-c1m4.large",))
    assert {one.market for one in found} == {Market.ON_DEMAND}
    assert one.price_text == "machine 0.31, disk 0.14"
    assert one.price_per_hour == 0.45


@pytest.mark.full
def test_a_zone_of_which_the_history_is_silent_is_asked_for_its_price(cloud):
    cloud.ecs.catalogue.silent.add((A10, "cn-hangzhou-i"))
    found = {(one.zone, one.market): one for one in offers(cloud, instance_types=(A10,))}
    one = found["cn-hangzhou-i", Market.SPOT]
    assert one.price_per_hour == round(spot_price(KINDS[A10], "cn-hangzhou-i") + DISK, 6)
    assert one.on_demand_price_per_hour == 9.5 + DISK
    (asked,) = [call for call in cloud.calls("DescribePrice") if "ZoneId" in call]
    assert (asked["ZoneId"], asked["SpotStrategy"]) == ("cn-hangzhou-i", "SpotAsPriceGo")
    cloud.faults.denied = {"ecs:DescribePrice"}
    assert len(offers(cloud, instance_types=(A10,), on_demand_prices={A10: 9.5})) == 3


def test_a_given_price_is_asked_nobody(cloud):
    cloud.faults.denied = {"ecs:DescribePrice"}
    given = {"instance_types": ("ecs.t6-c1m4.large",)}
    (one, *_) = offers(cloud, **given, on_demand_prices={"ecs.t6-c1m4.large": 0.05}, currency="USD")
    assert (one.price_per_hour, one.currency) == (0.05, "USD")
    assert one.price_text == "machine 0.05, disk not counted"
    assert cloud.faults.count("DescribePrice") == 0
    with pytest.raises(
        AuthError, match=r"alternatively, set the price in providers\.aliyun\.on_demand_prices"
    ):
        offers(cloud, **given)


@pytest.mark.full
def test_a_type_that_has_no_price_is_named_where_it_was_asked_for_and_left_out_where_not(cloud):
    cloud.faults.inject("DescribePrice", "PriceNotFound", status=403, times=2)
    with pytest.raises(
        SpecError, match=r"^providers\.aliyun\.on_demand_prices: .*PriceNotFound.*give it here$"
    ):
        offers(cloud, instance_types=("ecs.t6-c1m4.large",))
    unpriced = offers(cloud, resources=Resources(cpus=2))[0].instance_type
    for zone in ("cn-hangzhou-h", "cn-hangzhou-i", "cn-hangzhou-j"):
        cloud.ecs.catalogue.silent.add((unpriced, zone))
    cloud.faults.inject("DescribePrice", "PriceNotFound", status=403, times=9)
    found = offers(cloud, resources=Resources(cpus=2))
    assert found
    assert unpriced not in {one.instance_type for one in found}


def test_a_price_is_asked_for_with_the_disk_that_the_machines_have(cloud):
    offers(cloud, instance_types=("ecs.t6-c1m4.large",), disk_type="cloud_auto")
    asked = cloud.calls("DescribePrice")
    assert [one["SystemDisk.Category"] for one in asked] == ["cloud_auto"] * 2


@pytest.mark.parametrize(
    ("options", "disk"),
    [
        ({"disk": 100 * GIB}, "0.2"),
        ({"disk": 100 * GIB, "disk_type": "cloud_auto"}, "0.15"),
        ({"disk": 1000 * GIB, "disk_performance": "PL2"}, "4"),
        ({"disk": 100 * GIB, "public_bandwidth": 10}, "0.2"),  # an address is billed by its traffic
    ],
)
def test_a_price_counts_the_disk_that_the_machines_have(cloud, options, disk):
    found = offers(cloud, instance_types=(A10,), zones=("cn-hangzhou-i",), **options)
    assert {one.price_text for one in found} == {f"machine 2.39, disk {disk}", f"machine 9.5, disk {disk}"}
    assert {one.price_per_hour for one in found} == {round(each + float(disk), 6) for each in (2.39, 9.5)}


def test_a_disk_whose_price_may_not_be_asked_for_is_left_out_and_asked_for_after_a_minute(cloud):
    provisioner = cloud.provider(instance_types=(A10,), zones=("cn-hangzhou-i",)).provisioner()
    cloud.faults.denied = {"ecs:DescribePrice"}
    first = cloud.offer(provisioner)
    assert (first.price_per_hour, first.price_text) == (2.39, "machine 2.39, disk not counted")
    cloud.faults.denied = set()
    assert cloud.offer(provisioner).price_text == "machine 2.39, disk not counted"
    cloud.monotonic += FAILURE_SECONDS
    assert cloud.offer(provisioner).price_text == "machine 2.39, disk 0.14"


def test_spot_advice_that_may_not_be_read_is_done_without(cloud):
    cloud.faults.denied = {"ecs:DescribeSpotAdvice"}
    assert {"release_rate" in one.details for one in offers(cloud, instance_types=(A10,))} == {False}


# --- stock ----------------------------------------------------------------------------------------


def test_what_is_sold_out_is_left_out_while_there_is_another(cloud):
    cloud.faults.capacity["cn-hangzhou-i", A10, "spot"] = 0
    found = offers(cloud, instance_types=(A10,))
    assert sorted((one.market.value, one.zone) for one in found) == [
        ("on-demand", "cn-hangzhou-i"),
        ("on-demand", "cn-hangzhou-j"),
        ("spot", "cn-hangzhou-j"),
    ]


def test_where_all_is_sold_out_all_is_offered_so_that_it_is_tried_again(cloud):
    cloud.faults.capacity["*", "*", "spot"] = 0
    found = offers(cloud, instance_types=(A10,))
    assert len([one for one in found if one.market is Market.SPOT]) == 2


@pytest.mark.full
def test_types_that_are_to_be_had_come_before_those_that_are_not(cloud):
    cloud.faults.capacity["*", "ecs.c7.large", "*"] = 0
    found = offers(cloud, Resources(cpus=2, memory_bytes=2 * 2**30))
    assert "ecs.c7.large" not in {one.instance_type for one in found}


def test_stock_is_asked_for_again_after_a_minute_and_facts_are_not(cloud):
    provisioner = cloud.provider(instance_types=(A10,)).provisioner()
    plaincalls.offers(provisioner, Resources())
    cloud.faults.calls.clear()
    plaincalls.offers(provisioner, Resources())
    assert cloud.faults.calls == []
    cloud.monotonic += STOCK_SECONDS
    plaincalls.offers(provisioner, Resources())
    assert set(cloud.faults.actions()) == {"DescribeAvailableResource", "DescribeSpotPriceHistory"}


# --- networks -------------------------------------------------------------------------------------


def test_tagged_vswitches_and_groups_come_before_the_default_ones(cloud):
    own = cloud.place.add_vswitch(
        "cn-hangzhou-i", "192.168.0.0/24", vpc="vpc-bp1own0001", tags={"cloudspot": ""}
    )
    cloud.place.add_group(vpc="vpc-bp1own0001")
    group = cloud.place.add_group(vpc="vpc-bp1own0001", tags={"cloudspot": "yes"})
    found = offers(cloud, instance_types=(A10,))
    assert {one.zone for one in found} == {"cn-hangzhou-i"}
    assert {(one.details["vswitch"], one.details["security_groups"]) for one in found} == {(own, group)}


def test_the_only_vpc_is_used_where_none_is_the_default(cloud):
    for one in cloud.place.vswitches.values():
        one.is_default = False
    assert {one.zone for one in offers(cloud, instance_types=(A10,))} == set(HANGZHOU[1:])


def test_a_group_that_a_service_manages_is_not_meant(cloud):
    cloud.place.add_group(vpc=cloud.place.vpc, is_managed=True)
    assert len(offers(cloud, instance_types=(A10,))) == 4


def test_no_vswitch_or_several_vpcs_are_told_in_a_line(cloud):
    for one in cloud.place.vswitches.values():
        one.is_default = False
    cloud.place.add_vswitch("cn-hangzhou-i", "192.168.0.0/24", vpc="vpc-bp1own0001")
    assert failure(cloud) == (
        "providers.aliyun.vswitches: the vSwitches found are in 2 VPCs (vpc-bp1default00000001, "
        'vpc-bp1own0001); name them, or tag those to use with "cloudspot"'
    )
    cloud.place.vswitches.clear()
    assert failure(cloud) == (
        "providers.aliyun.vswitches: missing; cn-hangzhou has none: make a VPC with one in each zone"
    )


def test_no_security_group_or_several_are_told_in_a_line(cloud):
    cloud.place.add_group(vpc=cloud.place.vpc)
    assert failure(cloud) == (
        "providers.aliyun.security_groups: missing; 2 are in vpc-bp1default00000001; name them, or tag those "
        'to use with "cloudspot"'
    )
    cloud.place.groups.clear()
    assert failure(cloud).startswith("providers.aliyun.security_groups: missing; none is in vpc-")


# --- what does not exist --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"region": "cn-hangzou"}, 'region: there is no region "cn-hangzou"; did you mean'),
        ({"image": "m-bp1nobodys"}, 'image: there is no "m-bp1nobodys" in cn-hangzhou, or none that'),
        ({"image_family": "acs:minix"}, 'image_family: there is no "acs:minix" in cn-hangzhou'),
        (
            {"instance_types": ("ecs.gn7i-c8g1.2xlage",)},
            'instance_types: cn-hangzhou has no "ecs.gn7i-c8g1.2xlage"; did you mean "ecs.gn7i-c8g1.2xlarge"?',
        ),
        ({"vswitches": ("vsw-bp1nobodys00",)}, 'vswitches: there is no "vsw-bp1nobodys00" in cn-hangzhou'),
        (
            {"security_groups": ("sg-bp1nobodys00",)},
            'security_groups: there is no "sg-bp1nobodys00" in cn-hangzhou',
        ),
        ({"zones": ("cn-hangzhou-z",)}, 'zones: no vSwitch in "cn-hangzhou-z"; there are cn-hangzhou-h'),
        ({"key_pair": "nobodys"}, 'key_pair: there is no "nobodys" in cn-hangzhou'),
        (
            {"deployment_set": "ds-bp1nobodys00"},
            'deployment_set: there is no "ds-bp1nobodys00" in cn-hangzhou',
        ),
        ({"role": "nobodys"}, 'role: there is no "nobodys"; cloudspot setup aliyun makes it'),
        (
            {"instance_types": ("ecs.g8y.large",)},
            'instance_types: "ecs.g8y.large" is arm64, but the image is x86_64',
        ),
    ],
)
def test_what_does_not_exist_is_named_by_its_option_before_anything_is_launched(cloud, options, message):
    assert failure(cloud, **options).startswith(f"providers.aliyun.{message}")
    assert cloud.faults.count("RunInstances") == 0


def test_a_role_that_no_machine_can_have_is_refused(cloud):
    cloud.account.roles["functions"] = "fc.aliyuncs.com"
    assert failure(cloud, role="functions") == (
        'providers.aliyun.role: "functions" does not trust ecs.aliyuncs.com, so no machine can have it'
    )


def test_a_role_that_may_not_be_looked_at_is_left_to_the_launch(cloud):
    cloud.faults.denied = {"ram:GetRole"}
    assert len(offers(cloud, instance_types=(A10,), role="unseen")) == 4


def test_an_image_without_cloud_init_is_refused(cloud):
    cloud.account.images["ubuntu_24_04_x64_20G_alibase_20261101.vhd"]["IsSupportCloudinit"] = False
    assert "does not run cloud-init" in failure(cloud)


def test_a_listing_that_leads_back_to_a_page_ends_with_an_error(cloud):
    answer = cloud.ecs._handlers["DescribeInstanceTypes"]
    tokens = iter(["8", "16"] * 100)
    cloud.ecs._handlers["DescribeInstanceTypes"] = lambda *given: {
        **answer(*given),
        "NextToken": next(tokens),
    }
    with pytest.raises(TransientError, match="DescribeInstanceTypes returned the same page twice"):
        offers(cloud)
    assert cloud.faults.count("DescribeInstanceTypes") == 3


def test_two_vswitches_of_one_zone_and_a_group_of_another_vpc_are_refused(cloud):
    second = cloud.place.add_vswitch("cn-hangzhou-i", "10.77.250.0/24", vpc=cloud.place.vpc)
    assert failure(cloud, vswitches=("vsw-bp1cnhangzhou0002", second)) == (
        f"providers.aliyun.vswitches: vsw-bp1cnhangzhou0002 and {second} are both in cn-hangzhou-i"
    )
    group = cloud.place.add_group(vpc="vpc-bp1own0001")
    assert failure(cloud, security_groups=(group,)) == (
        f'providers.aliyun.security_groups: "{group}" is in vpc-bp1own0001, the vSwitches are in '
        "vpc-bp1default00000001"
    )


def test_a_right_that_is_missing_is_an_error_of_rights(cloud):
    cloud.faults.denied = {"ecs:DescribeAvailableResource"}
    with pytest.raises(AuthError, match="asking where there are machines: access denied"):
        offers(cloud)


def test_a_call_that_fails_is_made_three_times(cloud):
    cloud.faults.inject("DescribeRegions", "ServiceUnavailable", status=503, times=2)
    assert len(offers(cloud, instance_types=(A10,))) == 4
    cloud.faults.inject("DescribeRegions", "Throttling.User", status=400, times=3)
    with pytest.raises(TransientError, match="listing the regions"):
        offers(cloud, instance_types=(A10,))


def test_a_region_is_used_though_the_one_that_knows_all_of_them_does_not_answer(cloud):
    cloud.faults.inject("DescribeRegions", "ServiceUnavailable", status=503, times=3)
    found = offers(cloud, instance_types=(A10,), region="cn-beijing")
    assert {one.zone for one in found} == {"cn-beijing-i", "cn-beijing-l"}
