"""The emulated market: a part of Google's price list, with made-up prices near the real ones.

The form is that of Cloud Billing's ``services.skus.list``; descriptions are worded like the real ones.
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
# USD an hour of a vCPU and of a GiB, on demand in the cheapest region.
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
}
_GPUS: Final = {
    "Nvidia Tesla T4 GPU": 0.35,
    "Nvidia Tesla V100 GPU": 2.48,
    "Nvidia L4 GPU": 0.56,
    "Nvidia Tesla A100 GPU": 2.93,
    "Nvidia Tesla A100 80GB GPU": 3.93,
    "Nvidia H100 80GB GPU": 9.8,
}
_DEARER: Final = {"us-central1": 1.0, "us-east1": 1.0, "europe-west4": 1.1, "asia-east1": 1.16}


@cache
def skus() -> tuple[dict[str, Any], ...]:
    """Return the whole price list."""
    return tuple(_skus())


def _skus() -> Iterator[dict[str, Any]]:
    for region in ZONES:
        place, factor = _PLACES[region], _DEARER[region]
        for family, (core, ram) in _FAMILIES.items():
            for what, price, unit in (("Core", core, "h"), ("Ram", ram, "GiBy.h")):
                group = "CPU" if what == "Core" else "RAM"
                name = f"{family} {what} running in {place}"
                yield _sku(name, region, group, "OnDemand", price * factor, unit)
                yield _sku(
                    f"Spot Preemptible {name}",
                    region,
                    group,
                    "Preemptible",
                    price * factor * _spot_part(family, region),
                    unit,
                )
            # Items that must not be taken for a machine type's price.
            custom = f"{family.replace('Predefined ', '')} Custom {what} running in {place}"
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


def _spot_part(name: str, region: str) -> float:
    """Return the region's share of the on-demand price: a quarter to two fifths."""
    return 0.25 + hashlib.sha256(f"{name}/{region}".encode()).digest()[0] / 1700


def _sku(description: str, region: str, group: str, usage: str, price: float, unit: str) -> dict[str, Any]:
    number = hashlib.sha256(f"{description}/{region}/{usage}".encode()).hexdigest()[:12].upper()
    sku_id = "-".join(number[i : i + 4] for i in range(0, 12, 4))
    return {
        "name": f"services/{SERVICE}/skus/{sku_id}",
        "skuId": sku_id,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Compute",
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": [region],
        "pricingInfo": [
            {
                "effectiveTime": "2026-11-01T00:00:00Z",
                "pricingExpression": {
                    "usageUnit": unit,
                    "tieredRates": [
                        {
                            "startUsageAmount": 0,
                            "unitPrice": {
                                "currencyCode": "USD",
                                "units": str(int(price)),
                                "nanos": round((price - int(price)) * 1e9),
                            },
                        }
                    ],
                },
                "currencyConversionRate": 1,
            }
        ],
        "serviceProviderName": "Google",
    }
