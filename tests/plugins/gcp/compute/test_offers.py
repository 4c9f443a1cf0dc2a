import copy
import math

import msgspec
import pytest
from support.worlds.groups import group_of

from cloudspot.errors import AuthError, CloudspotError, SpecError, TransientError
from cloudspot.model import Billing, Market, Offer, Resources
from cloudspot.plugin.answercache import FACTS_SECONDS
from cloudspot.plugin.cloudprovider import FAILURE_SECONDS
from cloudspot.testing import plaincalls
from cloudspot_gcp.lookups import NUM_TRIES, is_called
from cloudspot_gcp.offers import GcpOfferFinder
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.pricing import transfer_price
from cloudspot_gcp_sandbox import prices

GIB = 2**30
SKUS = "cloudbilling.services.skus.list"
CORE, RAM = 0.0316, 0.0042
DISK = 100 * 0.1 / 730
"""USD an hour of the image's size and 50 GiB as pd-balanced."""
ADDRESS, SPOT_ADDRESS = 0.005, 0.0025
NUM_PAGES = math.ceil(len(prices.skus()) / 100)
"""Of a hundred items each."""


def offers(cloud, resources=None, **options):
    return plaincalls.offers(cloud.provider(**options).provisioner(), resources or Resources())


def test_a_type_is_offered_in_each_region_on_both_markets_with_its_prices(cloud):
    found = offers(cloud, regions=("us-central1", "europe-west4"))
    assert {(one.zone, one.market) for one in found} == {
        (region, market) for region in ("us-central1", "europe-west4") for market in Market
    }
    on_demand = {one.zone: one.on_demand_price_per_hour for one in found}
    assert on_demand["us-central1"] == pytest.approx(4 * CORE + 16 * RAM + DISK + ADDRESS, abs=2e-6)
    dearer = 1.1 * (4 * CORE + 16 * RAM + DISK) + ADDRESS
    assert on_demand["europe-west4"] == pytest.approx(dearer, abs=2e-6)
    for one in found:
        if one.market is Market.SPOT:
            disk = DISK * (1.1 if one.zone == "europe-west4" else 1.0)
            machine = one.on_demand_price_per_hour - disk - ADDRESS
            assert 0.25 < (one.price_per_hour - disk - SPOT_ADDRESS) / machine < 0.41
        else:
            assert one.price_per_hour == one.on_demand_price_per_hour
    assert {one.currency for one in found} == {"USD"}
    assert {one.billing for one in found} == {Billing(minimum_seconds=60)}


def test_what_rendering_needs_comes_with_the_offer_and_survives_the_journal(cloud):
    offer = offers(cloud)[0]
    assert offer.details == {
        "project": "my-project-123",
        "service_account": "cloudspot-node@my-project-123.iam.gserviceaccount.com",
        "zones": "us-central1-a,us-central1-b,us-central1-c,us-central1-f",
        "price_source": "Google's price list",
    }
    assert (offer.region, offer.image_gib, offer.extras_per_hour) == ("us-central1", 50, 0.016199)
    assert offer.price_text == "machine 0.069354, disk 0.013699, address 0.0025"
    assert offer.image == (
        "projects/deeplearning-platform-release/global/images/"
        "pytorch-2-7-cu128-ubuntu-2204-nvidia-570-v20261001"
    )
    assert msgspec.json.decode(msgspec.json.encode(offer), type=Offer) == offer


def test_only_zones_that_have_the_type_are_asked_for(cloud):
    offer = offers(cloud, machine_types=("g2-standard-8",))[0]
    assert offer.details["zones"] == "us-central1-a,us-central1-b,us-central1-c"
    assert offer.details["other_zones"] == "us-central1-f"
    assert offer.details["has_accelerator"] == "nvidia-l4"


def test_a_gib_costs_nothing_to_the_first_region_and_more_the_farther_away(cloud):
    found = offers(cloud, regions=("us-central1", "us-east1", "europe-west4"))
    assert {(one.zone, one.transfer_price_per_gib) for one in found} == {
        ("us-central1", 0.0),
        ("us-east1", 0.02),
        ("europe-west4", 0.05),
    }
    assert {one.network for one in found} == {""}, "a VPC network of Google's spans all regions"
    assert transfer_price("asia-east1", "us-central1") == 0.10
    assert transfer_price("us-central1", "southamerica-east1") == 0.15


