"""Prices of machines: sums of the prices in Google's price list (the Cloud Billing catalog).

Compute Engine has no price for a machine type as such. Google bills vCPUs, memory and accelerators by family,
region and market; the disk by its size; and the external address by the machine's market. Sources: Cloud
Billing API, services.skus.list; "VM instance pricing"; the wording of the descriptions is from public code
that reads them (checked 2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from cloudspot.decoding import whole_number
from cloudspot.errors import CloudspotError
from cloudspot.model import Billing, Market
from cloudspot.plugin.answers import price, readable
from cloudspot.plugin.priceparts import HOURS_A_MONTH
from cloudspot_gcp.clients import GcpClients, endpoint
from cloudspot_gcp.lookups import GcpMachineType, ask

BILLING: Final = Billing(minimum_seconds=60.0)
"""Billed by the second, with a minimum of one minute. No page was found that promises that a preempted
machine is not charged (Compute Engine, "VM instance pricing", Billing model; checked 2026-11).
"""
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
    r"(?P<family>[A-Z]\d{1,2}[A-Z]?(?:Plus|Ultra)?)(?: AMD| Arm)?(?: Predefined)? Instance "
    r"(?P<what>Core|Ram) running in .*"
)
_C2_PART: Final = re.compile(r"Compute optimized(?: Instance)? (?P<what>Core|Ram) running in .*")
"""The family c2, the only one whose description does not contain its name."""
_DISK: Final = re.compile(
    r"(?P<kind>Balanced PD|SSD backed PD|Storage PD|Hyperdisk Balanced) Capacity(?: in .*)?"
)
"""In some regions the description does not name the place. The description of a replicated disk, which costs
twice as much, begins with "Regional".
"""
_DISKS: Final = {
    "Balanced PD": "pd-balanced",
    "SSD backed PD": "pd-ssd",
    "Storage PD": "pd-standard",
    "Hyperdisk Balanced": "hyperdisk-balanced",
}
_ADDRESS: Final = re.compile(r"External IP Charge on a (?:Standard|Spot Preemptible) VM")
"""This price is in the region "global"; its first tier is a free month for the whole account."""
ADDRESS: Final = "address"
GLOBAL: Final = "global"
_GPU: Final = re.compile(r"Nvidia (?P<gpu>.+?) GPU running in .*")
_OTHER_GPU: Final = re.compile(r"(?P<gpu>H200 141GB|RTX 6000 96GB)(?: GPU)? running in .*")
# Descriptions that do not follow from the accelerator's or the machine type's name (the first from memory).
_GPU_NAMES: Final = {"nvidia-h100-mega-80gb": "h100-80gb-plus", "nvidia-rtx-pro-6000": "rtx-6000-96gb"}
_FAMILIES: Final = {"a3-megagpu": "a3plus", "a3-ultragpu": "a3ultra"}


class Part(msgspec.Struct, frozen=True):
    """A priced part of a machine: a vCPU, a GiB, an accelerator or an address, in a region, on a market."""

    name: str
    """``n2/core``, ``n2/ram``, an accelerator such as ``l4``, ``pd-balanced``, or ``address``."""
    region: str
    market: Market


class PriceList(msgspec.Struct, frozen=True):
    """The prices of parts, in USD an hour; a GiB of disk is in USD a month."""

    parts: dict[Part, float]

    def of(self, machine: GcpMachineType, region: str, market: Market) -> float | None:
        """Return a machine's price in USD an hour, or None if the list has no price for this market."""
        family = _family(machine.name)
        core = self.parts.get(Part(f"{family}/core", region, market))
        ram = self.parts.get(Part(f"{family}/ram", region, market))
        if core is None or ram is None:
            return None
        price = core * machine.cpus + ram * (machine.memory_bytes / 2**30)
        if machine.accelerator is not None:
            gpu = self.parts.get(Part(gpu_name(machine.accelerator), region, market))
            if gpu is None:
                return None
            price += gpu * machine.accelerator_count
        return round(price, 6)

    def disk(self, kind: str, region: str, *, size_gib: int) -> float | None:
        """Return the price of a disk of this size in USD an hour, or None if it is not listed."""
        price = self.parts.get(Part(kind, region, Market.ON_DEMAND))
        return None if price is None else size_gib * price / HOURS_A_MONTH

    def address(self, market: Market) -> float | None:
        """Return the price of a machine's external address in USD an hour, or None if it is not listed."""
        return self.parts.get(Part(ADDRESS, GLOBAL, market))


