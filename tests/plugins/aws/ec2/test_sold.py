"""Offers on EC2 against what AWS's documents list, for 180 combinations of resources."""

import re

import pytest
from support.clouds.soldtypes import GIB, Sold, assert_sold, combinations, table

from cloudspot.model import Resources
from cloudspot.testing import plaincalls

pytestmark = pytest.mark.full


# Source: Red Hat's list of AWS instance types (openshift-docs, modules/rosa-sdpolicy-am-aws-compute-types.adoc),
# and for P5 and GR6 Amazon EC2 documentation, "Specifications for accelerated computing instances"; checked
# 2026-11. Without P3, whose machines are Xen machines.
SOLD = {
    "T4": """
        g4dn.xlarge     4   16  1
        g4dn.2xlarge    8   32  1
        g4dn.4xlarge   16   64  1
        g4dn.8xlarge   32  128  1
        g4dn.16xlarge  64  256  1
        g4dn.12xlarge  48  192  4
    """,
    "A10G": """
        g5.xlarge       4   16  1
        g5.2xlarge      8   32  1
        g5.4xlarge     16   64  1
        g5.8xlarge     32  128  1
        g5.16xlarge    64  256  1
        g5.12xlarge    48  192  4
        g5.24xlarge    96  384  4
        g5.48xlarge   192  768  8
    """,
    "L4": """
        g6.xlarge       4   16  1
        g6.2xlarge      8   32  1
        g6.4xlarge     16   64  1
        g6.8xlarge     32  128  1
        g6.16xlarge    64  256  1
        gr6.4xlarge    16  128  1
        gr6.8xlarge    32  256  1
        g6.12xlarge    48  192  4
        g6.24xlarge    96  384  4
        g6.48xlarge   192  768  8
    """,
    "L40S": """
        g6e.xlarge      4   32  1
        g6e.2xlarge     8   64  1
        g6e.4xlarge    16  128  1
        g6e.8xlarge    32  256  1
        g6e.16xlarge   64  512  1
        g6e.12xlarge   48  384  4
        g6e.24xlarge   96  768  4
        g6e.48xlarge  192 1536  8
    """,
    "V100": "p3dn.24xlarge 96 768 8",
    "A100": """
        p4d.24xlarge   96 1152  8
        p4de.24xlarge  96 1152  8
    """,
    "H100": """
        p5.4xlarge     16  256  1
        p5.48xlarge   192 2048  8
    """,
    "K80": "",
}
# GiB for each vCPU of x86 families without accelerators. Source: Amazon EC2 documentation, "Amazon EC2 instance
# type naming conventions", and the specifications of general purpose, compute, memory and storage optimized
# instances; checked 2026-11 in part, the rest from memory.
GIB_A_CPU = {
    r"c5n": 2.625,
    r"c[4-8].*": 2,
    r"m[4-8].*": 4,
    r"r4": 7.625,
    r"r[5-8].*|i7ie?|z1d": 8,
    r"x8i": 16,
    r"x1e": 30.5,
    r"x2iezn": 32,
}


@pytest.fixture(scope="module")
def provisioners():
    """Keep the one provisioner of these tests, which has the long list of types once it has asked."""
    return []


@pytest.fixture
def provisioner(cloud, provisioners):
    provisioners[:] = provisioners or [cloud.provider().provisioner()]
    return provisioners[0]


@pytest.mark.parametrize("accelerator", SOLD)
def test_what_is_offered_with_an_accelerator_is_sold(provisioner, accelerator):
    sold = table(accelerator, SOLD[accelerator])
    by_name = {row.name: row for row in sold}
    for asked in combinations(accelerator):
        names = {one.instance_type for one in plaincalls.offers(provisioner, asked)}
        assert names <= {*by_name}, asked
        assert_sold(asked, [by_name[name] for name in names], sold)


def plain(name):
    """Return a type without accelerators as its name tells it."""
    family, size = name.split(".")
    cpus = {"large": 2, "xlarge": 4}.get(size) or 4 * int(size.removesuffix("xlarge"))
    gib = next((gib for pattern, gib in GIB_A_CPU.items() if re.fullmatch(pattern, family)), None)
    assert gib is not None, f"{name} is of no family that is known to have no accelerators"
    return Sold(name, cpus, cpus * gib)


def test_what_is_offered_without_an_accelerator_has_none_and_is_large_enough(provisioner):
    for asked in combinations(None):
        rows = [plain(one.instance_type) for one in plaincalls.offers(provisioner, asked)]
        assert rows
        assert [row for row in rows if not row.has(asked)] == [], asked


def test_a_type_with_part_of_a_gpu_or_another_accelerator_is_bought_only_by_its_name(cloud, provisioner):
    """Their prices would make gr6f, f2 and inf2 the cheapest, and they have what no job asked for."""
    special = ("gr6f.4xlarge", "g6f.large", "inf2.xlarge", "trn1.2xlarge", "f2.6xlarge", "vt1.3xlarge")
    for cpus, gib in [(2, 8), (4, 16), (8, 32), (12, 24), (16, 128), (24, 256)]:
        asked = Resources(cpus=cpus, memory_bytes=gib * GIB)
        assert not {one.instance_type for one in plaincalls.offers(provisioner, asked)} & {*special}
    named = cloud.provider(instance_types=special[-4:], on_demand_prices=dict.fromkeys(special, 1.0))
    assert {one.instance_type for one in plaincalls.offers(named.provisioner(), Resources())} == {
        *special[-4:]
    }