@pytest.mark.full
def test_only_the_zones_of_the_options_are_asked_for_and_their_regions(cloud):
    found = offers(cloud, regions=(), zones=("us-east1-b", "us-central1-a"))
    assert {one.zone: one.details["zones"] for one in found} == {
        "us-east1": "us-east1-b",
        "us-central1": "us-central1-a",
    }


@pytest.mark.parametrize(
    ("resources", "names"),
    [
        (Resources(accelerator="L4", accelerator_count=1), {"g2-standard-4", "g2-standard-8"}),
        (Resources(accelerator="l4", accelerator_count=2), {"g2-standard-24", "g2-standard-48"}),
        (Resources(accelerator="a100-80gb", accelerator_count=1), {"a2-ultragpu-1g"}),
        (
            Resources(accelerator="A100", accelerator_count=1),
            {"a2-highgpu-1g", "a2-highgpu-2g", "a2-ultragpu-1g"},
        ),
        (Resources(accelerator="nvidia-h100-80gb", accelerator_count=8), {"a3-highgpu-8g"}),
        (Resources(accelerator="T4", accelerator_count=3), {"n1-standard-4", "n1-standard-8"}),
        (Resources(accelerator="T4", accelerator_count=5), set()),
        (Resources(accelerator="B9000", accelerator_count=1), set()),
        (Resources(cpus=64, memory_bytes=200 * GIB), {"n2-standard-64"}),
    ],
)
def test_types_are_found_by_what_a_node_must_have(cloud, resources, names):
    found = {one.instance_type for one in offers(cloud, resources, machine_types=())}
    assert names <= found
    assert bool(found) is bool(names)
    assert len(found) <= 4


@pytest.mark.full
def test_a_type_with_shared_processors_is_bought_only_by_its_name(cloud):
    small = Resources(cpus=2, memory_bytes=4 * GIB)
    assert "e2-medium" not in {one.instance_type for one in offers(cloud, small, machine_types=())}
    named = offers(cloud, small, machine_types=("e2-medium",))
    assert {one.instance_type for one in named} == {"e2-medium"}


def test_of_the_types_that_fit_the_cheapest_are_offered(cloud):
    found = offers(cloud, Resources(cpus=4, memory_bytes=16 * GIB), machine_types=())
    by_price = sorted({(one.on_demand_price_per_hour, one.instance_type) for one in found})
    assert by_price[0][1] == "e2-standard-4"
    assert all(not one.instance_type.startswith(("g2", "a2", "t2a", "c4")) for one in found)


def test_a_job_that_asks_for_nothing_gets_small_machines_that_can_train(cloud):
    names = {one.instance_type for one in offers(cloud, machine_types=())}
    assert "e2-standard-2" in names
    assert not names & {"e2-medium", "n1-standard-1", "n2-highcpu-2"}


@pytest.mark.full
def test_an_accelerator_is_attached_to_machines_that_have_none_of_their_own(cloud):
    resources = Resources(accelerator="T4", accelerator_count=2, cpus=8)
    found = offers(cloud, resources, machine_types=(), regions=("us-central1", "us-east1"))
    assert {one.instance_type.partition("-")[0] for one in found} == {"n1"}
    offer = next(one for one in found if one.instance_type == "n1-standard-8" and one.zone == "us-east1")
    assert (offer.details["accelerator"], offer.details["accelerator_count"]) == ("nvidia-tesla-t4", "2")
    assert offer.details["zones"] == "us-east1-c"
    expected = 8 * CORE + 30 * RAM + 2 * 0.35 + DISK + ADDRESS
    assert offer.on_demand_price_per_hour == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(
    ("accelerator", "wanted", "cpus", "attached"),
    [
        ("V100", 1, 8, {"n1-standard-8": "1", "n1-highmem-8": "1", "n1-standard-16": "2"}),
        ("V100", 1, 16, {"n1-highcpu-16": "2", "n1-standard-16": "2", "n1-highmem-16": "2"}),
        ("V100", 1, 33, {"n1-highcpu-64": "8", "n1-standard-64": "8", "n1-highmem-64": "8"}),
        ("P100", 1, 17, {"n1-highcpu-32": "2", "n1-standard-32": "2"}),
        ("P4", 1, 32, {"n1-highcpu-32": "2", "n1-standard-32": "2"}),
        ("T4", 1, 64, {"n1-highcpu-64": "4", "n1-standard-64": "4"}),
    ],
)
def test_a_larger_machine_has_as_many_accelerators_as_compute_engine_wants(
    cloud, accelerator, wanted, cpus, attached
):
    """Source: "GPU machine types", N1 machine series (as of 2026-04-14; checked 2026-11)."""
    resources = Resources(accelerator=accelerator, accelerator_count=wanted, cpus=cpus)
    found = {
        one.instance_type: one.details["accelerator_count"]
        for one in offers(cloud, resources, machine_types=())
    }
    assert attached.items() <= found.items()


