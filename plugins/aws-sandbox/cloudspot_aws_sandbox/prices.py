"""The emulated market: made-up prices, the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

# USD an hour, close to the real prices, so that a sandbox's bill looks realistic.
_ON_DEMAND: Final[Mapping[str, float]] = {
    "t3.large": 0.0832,
    "m5.large": 0.096,
    "c5.large": 0.085,
    "g4dn.xlarge": 0.526,
    "g5.xlarge": 1.006,
    "g5.12xlarge": 5.672,
    "g6.xlarge": 0.8048,
    "p4d.24xlarge": 32.7726,
    "p5.48xlarge": 98.32,
}
VOLUMES: Final[Mapping[str, float]] = {"gp2": 0.1, "gp3": 0.08, "io1": 0.125, "io2": 0.125}
"""USD a month for a GiB, by the kind of EBS volume."""
_A_CPU: Final = 0.048
_A_GPU: Final = 0.7


def on_demand_price(type_: Mapping[str, Any]) -> float:
    """Return an instance type's price in USD an hour; ``type_`` is in the form of DescribeInstanceTypes."""
    known = _ON_DEMAND.get(type_["InstanceType"])
    if known is not None:
        return known
    gpus = sum(int(gpu["Count"]) for gpu in type_.get("GpuInfo", {}).get("Gpus", ()))
    memory_gib = type_["MemoryInfo"]["SizeInMiB"] / 1024
    cpus = int(type_["VCpuInfo"]["DefaultVCpus"])
    return round(_A_CPU / 2 * cpus + 0.006 * float(memory_gib) + _A_GPU * gpus, 4)


def spot_price(type_: Mapping[str, Any], zone: str, factor: float = 1.0) -> float:
    """Return the spot price in USD an hour: a quarter to a half of on-demand, times ``factor``."""
    digest = hashlib.sha256(f"{type_['InstanceType']}/{zone}".encode()).digest()
    return round(on_demand_price(type_) * (0.25 + digest[0] / 1024) * factor, 6)
