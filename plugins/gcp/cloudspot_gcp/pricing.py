"""What machines cost: Google's price list (the Cloud Billing catalog), added up by machine type.

Compute Engine has no price for a machine type: it bills vCPUs, memory and accelerators, each by family,
region and market. Sources: Cloud Billing API, services.skus.list; "VM instance pricing"; the descriptions'
wording is from public code that reads them (checked 2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from cloudspot.model import Market
from cloudspot_gcp.clients import GcpClients, endpoint
from cloudspot_gcp.errors import ERRORS
from cloudspot_gcp.lookups import GcpMachineType

SERVICE: Final = "6F81-5844-456A"
"""Compute Engine's id in the price list."""
PAGE: Final = 5000
_FIELDS: Final = (
    "nextPageToken,skus(description,category(usageType),serviceRegions,"
    "pricingInfo(pricingExpression(tieredRates(unitPrice))))"
)
_MARKETS: Final = {"OnDemand": Market.ON_DEMAND, "Preemptible": Market.SPOT}
_SPOT: Final = re.compile(r"^(?:Spot )?Preemptible | attached to (?:Spot )?Preemptible VMs")
_PART: Final = re.compile(
    r"(?P<family>[A-Z]\d{1,2}[A-Z]?)(?: AMD| Arm)?(?: Predefined)? Instance (?P<what>Core|Ram) running in .*"
)
_C2_PART: Final = re.compile(r"Compute optimized(?: Instance)? (?P<what>Core|Ram) running in .*")
"""Only the family c2 is named after its kind."""
_GPU: Final = re.compile(r"Nvidia (?P<gpu>.+?) GPU running in .*")
# Descriptions that do not follow from the accelerator's name (from memory).
_GPU_NAMES: Final = {"nvidia-h100-mega-80gb": "h100-80gb-plus"}


class Part(msgspec.Struct, frozen=True):
    """What has a price: a vCPU, a GiB or an accelerator, in a region, on a market."""

    name: str
    """``n2/core``, ``n2/ram``, or an accelerator such as ``l4``."""
    region: str
    market: Market


class PriceList(msgspec.Struct, frozen=True):
    """The prices of parts, in USD an hour."""

    parts: dict[Part, float]

    def of(self, machine: GcpMachineType, region: str, market: Market) -> float | None:
        """Return a machine's price in USD an hour; None: the list has none, or it is not sold that way."""
        core = self.parts.get(Part(f"{machine.family}/core", region, market))
        ram = self.parts.get(Part(f"{machine.family}/ram", region, market))
        if core is None or ram is None:
            return None
        price = core * machine.cpus + ram * (machine.memory_bytes / 2**30)
        if machine.accelerator is not None:
            gpu = self.parts.get(Part(gpu_name(machine.accelerator), region, market))
            if gpu is None:
                return None
            price += gpu * machine.accelerator_count
        return round(price, 6)


def gpu_name(accelerator: str) -> str:
    """Return the name that the price list and we share: ``t4`` for ``nvidia-tesla-t4``."""
    known = _GPU_NAMES.get(accelerator)
    return known or _plain_gpu(accelerator)


def read_price_list(clients: GcpClients, regions: Iterable[str]) -> PriceList:
    """Return the prices in the regions.

    The whole list comes in some ten pages: the API cannot filter it by region.
    """
    wanted, parts, token = set(regions), dict[Part, float](), ""
    url = f"{endpoint('cloudbilling')}/v1/services/{SERVICE}/skus"
    while True:
        query = {"pageSize": str(PAGE), "currencyCode": "USD", "fields": _FIELDS}
        if token:
            query["pageToken"] = token
        with ERRORS.translated("reading Google's price list"):
            value = clients.ask_json("GET", url, params=query)
        for sku in value.get("skus", ()):
            _add(parts, sku, wanted)
        token = value.get("nextPageToken", "")
        if not token:
            return PriceList(parts)


def _add(parts: dict[Part, float], sku: Mapping[str, Any], wanted: set[str]) -> None:
    name = _part_name(str(sku.get("description", "")))
    market = _MARKETS.get(str((sku.get("category") or {}).get("usageType")))
    regions = wanted & set(sku.get("serviceRegions", ()))
    if name is None or market is None or not regions:
        return
    if _SPOT.search(str(sku["description"])):
        market = Market.SPOT
    price = _usd(sku)
    if price > 0:
        for region in regions:
            part = Part(name, region, market)
            parts[part] = max(price, parts.get(part, 0.0))


def _part_name(description: str) -> str | None:
    """Return the part that a description prices; None: not one that we add up."""
    plain = _SPOT.sub("", description)
    found = _PART.fullmatch(plain)
    if found is not None:
        return f"{found['family'].lower()}/{found['what'].lower()}"
    found = _C2_PART.fullmatch(plain)
    if found is not None:
        return f"c2/{found['what'].lower()}"
    found = _GPU.fullmatch(plain)
    return None if found is None else _plain_gpu(found["gpu"])


def _plain_gpu(name: str) -> str:
    word = re.sub(r"[^a-z0-9]+", "-", name.lower())
    return word.removeprefix("nvidia-").removeprefix("tesla-")


def _usd(sku: Mapping[str, Any]) -> float:
    """Return the price of the last tier: the first may be free."""
    infos = sku.get("pricingInfo") or ()
    rates = (infos[-1].get("pricingExpression") or {}).get("tieredRates") or () if infos else ()
    if not rates:
        return 0.0
    money = rates[-1].get("unitPrice") or {}
    return int(money.get("units") or 0) + int(money.get("nanos") or 0) / 1e9