def test_four_p100_are_asked_for_only_where_the_machine_may_be_so_large(cloud):
    resources = Resources(accelerator="P100", accelerator_count=4, cpus=96)
    found = offers(cloud, resources, machine_types=("n1-standard-96",), regions=("us-east1",))
    assert {one.details["zones"] for one in found} == {"us-east1-b"}


@pytest.mark.parametrize(
    ("machine_type", "markets"),
    [
        ("a3-highgpu-1g", {Market.SPOT}),
        ("a3-highgpu-4g", {Market.SPOT}),
        ("a3-highgpu-8g", {*Market}),
        ("a3-ultragpu-8g", {Market.SPOT}),
        ("a3-megagpu-8g", {*Market}),
        ("g4-standard-48", {*Market}),
    ],
)
def test_a_machine_is_offered_on_the_markets_where_it_is_sold(cloud, machine_type, markets):
    """Source: "Accelerator-optimized machine family" (as of 2026-04-14; checked 2026-11)."""
    found = offers(
        cloud, machine_types=(machine_type,), disk_type="hyperdisk-balanced", placement_policy="auto"
    )
    assert {one.market for one in found} == markets


@pytest.mark.full
def test_types_that_only_boot_from_hyperdisk_are_not_offered_with_another_disk(cloud):
    resources = Resources(accelerator="H200", accelerator_count=8)
    assert offers(cloud, resources, machine_types=()) == ()
    found = offers(cloud, resources, machine_types=(), disk_type="hyperdisk-balanced")
    assert {one.instance_type for one in found} == {"a3-ultragpu-8g"}
    # Its own vCPUs, memory and GPUs have prices of their own.
    machine = 224 * 0.0291 + 2952 * 0.0025 + 8 * 9.1
    assert found[0].on_demand_price_per_hour == pytest.approx(machine + 0.8 * DISK + ADDRESS, abs=2e-6)
    assert found[0].price_text.endswith("disk 0.010959, disk performance not counted, address 0.0025")


@pytest.mark.full
def test_a_part_of_a_gpu_is_bought_only_by_its_name(cloud):
    resources = Resources(accelerator="RTX-PRO-6000", accelerator_count=1)
    options = {"disk_type": "hyperdisk-balanced"}
    names = {one.instance_type for one in offers(cloud, resources, machine_types=(), **options)}
    assert names == {"g4-standard-48", "g4-standard-96", "g4-standard-192", "g4-standard-384"}
    named = offers(cloud, resources, machine_types=("g4-standard-6",), **options)
    assert {one.instance_type for one in named} == {"g4-standard-6"}


def test_no_machine_is_asked_for_in_an_ai_zone(cloud):
    options = {"disk_type": "hyperdisk-balanced", "on_demand_prices": {"a4-highgpu-8g": 100.0}}
    found = offers(cloud, machine_types=("a4-highgpu-8g",), spot_prices={"a4-highgpu-8g": 40.0}, **options)
    assert [one.details["zones"] for one in found] == ["us-central1-b"]
    assert "us-central1-ai1a" not in found[0].details["other_zones"]


