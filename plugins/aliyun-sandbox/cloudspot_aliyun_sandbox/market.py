"""The emulated market: instance types, zones and made-up prices, the same in every process.

The types are a selection of the real ones. The sizes are from ECS documentation, "GPU-accelerated
compute-optimized instance families" and "Overview of instance families" (checked 2026-11); the zones that
sell them are made up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

REGIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "ap-southeast-1": ("ap-southeast-1a", "ap-southeast-1b", "ap-southeast-1c"),
    "cn-beijing": ("cn-beijing-h", "cn-beijing-i", "cn-beijing-l"),
    "cn-hangzhou": ("cn-hangzhou-h", "cn-hangzhou-i", "cn-hangzhou-j"),
    "cn-shanghai": ("cn-shanghai-b", "cn-shanghai-e", "cn-shanghai-g"),
    "us-west-1": ("us-west-1a", "us-west-1b"),
}


class Kind(NamedTuple):
    """An instance type."""

    name: str
    cpus: int
    memory_gib: float
    price: float
    """Pay-as-you-go prices in CNY an hour, close to the real prices, so that a sandbox's bill looks
    realistic.
    """
    gpu: str = ""
    num_gpus: int = 0
    architecture: str = "X86"
    level: str = "EnterpriseLevel"
    has_spot: bool = True


_KINDS: Final = (
    Kind("ecs.c7.large", 2, 4, 0.44),
    Kind("ecs.c7.xlarge", 4, 8, 0.88),
    Kind("ecs.c7.2xlarge", 8, 16, 1.76),
    Kind("ecs.g7.large", 2, 8, 0.58),
    Kind("ecs.g7.xlarge", 4, 16, 1.16),
    Kind("ecs.g7.2xlarge", 8, 32, 2.32),
    Kind("ecs.r7.large", 2, 16, 0.76),
    Kind("ecs.u1-c1m4.large", 2, 8, 0.52),
    Kind("ecs.s6-c1m4.large", 2, 8, 0.36, level="EntryLevel"),
    Kind("ecs.t6-c1m4.large", 2, 8, 0.31, level="CreditEntryLevel", has_spot=False),
    Kind("ecs.g8y.large", 2, 8, 0.46, architecture="ARM"),
    Kind("ecs.g8y.xlarge", 4, 16, 0.92, architecture="ARM"),
    Kind("ecs.gn6i-c4g1.xlarge", 4, 15, 11.63, "NVIDIA T4", 1),
    Kind("ecs.gn6i-c8g1.2xlarge", 8, 31, 14.0, "NVIDIA T4", 1),
    Kind("ecs.gn6i-c16g1.4xlarge", 16, 62, 16.41, "NVIDIA T4", 1),
    Kind("ecs.gn6i-c24g1.6xlarge", 24, 93, 17.18, "NVIDIA T4", 1),
    Kind("ecs.gn6i-c40g1.10xlarge", 40, 155, 22.1, "NVIDIA T4", 1),
    Kind("ecs.gn6i-c24g1.12xlarge", 48, 186, 34.36, "NVIDIA T4", 2),
    Kind("ecs.gn6i-c24g1.24xlarge", 96, 372, 68.72, "NVIDIA T4", 4),
    Kind("ecs.gn6v-c8g1.2xlarge", 8, 32, 26.46, "NVIDIA V100", 1),
    Kind("ecs.gn6v-c8g1.4xlarge", 16, 64, 52.92, "NVIDIA V100", 2),
    Kind("ecs.gn6v-c8g1.8xlarge", 32, 128, 105.84, "NVIDIA V100", 4),
    Kind("ecs.gn6v-c8g1.16xlarge", 64, 256, 211.68, "NVIDIA V100", 8),
    Kind("ecs.gn6v-c10g1.20xlarge", 82, 336, 219.5, "NVIDIA V100", 8),
    Kind("ecs.gn7i-c8g1.2xlarge", 8, 30, 9.5, "NVIDIA A10", 1),
    Kind("ecs.gn7i-c16g1.4xlarge", 16, 60, 10.0, "NVIDIA A10", 1),
    Kind("ecs.gn7i-c32g1.8xlarge", 32, 188, 12.7, "NVIDIA A10", 1),
    Kind("ecs.gn7i-c48g1.12xlarge", 48, 310, 15.1, "NVIDIA A10", 1),
    Kind("ecs.gn7i-c56g1.14xlarge", 56, 346, 16.4, "NVIDIA A10", 1),
    Kind("ecs.gn7i-c32g1.16xlarge", 64, 376, 25.4, "NVIDIA A10", 2),
    Kind("ecs.gn7i-c32g1.32xlarge", 128, 752, 50.8, "NVIDIA A10", 4),
    Kind("ecs.gn7i-8x.16xlarge", 64, 256, 72.0, "NVIDIA A10", 8),
    Kind("ecs.gn7-c12g1.3xlarge", 12, 94, 29.0, "NVIDIA A100", 1),
    Kind("ecs.gn7-c13g1.13xlarge", 52, 378, 116.0, "NVIDIA A100", 4),
    Kind("ecs.gn7-c13g1.26xlarge", 104, 756, 232.0, "NVIDIA A100", 8),
    Kind("ecs.gn7e-c16g1.4xlarge", 16, 125, 34.7, "NVIDIA A100 80G", 1),
    Kind("ecs.gn7e-c16g1.8xlarge", 32, 250, 69.4, "NVIDIA A100 80G", 2),
    Kind("ecs.gn7e-c16g1.16xlarge", 64, 500, 138.8, "NVIDIA A100 80G", 4),
    Kind("ecs.gn7e-c16g1.32xlarge", 128, 1000, 277.6, "NVIDIA A100 80G", 8),
    Kind("ecs.ebmgn7e.32xlarge", 128, 1024, 301.0, "NVIDIA A100 80G", 8),
)
KINDS: Final[Mapping[str, Kind]] = {kind.name: kind for kind in _KINDS}


def zones_of(kind: Kind, region: str) -> tuple[str, ...]:
    """Return the zones that sell the type; a region's first zone has no GPUs."""
    zones = REGIONS[region]
    return zones[1:] if kind.num_gpus else zones


def spot_price(kind: Kind, zone: str, *, is_protected: bool = False) -> float:
    """Return the spot price in CNY an hour: a tenth to a third of the pay-as-you-go price, by zone."""
    digest = hashlib.sha256(f"{kind.name}/{zone}".encode()).digest()
    share = 0.1 + digest[0] / 1280
    return round(kind.price * share * (1.25 if is_protected else 1.0), 3)


def describe(kind: Kind) -> dict[str, Any]:
    """Return the type in the form of DescribeInstanceTypes."""
    return {
        "InstanceTypeId": kind.name,
        "InstanceTypeFamily": kind.name.rpartition(".")[0],
        "InstanceFamilyLevel": kind.level,
        "CpuCoreCount": kind.cpus,
        "MemorySize": kind.memory_gib,
        "CpuArchitecture": kind.architecture,
        "GPUSpec": kind.gpu,
        "GPUAmount": kind.num_gpus,
        "InstanceCategory": "ECS Bare Metal" if kind.name.startswith("ecs.ebm") else "General-purpose",
    }
