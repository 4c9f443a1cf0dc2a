"""The emulated market: a part of Google's price list, with made-up prices close to the real ones.

The list has the form of Cloud Billing's ``services.skus.list``; descriptions are worded like the real ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from cloudspot_gcp_sandbox.catalogue import ZONES

SERVICE: Final = "6F81-5844-456A"
"""Compute Engine's id in the price list."""
_PLACES: Final = {
    "us-central1": "Americas",
    "us-east1": "Americas",
    "europe-west4": "Netherlands",
    "asia-east1": "Taiwan",
}
# Prices in USD an hour for a vCPU and for a GiB, on demand in the cheapest region.
_FAMILIES: Final = {
    "E2 Instance": (0.0218, 0.0029),
    "N1 Predefined Instance": (0.0316, 0.0042),
    "N2 Instance": (0.0316, 0.0042),
    "Compute optimized": (0.0339, 0.0045),
    "C4 Instance": (0.0347, 0.0039),
    "T2A Arm Instance": (0.0283, 0.0038),
    "G2 Instance": (0.0249, 0.0029),
    "A2 Instance": (0.0316, 0.0042),
    "A3 Instance": (0.0298, 0.0025),
    "A3Plus Instance": (0.0269, 0.0023),
    "A3Ultra Instance": (0.0291, 0.0025),
    "G4 Instance": (0.0242, 0.0029),
}
_GPUS: Final = {
    "Nvidia Tesla T4 GPU": 0.35,
    "Nvidia Tesla V100 GPU": 2.48,
    "Nvidia L4 GPU": 0.56,
    "Nvidia Tesla A100 GPU": 2.93,
    "Nvidia Tesla A100 80GB GPU": 3.93,
    "Nvidia H100 80GB GPU": 9.8,
    "Nvidia H100 80GB Plus GPU": 10.3,
    "H200 141GB GPU": 9.1,
    "RTX 6000 96GB": 3.0,
    "Nvidia Tesla P100 GPU": 1.46,
    "Nvidia Tesla P4 GPU": 0.6,
}
# Prices in USD a month for a GiB in the cheapest region, and the number of GiB that are free in the Americas.
_DISKS: Final = {
    "Storage PD Capacity": (0.04, 30),
    "SSD backed PD Capacity": (0.17, 0),
    "Balanced PD Capacity": (0.1, 0),
    "Regional Balanced PD Capacity": (0.2, 0),
    "Hyperdisk Balanced Capacity": (0.08, 0),
    "Hyperdisk Balanced IOPS": (0.005, 0),
}
_ADDRESSES: Final = {"Standard": 0.005, "Spot Preemptible": 0.0025}
_FREE_HOURS: Final = 744
_DEARER: Final = {"us-central1": 1.0, "us-east1": 1.0, "europe-west4": 1.1, "asia-east1": 1.16}


@cache
def skus() -> tuple[dict[str, Any], ...]:
    """Return the whole price list."""
    return tuple(_skus())


def _skus() -> Iterator[dict[str, Any]]:
    for region in ZONES:
        place, factor = _PLACES[region], _DEARER[region]
        for family, (core, ram) in _FAMILIES.items():
            for part, price, unit in (("Core", core, "h"), ("Ram", ram, "GiBy.h")):
                group = "CPU" if part == "Core" else "RAM"
                name = f"{family} {part} running in {place}"
                yield _sku(name, region, group, "OnDemand", price * factor, unit)
                yield _sku(
                    f"Spot Preemptible {name}",
                    region,
                    group,
                    "Preemptible",
                    price * factor * _spot_part(family, region),
                    unit,
                )
            # Items that must not be mistaken for a machine type's price.
            custom = f"{family.replace('Predefined ', '')} Custom {part} running in {place}"
            yield _sku(custom, region, "CPU", "OnDemand", core * 1.05, "h")
            yield _sku(
                f"Commitment v1: {family} in {place} for 1 Year", region, "CPU", "Commit1Yr", core / 2, "h"
            )
        for gpu, price in _GPUS.items():
            yield _sku(f"{gpu} running in {place}", region, "GPU", "OnDemand", price * factor, "h")
            yield _sku(
                f"{gpu} attached to Spot Preemptible VMs running in {place}",
                region,
                "GPU",
                "Preemptible",
                price * factor * _spot_part(gpu, region),
                "h",
            )
        for disk, (price, free) in _DISKS.items():
            is_plain = place == "Americas"
            name = disk if is_plain else f"{disk} in {place}"
            num_free = free if is_plain else 0
            yield _sku(
                name, region, "SSD", "OnDemand", price * factor, "GiBy.mo", family="Storage", free=num_free
            )
    for vm, price in _ADDRESSES.items():
        name = f"External IP Charge on a {vm} VM"
        usage = "OnDemand" if vm == "Standard" else "Preemptible"
        yield _sku(name, "global", "IpAddress", usage, price, "h", family="Network", free=_FREE_HOURS)
    yield _sku("Static Ip Charge", "global", "IpAddress", "OnDemand", 0.01, "h", family="Network", free=1)


def _spot_part(name: str, region: str) -> float:
    """Return the region's spot price as a share of on-demand: a quarter to two fifths."""
    return 0.25 + hashlib.sha256(f"{name}/{region}".encode()).digest()[0] / 1700


def _sku(
    description: str,
    region: str,
    group: str,
    usage: str,
    price: float,
    unit: str,
    *,
    family: str = "Compute",
    free: int = 0,
) -> dict[str, Any]:
    number = hashlib.sha256(f"{description}/{region}/{usage}".encode()).hexdigest()[:12].upper()
    sku_id = "-".join(number[i : i + 4] for i in range(0, 12, 4))
    return {
        "name": f"services/{SERVICE}/skus/{sku_id}",
        "skuId": sku_id,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": family,
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": [region],
        "pricingInfo": [
            {
                "effectiveTime": "2026-11-01T00:00:00Z",
                "pricingExpression": {
                    "usageUnit": unit,
                    "tieredRates": [_rate(0, 0.0), _rate(free, price)] if free else [_rate(0, price)],
                },
                "currencyConversionRate": 1,
            }
        ],
        "serviceProviderName": "Google",
    }


def _rate(start: int, price: float) -> dict[str, Any]:
    return {
        "startUsageAmount": start,
        "unitPrice": {
            "currencyCode": "USD",
            "units": str(int(price)),
            "nanos": round((price - int(price)) * 1e9),
        },
    }