@pytest.mark.full
def test_the_attached_accelerator_is_in_the_request_and_the_machine(cloud):

    provisioner = cloud.provider(machine_types=("n1-standard-8",)).provisioner()
    resources = Resources(accelerator="T4", accelerator_count=1)
    group = group_of(cloud.offer(provisioner, market="on-demand", resources=resources), resources=resources)
    request = provisioner.render(group)
    properties = request.body["bulk_insert"]["instanceProperties"]
    assert properties["guestAccelerators"] == [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}]
    assert properties["scheduling"]["onHostMaintenance"] == "TERMINATE"
    (made,) = plaincalls.create(provisioner, request, token="t")
    (machine,) = cloud.listed().values()
    assert made.zone in {"us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"}
    assert machine.guest_accelerators[0].accelerator_type.endswith("/nvidia-tesla-t4")


@pytest.mark.parametrize(
    ("accelerator", "wanted", "is_it"),
    [
        ("nvidia-tesla-t4", "T4", True),
        ("nvidia-tesla-t4", "nvidia-tesla-t4", True),
        ("nvidia-tesla-a100", "A100", True),
        ("nvidia-a100-80gb", "A100", True),
        ("nvidia-a100-80gb", "A100 80GB", True),
        ("nvidia-tesla-a100", "A100-80GB", False),
        ("nvidia-tesla-p4", "P", False),
        (None, "T4", False),
    ],
)
def test_an_accelerator_is_known_by_what_people_call_it(accelerator, wanted, is_it):
    assert is_called(accelerator, wanted) is is_it


def test_of_the_named_types_those_that_fit_are_offered(cloud):
    found = offers(
        cloud,
        Resources(accelerator="L4", accelerator_count=1),
        machine_types=("n2-standard-4", "g2-standard-8"),
    )
    assert {one.instance_type for one in found} == {"g2-standard-8"}


@pytest.mark.full
def test_types_for_a_placement_policy_can_be_placed_together(cloud):
    names = {one.instance_type for one in offers(cloud, machine_types=(), placement_policy="auto")}
    assert names
    assert not any(name.startswith(("e2", "n1")) for name in names)
    with pytest.raises(SpecError, match='"e2-standard-4" cannot be placed close together; leave it out'):
        offers(cloud, placement_policy="auto", machine_types=("e2-standard-4",))


# --- prices ---------------------------------------------------------------------------------------


def test_prices_of_the_options_stand_in_where_the_list_cannot_be_read(cloud):
    cloud.faults.inject(SKUS, "accessNotConfigured", status=403)
    found = offers(
        cloud,
        regions=("us-central1", "us-east1"),
        on_demand_prices={"n2-standard-4": 0.2, "us-east1/n2-standard-4": 0.21},
        spot_prices={"n2-standard-4": 0.05},
    )
    assert {(one.zone, one.market, one.price_per_hour) for one in found} == {
        ("us-central1", Market.SPOT, 0.05),
        ("us-central1", Market.ON_DEMAND, 0.2),
        ("us-east1", Market.SPOT, 0.05),
        ("us-east1", Market.ON_DEMAND, 0.21),
    }
    assert {one.details["price_source"] for one in found} == {"the job's options"}
    by_price = {one.price_per_hour: one.price_text for one in found}
    assert by_price[0.05] == "machine 0.05, disk not counted, address not counted"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, "machine 0.1936, disk 0.013699, address 0.005"),
        ({"public_ip": False}, "machine 0.1936, disk 0.013699"),
        ({"disk": 73 * GIB, "public_ip": False}, "machine 0.1936, disk 0.01"),
        ({"disk": 73 * GIB, "disk_type": "pd-ssd"}, "machine 0.1936, disk 0.017, address 0.005"),
        ({"disk": 73 * GIB, "disk_type": "pd-standard"}, "machine 0.1936, disk 0.004, address 0.005"),
    ],
)
def test_a_price_counts_the_disk_and_the_external_address(cloud, options, parts):
    (offer,) = [one for one in offers(cloud, **options) if one.market is Market.ON_DEMAND]
    assert offer.price_text == parts
    counted = [float(part.rpartition(" ")[2]) for part in parts.split(", ")]
    assert offer.price_per_hour == pytest.approx(sum(counted), abs=2e-6)