def gpu_name(accelerator: str) -> str:
    """Return an accelerator's name in the price list: ``t4`` for ``nvidia-tesla-t4``."""
    known = _GPU_NAMES.get(accelerator)
    return known or _plain_gpu(accelerator)


def _family(machine_type: str) -> str:
    series, kind = machine_type.split("-")[:2]
    return _FAMILIES.get(f"{series}-{kind}", series)


_CONTINENTS: Final = {"us": "america", "northamerica": "america", "europe": "europe", "asia": "asia"}
"""The continent by the prefix of a region's name; the rest of the world is more expensive."""


def transfer_price(region: str, home: str) -> float:
    """Return the price of sending a GiB between two regions, in USD, in the more expensive direction.

    The figures are from memory of "Network pricing" (data transfer within Google Cloud) and "Cloud Storage
    pricing", because no page with figures was found: 0.02 within North America or Europe, 0.05 between the
    two, 0.08 with Asia, and up to 0.15 elsewhere. Where the price may be higher, it is rounded up.
    """
    if region == home:
        return 0.0
    here, there = (_CONTINENTS.get(one.partition("-")[0]) for one in (region, home))
    if here is None or there is None:
        return 0.15
    if "asia" in {here, there}:
        return 0.10
    return 0.02 if here == there else 0.05


def read_price_list(clients: GcpClients, regions: Iterable[str]) -> PriceList:
    """Return the prices in the regions.

    The whole list is read, about ten pages, because the API cannot filter it by region.
    """
    wanted, parts, token = {GLOBAL, *regions}, dict[Part, float](), ""
    url = f"{endpoint('cloudbilling')}/v1/services/{SERVICE}/skus"
    while True:
        query = {"pageSize": str(PAGE), "currencyCode": "USD", "fields": _FIELDS}
        if token:
            query["pageToken"] = token
        answer = ask("reading Google's price list", partial(clients.ask_json, "GET", url, params=query))
        with readable("reading Google's price list"):
            for sku in answer.get("skus", ()):
                _add(parts, sku, wanted)
            before, token = token, answer.get("nextPageToken", "")
        if not token:
            return PriceList(parts)
        if token == before:
            raise CloudspotError("Google's price list cannot be read: the same page was returned twice")


def _add(parts: dict[Part, float], sku: Mapping[str, Any], wanted: set[str]) -> None:
    name = _part_name(str(sku.get("description", "")))
    market = _MARKETS.get(str((sku.get("category") or {}).get("usageType")))
    regions = wanted & set(sku.get("serviceRegions", ()))
    if name is None or market is None or not regions:
        return
    if _SPOT.search(str(sku["description"])):
        market = Market.SPOT
    if name == ADDRESS:
        market = Market.SPOT if "Spot" in str(sku["description"]) else Market.ON_DEMAND
    price = _usd(sku)
    if price > 0:
        for region in regions:
            part = Part(name, region, market)
            parts[part] = max(price, parts.get(part, 0.0))


def _part_name(description: str) -> str | None:
    """Return the part that a description is about, or None if no price uses that part."""
    plain = _SPOT.sub("", description)
    match = _PART.fullmatch(plain)
    if match is not None:
        return f"{match['family'].lower()}/{match['what'].lower()}"
    match = _C2_PART.fullmatch(plain)
    if match is not None:
        return f"c2/{match['what'].lower()}"
    match = _DISK.fullmatch(plain)
    if match is not None:
        return _DISKS[match["kind"]]
    if _ADDRESS.fullmatch(plain):
        return ADDRESS
    match = _GPU.fullmatch(plain) or _OTHER_GPU.fullmatch(plain)
    return None if match is None else _plain_gpu(match["gpu"])


def _plain_gpu(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).removeprefix("nvidia-").removeprefix("tesla-")
    return "h100-80gb-plus" if slug == "h100-80gb-mega" else slug  # the name depends on the region


def _usd(sku: Mapping[str, Any]) -> float:
    """Return the price of the last tier, because the first may be free."""
    infos = sku.get("pricingInfo") or ()
    rates = (infos[-1].get("pricingExpression") or {}).get("tieredRates") or () if infos else ()
    if not rates:
        return 0.0
    money = rates[-1].get("unitPrice") or {}
    units, nanos = whole_number(money.get("units") or 0), whole_number(money.get("nanos") or 0)
    return 0.0 if units is None or nanos is None else price(units + nanos / 1e9) or 0.0
