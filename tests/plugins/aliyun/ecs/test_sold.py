"""Offers on ECS against what Alibaba Cloud's documents list, for 140 combinations of resources."""

import re

import pytest
from support.clouds.soldtypes import Sold, assert_sold, combinations, table

from cloudspot.testing import plaincalls

# Source: ECS documentation, "GPU-accelerated compute-optimized instance families" (gn6i, gn6v, gn7, gn7e, gn7i;
# checked 2026-11). Without bare metal, which is bought only by its name.
SOLD = {
    "T4": """
        ecs.gn6i-c4g1.xlarge      4   15  1
        ecs.gn6i-c8g1.2xlarge     8   31  1
        ecs.gn6i-c16g1.4xlarge   16   62  1
        ecs.gn6i-c24g1.6xlarge   24   93  1
        ecs.gn6i-c40g1.10xlarge  40  155  1
        ecs.gn6i-c24g1.12xlarge  48  186  2
        ecs.gn6i-c24g1.24xlarge  96  372  4
    """,
    "V100": """
        ecs.gn6v-c8g1.2xlarge     8   32  1
        ecs.gn6v-c8g1.4xlarge    16   64  2
        ecs.gn6v-c8g1.8xlarge    32  128  4
        ecs.gn6v-c8g1.16xlarge   64  256  8
        ecs.gn6v-c10g1.20xlarge  82  336  8
    """,
    "A10": """
        ecs.gn7i-c8g1.2xlarge     8   30  1
        ecs.gn7i-c16g1.4xlarge   16   60  1
        ecs.gn7i-c32g1.8xlarge   32  188  1
        ecs.gn7i-c48g1.12xlarge  48  310  1
        ecs.gn7i-c56g1.14xlarge  56  346  1
        ecs.gn7i-2x.8xlarge      32  128  2
        ecs.gn7i-c32g1.16xlarge  64  376  2
        ecs.gn7i-4x.8xlarge      32  128  4
        ecs.gn7i-4x.16xlarge     64  256  4
        ecs.gn7i-c32g1.32xlarge 128  752  4
        ecs.gn7i-8x.16xlarge     64  256  8
        ecs.gn7i-8x.32xlarge    128  512  8
    """,
    "A100": """
        ecs.gn7-c12g1.3xlarge    12   94  1
        ecs.gn7-c13g1.13xlarge   52  378  4
        ecs.gn7-c13g1.26xlarge  104  756  8
    """,
    "A100 80G": """
        ecs.gn7e-c16g1.4xlarge   16  125  1
        ecs.gn7e-c16g1.8xlarge   32  250  2
        ecs.gn7e-c16g1.16xlarge  64  500  4
        ecs.gn7e-c16g1.32xlarge 128 1000  8
    """,
    "K80": "",
}
# GiB of memory for each vCPU of families without accelerators that have their processors to themselves
# ("Overview of instance families"; checked 2026-11).
GIB_A_CPU = {"c7": 2, "g7": 4, "r7": 8, "u1-c1m4": 4}


@pytest.mark.parametrize("accelerator", SOLD)
def test_what_is_offered_with_an_accelerator_is_sold(cloud, accelerator):
    sold = table(accelerator, SOLD[accelerator])
    by_name = {row.name: row for row in sold}
    provisioner = cloud.provider().provisioner()
    for asked in combinations(accelerator):
        names = {one.instance_type for one in plaincalls.offers(provisioner, asked)}
        assert names <= {*by_name}, asked
        assert_sold(asked, [by_name[name] for name in names], sold)


def plain(name):
    """Return a type without accelerators as its name tells it."""
    family, size = re.fullmatch(r"ecs\.([a-z0-9-]+)\.(\w+)", name).groups()
    cpus = {"large": 2, "xlarge": 4}.get(size) or 4 * int(size.removesuffix("xlarge"))
    return Sold(name, cpus, cpus * GIB_A_CPU[family])


@pytest.mark.full
def test_what_is_offered_without_an_accelerator_has_none_and_is_large_enough(cloud):
    provisioner = cloud.provider().provisioner()
    for asked in combinations(None):
        rows = [plain(one.instance_type) for one in plaincalls.offers(provisioner, asked)]
        # The emulated cloud sells no larger machine without accelerators than these.
        assert bool(rows) == (asked.cpus <= 8 and asked.memory_bytes <= 32 * 2**30), asked
        assert [row for row in rows if not row.has(asked)] == [], asked