@pytest.mark.parametrize("region", ["us-central1", "europe-west4"])
def test_what_the_list_does_not_price_beside_the_machine_is_left_out(cloud, monkeypatch, region):
    words = ("Balanced PD Capacity", "External IP Charge on a Spot")
    without = [sku for sku in prices.skus() if not sku["description"].startswith(words)]
    monkeypatch.setattr(prices, "skus", lambda: tuple(without))
    found = {one.market: one for one in offers(cloud, regions=(region,))}
    assert found[Market.SPOT].price_text.endswith(", disk not counted, address not counted")
    assert found[Market.ON_DEMAND].price_text.endswith(", disk not counted, address 0.005")


@pytest.mark.full
def test_googles_list_comes_first_and_the_options_tell_what_it_does_not(cloud, monkeypatch):
    without = [sku for sku in prices.skus() if "N2 Instance Ram" not in sku["description"]]
    monkeypatch.setattr(prices, "skus", lambda: tuple(without))
    options = {"on_demand_prices": {"n2-standard-4": 0.2, "e2-standard-4": 9.0}}
    found = offers(cloud, machine_types=("n2-standard-4", "e2-standard-4"), **options)
    assert {(one.instance_type, one.market, one.details["price_source"]) for one in found} == {
        ("n2-standard-4", Market.ON_DEMAND, "the job's options"),
        ("e2-standard-4", Market.ON_DEMAND, "Google's price list"),
        ("e2-standard-4", Market.SPOT, "Google's price list"),
    }
    with pytest.raises(
        SpecError,
        match=r'^providers\.gcp\.on_demand_prices: Google\'s price list has no "n2-standard-4" in us-central1; ',
    ):
        offers(cloud)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [("accessNotConfigured", 403, AuthError), ("backendError", 503, TransientError)],
)
def test_without_any_price_it_is_said_where_to_give_one(cloud, code, status, kind):
    cloud.faults.inject(SKUS, code, status=status, times=NUM_TRIES)
    with pytest.raises(
        kind, match=r"reading Google's price list: .*; or set the prices in providers\.gcp\.on_demand_prices"
    ):
        offers(cloud)


def test_the_list_is_asked_for_again_after_what_passes(cloud, monkeypatch):
    monkeypatch.setattr("cloudspot_gcp.pricing.PAGE", 100)
    cloud.faults.inject(SKUS, "backendError", status=503, times=NUM_TRIES - 2)
    cloud.faults.inject(SKUS, "rateLimitExceeded", status=429, times=1)
    found = offers(cloud, on_demand_prices={"n2-standard-4": 9.0})
    assert {one.details["price_source"] for one in found} == {"Google's price list"}
    assert [call.error for call in cloud.faults.calls if call.action == SKUS] == [
        *["backendError"] * 2,
        "rateLimitExceeded",
        *[None] * NUM_PAGES,
    ]


def test_a_list_that_repeats_a_page_is_an_error(cloud, monkeypatch):
    page = {"skus": [], "nextPageToken": "7"}
    monkeypatch.setattr(type(cloud.compute), "_skus", lambda self, query: page)
    with pytest.raises(
        CloudspotError, match="Google's price list cannot be read: the same page was returned twice"
    ):
        offers(cloud)


