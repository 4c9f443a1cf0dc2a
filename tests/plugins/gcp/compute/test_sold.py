"""Offers on Compute Engine against what Google's documents list, for 240 combinations of resources."""

import pytest
from support.clouds.soldtypes import Sold, assert_sold, combinations, table

from cloudspot.model import Market
from cloudspot.testing import plaincalls

# Source: Compute Engine documentation, "GPU machine types" and "Accelerator-optimized machine family" (as of
# 2026-04-14; checked 2026-11). Without the types that have part of a GPU (g4-standard-6, -12 and -24).
BUILT_IN = {
    "L4": """
        g2-standard-4       4   16  1
        g2-standard-8       8   32  1
        g2-standard-12     12   48  1
        g2-standard-16     16   64  1
        g2-standard-24     24   96  2
        g2-standard-32     32  128  1
        g2-standard-48     48  192  4
        g2-standard-96     96  384  8
    """,
    "RTX PRO 6000": """
        g4-standard-48     48  180  1
        g4-standard-96     96  360  2
        g4-standard-192   192  720  4
        g4-standard-384   384 1440  8
    """,
    "A100": """
        a2-highgpu-1g      12   85  1
        a2-highgpu-2g      24  170  2
        a2-highgpu-4g      48  340  4
        a2-highgpu-8g      96  680  8
        a2-megagpu-16g     96 1360 16
        a2-ultragpu-1g     12  170  1
        a2-ultragpu-2g     24  340  2
        a2-ultragpu-4g     48  680  4
        a2-ultragpu-8g     96 1360  8
    """,
    "A100 80GB": """
        a2-ultragpu-1g     12  170  1
        a2-ultragpu-2g     24  340  2
        a2-ultragpu-4g     48  680  4
        a2-ultragpu-8g     96 1360  8
    """,
    "H100": """
        a3-highgpu-1g      26  234  1
        a3-highgpu-2g      52  468  2
        a3-highgpu-4g     104  936  4
        a3-highgpu-8g     208 1872  8
        a3-megagpu-8g     208 1872  8
    """,
    "H200": "a3-ultragpu-8g 224 2952 8",
    "K80": "",
}
NOT_ON_DEMAND = {"a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g", "a3-ultragpu-8g"}
ON_HYPERDISK_ONLY = {"RTX PRO 6000", "H200"}
# The most vCPUs and GB of memory of an N1 machine by how many are attached (the same document).
ATTACHED = {
    "T4": {1: (48, 312), 2: (48, 312), 4: (96, 624)},
    "P4": {1: (24, 156), 2: (48, 312), 4: (96, 624)},
    "V100": {1: (12, 78), 2: (24, 156), 4: (48, 312), 8: (96, 624)},
    "P100": {1: (16, 104), 2: (32, 208), 4: (96, 624)},
}
SMALLER_P100_ZONES = {"us-east1-c", "europe-west1-b", "europe-west1-d"}
# GB of memory for each vCPU and the sizes ("General-purpose machine family", "Compute-optimized machine
# family"; those of N1 and E2 checked 2026-11, the others from memory).
SIZES = {
    "e2-standard": (4, "2 4 8 16 32"),
    "e2-highmem": (8, "2 4 8 16"),
    "e2-highcpu": (1, "2 4 8 16 32"),
    "n1-standard": (3.75, "1 2 4 8 16 32 64 96"),
    "n1-highmem": (6.5, "2 4 8 16 32 64 96"),
    "n1-highcpu": (0.9, "2 4 8 16 32 64 96"),
    "n2-standard": (4, "2 4 8 16 32 48 64 80 96 128"),
    "n2-highmem": (8, "2 4 8 16 32 48 64 80 96 128"),
    "n2-highcpu": (1, "2 4 8 16 32 48 64 80 96"),
    "c2-standard": (4, "4 8 16 30 60"),
}
PLAIN = [
    Sold(f"{series}-{cpus}", int(cpus), gib * int(cpus))
    for series, (gib, sizes) in SIZES.items()
    for cpus in sizes.split()
]


def provisioner_of(cloud, accelerator):
    disk = "hyperdisk-balanced" if accelerator in ON_HYPERDISK_ONLY else "pd-balanced"
    options = {"machine_types": (), "regions": ("us-central1", "us-east1", "europe-west4")}
    return cloud.provider(**options, disk_type=disk).provisioner()


def attach(accelerator):
    """Return every N1 machine with as many as it may have."""
    return [
        row._replace(accelerator=accelerator, count=count)
        for row in PLAIN
        if row.name.startswith("n1-")
        for count, (cpus, gib) in ATTACHED[accelerator].items()
        if row.cpus <= cpus and row.gib <= gib
    ]


@pytest.mark.full
@pytest.mark.parametrize("accelerator", BUILT_IN)
def test_what_is_offered_with_an_accelerator_of_its_own_is_sold(cloud, accelerator):
    sold = table(accelerator, BUILT_IN[accelerator])
    by_name = {row.name: row for row in sold}
    provisioner = provisioner_of(cloud, accelerator)
    for asked in combinations(accelerator):
        found = plaincalls.offers(provisioner, asked)
        names = {one.instance_type for one in found}
        assert names <= {*by_name}, asked
        assert_sold(asked, [by_name[name] for name in names], sold)
        assert {one.instance_type for one in found if one.market is Market.SPOT} == names
        assert {one.instance_type for one in found if one.market is not Market.SPOT} == names - NOT_ON_DEMAND


@pytest.mark.full
@pytest.mark.parametrize("accelerator", ATTACHED)
def test_what_is_offered_with_an_accelerator_to_attach_may_have_so_many(cloud, accelerator):
    sold = attach(accelerator)
    plain = {row.name: row for row in PLAIN}
    provisioner = provisioner_of(cloud, accelerator)
    for asked in combinations(accelerator):
        rows = set()
        for one in plaincalls.offers(provisioner, asked):
            count = int(one.details["accelerator_count"])
            assert one.details["accelerator"] == f"nvidia-tesla-{accelerator.lower()}"
            rows.add(plain[one.instance_type]._replace(accelerator=accelerator, count=count))
            if (accelerator, count) == ("P100", 4) and {
                *one.details["zones"].split(",")
            } & SMALLER_P100_ZONES:
                assert plain[one.instance_type].cpus <= 64
                assert plain[one.instance_type].gib <= 208
        assert_sold(asked, sorted(rows), sold)


@pytest.mark.full
def test_what_is_offered_without_an_accelerator_is_sold_and_has_none(cloud):
    plain = {row.name: row for row in PLAIN}
    provisioner = provisioner_of(cloud, None)
    for asked in combinations(None):
        found = plaincalls.offers(provisioner, asked)
        assert not [one for one in found if "has_accelerator" in one.details]
        rows = [plain[name] for name in sorted({one.instance_type for one in found})]
        assert_sold(asked, rows, PLAIN)