def dearer(monkeypatch, factor):
    """Let spot machines cost more in the emulated price list."""

    def times(price):
        nanos = round((int(price["units"]) * 1e9 + price["nanos"]) * factor)
        return {**price, "units": str(nanos // 10**9), "nanos": nanos % 10**9}

    changed = copy.deepcopy(prices.skus())
    for sku in changed:
        if sku["category"]["usageType"] == "Preemptible":
            rate = sku["pricingInfo"][0]["pricingExpression"]["tieredRates"][-1]
            rate["unitPrice"] = times(rate["unitPrice"])
    monkeypatch.setattr(prices, "skus", lambda: changed)


@pytest.mark.full
@pytest.mark.parametrize(
    ("machine_type", "resources"),
    [
        ("n2-standard-4", Resources()),
        ("g2-standard-8", Resources(accelerator="L4", accelerator_count=1)),
        ("n1-standard-8", Resources(accelerator="T4", accelerator_count=2)),
    ],
)
def test_the_price_of_a_spot_machine_is_that_of_todays_list(cloud, monkeypatch, machine_type, resources):
    provisioner = cloud.provider(machine_types=(machine_type,)).provisioner()
    first = cloud.offer(provisioner, resources=resources)
    assert provisioner.current_price(first) == first.price_per_hour
    dearer(monkeypatch, 1.5)
    assert provisioner.current_price(first) == first.price_per_hour  # a list is kept for an hour
    later = cloud.provider(machine_types=(machine_type,)).provisioner()
    machine = first.price_per_hour - DISK - SPOT_ADDRESS
    assert later.current_price(first) == pytest.approx(first.price_per_hour + 0.5 * machine, abs=2e-6)


def test_a_price_of_the_list_is_not_replaced_by_the_options_while_the_list_cannot_be_read(cloud):
    given = {"on_demand_prices": {"n2-standard-4": 0.2}, "spot_prices": {"n2-standard-4": 0.05}}
    listed = cloud.offer(cloud.provider(**given).provisioner())
    cloud.faults.inject(SKUS, "backendError", status=503, times=NUM_TRIES)
    provisioner = cloud.provider(**given).provisioner()
    with pytest.raises(TransientError, match="reading Google's price list"):
        provisioner.current_price(listed)
    by_hand = cloud.offer(provisioner)
    assert by_hand.price_per_hour == 0.05
    assert provisioner.current_price(by_hand) == 0.05


def test_the_price_of_an_attached_accelerator_can_be_given(cloud):
    cloud.faults.inject(SKUS, "backendError", status=503, times=NUM_TRIES)
    (offer,) = offers(
        cloud,
        Resources(accelerator="T4", accelerator_count=1),
        machine_types=("n1-standard-8",),
        on_demand_prices={"n1-standard-8": 0.38, "n1-standard-8+1xnvidia-tesla-t4": 0.73},
    )
    assert offer.price_per_hour == 0.73


def test_the_list_is_read_page_by_page_and_only_what_is_needed_of_it(cloud, monkeypatch):
    monkeypatch.setattr("cloudspot_gcp.pricing.PAGE", 100)
    expected = 4 * CORE + 16 * RAM + DISK + ADDRESS
    assert offers(cloud)[0].on_demand_price_per_hour == pytest.approx(expected, abs=2e-6)
    calls = [call for call in cloud.faults.calls if call.action == SKUS]
    assert len(calls) == NUM_PAGES
    assert "pricingInfo" in calls[0].parameters["fields"]


@pytest.mark.full
def test_what_does_not_change_is_asked_for_once_an_hour_and_a_list_that_failed_once_a_minute(cloud):
    now = 0.0
    options = GcpOptions(
        project="my-project-123",
        machine_types=("n2-standard-4",),
        on_demand_prices={"n2-standard-4": 0.2},
    )
    finder = GcpOfferFinder(options, cloud.clients, monotonic=lambda: now)

    def asked():
        before = len(cloud.faults.calls)
        finder.offers(Resources())
        return sorted({call.action for call in cloud.faults.calls[before:]})

    facts = [
        SKUS,
        "compute.images.getFromFamily",
        "compute.machineTypes.list",
        "compute.networks.get",
        "compute.regions.get",
    ]
    cloud.faults.inject(SKUS, "backendError", status=503, times=NUM_TRIES)
    assert asked() == facts
    assert asked() == []
    now = FAILURE_SECONDS + 1
    assert asked() == [SKUS]
    now = FACTS_SECONDS - 1
    assert asked() == []
    now = FACTS_SECONDS + FAILURE_SECONDS + 2
    assert asked() == facts


# --- what the options name ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"regions": ("us-central2",)},
            'providers.gcp.regions: there is no region "us-central2"; did you mean "us-central1"?',
        ),
        (
            {"zones": ("us-central1-x",)},
            (
                'providers.gcp.zones: there is no "us-central1-x"; there are us-central1-a, us-central1-b, '
                "us-central1-c, us-central1-f"
            ),
        ),
        (
            {"machine_types": ("n2-standart-4",)},
            'providers.gcp.machine_types: us-central1 has no "n2-standart-4"; did you mean "n2-standard-4"?',
        ),
        (
            {"machine_types": ("t2a-standard-4",)},
            (
                'providers.gcp.machine_types: "t2a-standard-4" is ARM64, but image projects/'
                "deeplearning-platform-release/global/images/pytorch-2-7-cu128-ubuntu-2204-nvidia-570-v20261001 is "
                "X86_64"
            ),
        ),
        (
            {"machine_types": ("c4-standard-4",)},
            (
                'providers.gcp.disk_type: "c4-standard-4" cannot have "pd-balanced"; it takes '
                "hyperdisk-balanced"
            ),
        ),
        (
            {"machine_types": ("g2-standard-8",), "disk_type": "pd-standard"},
            (
                'providers.gcp.disk_type: "g2-standard-8" cannot have "pd-standard"; it takes pd-balanced or '
                "pd-ssd"
            ),
        ),
        (
            {"machine_types": ("a4x-highgpu-4g",), "disk_type": "hyperdisk-balanced"},
            'providers.gcp.machine_types: "a4x-highgpu-4g" is only sold as capacity reserved beforehand',
        ),
        (
            {"image": "projects/my-project-123/global/images/gone"},
            (
                'providers.gcp.image: there is no "projects/my-project-123/global/images/gone", or none that you '
                "may use"
            ),
        ),
        ({"network": "gone"}, 'providers.gcp.network: there is no "gone"'),
        (
            {"subnetworks": ("regions/us-central1/subnetworks/gone",)},
            'providers.gcp.subnetworks: there is no "regions/us-central1/subnetworks/gone"',
        ),
        (
            {"subnetworks": ("regions/us-east1/subnetworks/default",)},
            "providers.gcp.subnetworks: no subnetwork is in us-central1; name one for each region",
        ),
        (
            {"placement_policy": "gone"},
            'providers.gcp.placement_policy: there is no "regions/us-central1/resourcePolicies/gone"',
        ),
    ],
)
def test_what_does_not_exist_is_named_by_its_option(cloud, options, message):
    with pytest.raises(SpecError) as error:
        offers(cloud, **options)
    assert str(error.value) == message


def test_subnetworks_of_two_networks_are_refused_since_nodes_in_two_regions_could_not_reach_each_other(cloud):
    named = ("regions/us-central1/subnetworks/default", "regions/us-east1/subnetworks/train")
    cloud.compute.site.subnetworks[named[1]] = "global/networks/train"
    with pytest.raises(
        SpecError, match=r"^providers\.gcp\.subnetworks: the subnetworks are in 2 networks \(.*train"
    ):
        offers(cloud, regions=("us-central1", "us-east1"), subnetworks=named)


def test_a_subnetwork_of_ones_own_takes_the_place_of_the_network(cloud):

    provisioner = cloud.provider(subnetworks=("regions/us-central1/subnetworks/default",)).provisioner()
    group = group_of(cloud.offer(provisioner))
    request = provisioner.render(group)
    (interface,) = request.body["bulk_insert"]["instanceProperties"]["networkInterfaces"]
    assert interface == {
        "subnetwork": "regions/us-central1/subnetworks/default",
        "accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}],
    }
    assert len(plaincalls.create(provisioner, request, token="t")) == 1


@pytest.mark.parametrize(
    "action",
    [
        "compute.regions.get",
        "compute.images.getFromFamily",
        "compute.networks.get",
        "compute.machineTypes.list",
    ],
)
def test_a_question_that_fails_in_passing_is_asked_four_times(cloud, action):
    cloud.faults.inject(action, "backendError", status=503, times=3)
    assert len(offers(cloud)) == 2
    cloud.faults.inject(action, "backendError", status=503, times=4)
    with pytest.raises(TransientError, match="Google failed"):
        offers(cloud)


def test_the_project_and_the_regions_are_stored_with_the_job(cloud):
    assert cloud.provider(regions=()).pinned_options() == {
        "project": "my-project-123",
        "regions": ["us-central1"],
    }
