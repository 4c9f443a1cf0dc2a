"""Finds the resources that cloudspot has made in a Google Cloud project, for ``cloudspot reap``.

All regions are listed at once. Machines and disks are recognised by their labels. A placement policy has no
labels, so it is recognised by its description and by its name, which contains the digest of a known store.
External addresses are deleted with their machine. cloudspot makes no instance template and no schedule,
because Compute Engine itself deletes machines when their time is up. An unfinished upload to Cloud Storage is
free, and is deleted after a week ("Resumable uploads"; checked 2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from google.api_core import exceptions as api

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.interfaces import FunctionHost, Inventory, MachineInventory
from cloudspot.model import Asset, Market
from cloudspot.plugin import machinetags
from cloudspot.plugin.driverinventory import DriverInventory, DriverRest
from cloudspot_gcp import attributes, placement
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.compute import ComputeProvisioner
from cloudspot_gcp.errors import ERRORS
from cloudspot_gcp.functionhost import CloudRunHost
from cloudspot_gcp.listing import last_part, place_of, to_time
from cloudspot_gcp.lookups import ask, find_machine_type, wanted_regions
from cloudspot_gcp.options import GcpOptions, region_of
from cloudspot_gcp.pricing import PriceList, read_price_list
from cloudspot_gcp.request import policy_name

PAGE: Final = 500
HOURS_A_DAY: Final = 24
_LABELLED: Final = f"labels.{machinetags.JOB}:*"
_DESCRIPTION: Final = re.compile(r"cloudspot: job ([a-z0-9-]+)")
_IN_USE: Final = {"resourceInUseByAnotherResource": TransientError, "resourceNotReady": TransientError}


def inventories(options: GcpOptions, clients: GcpClients) -> tuple[Inventory, ...]:
    """Return the inventories of the project, in the order in which their assets should be ended."""
    prices = _Prices(clients)
    return (
        _Machines(options, clients, prices),
        _Disks(clients, prices),
        _PlacementPolicies(clients),
        _Drivers(options, clients),
    )


class _Prices:
    """The prices of machines and disks; the price list is read when a price is first needed."""

    def __init__(self, clients: GcpClients) -> None:
        self._clients = clients
        self._lists: dict[str, PriceList] = {}

    def machine(self, described: Any, market: Market) -> float | None:
        """Return the machine's price per day, without its disk and address, or None if it is not known."""
        with suppress(CloudspotError):
            zone = last_part(described.zone)
            found = find_machine_type(self._clients, zone, last_part(described.machine_type))
            if found is None or (described.guest_accelerators and found.accelerator is None):
                return None  # attached accelerators cost extra
            an_hour = self._list(region_of(zone)).of(found, region_of(zone), market)
            return None if an_hour is None else an_hour * HOURS_A_DAY
        return None

    def disk(self, described: Any) -> float | None:
        """Return the disk's price per day, or None if it is not known."""
        with suppress(CloudspotError):
            region, kind = region_of(last_part(described.zone)), last_part(described.type_)
            an_hour = self._list(region).disk(kind, region, size_gib=described.size_gb)
            return None if an_hour is None else an_hour * HOURS_A_DAY
        return None

    def _list(self, region: str) -> PriceList:
        if region not in self._lists:
            self._lists[region] = read_price_list(self._clients, [region])
        return self._lists[region]


class _Machines(Inventory):
    """The machines, including those that have shut themselves down, whose disks are still billed."""

    title = "machines"

    def __init__(self, options: GcpOptions, clients: GcpClients, prices: _Prices) -> None:
        self._options = options
        self._clients = clients
        self._prices = prices

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        found = _all(self._clients, "InstancesClient", "instances", "listing the machines", _LABELLED)
        return [
            self._asset(one, store_urls)
            for one in found
            if attributes.launch_and_rank(one.name) is not None and one.status != "STOPPING"
        ]

    def end(self, asset: Asset) -> None:
        MachineInventory(ComputeProvisioner(self._options, self._clients)).end(asset)

    def _asset(self, described: Any, store_urls: Sequence[str]) -> Asset:
        market = Market.SPOT if described.scheduling.provisioning_model == "SPOT" else Market.ON_DEMAND
        place, is_stopped = place_of(described), described.status in {"TERMINATED", "SUSPENDED"}
        stores = [one.value for one in described.metadata.items if one.key == machinetags.STORE]
        return Asset(
            kind="stopped machine" if is_stopped else "machine",
            id=place.id,
            where=place.zone,
            job_id=described.labels[machinetags.JOB],
            store_url=stores[0] if stores else _store_of(described.labels, store_urls),
            created_at=to_time(described.creation_timestamp),
            price_per_day=None if is_stopped else self._prices.machine(described, market),
            detail=f"{last_part(described.machine_type)}, {market.value}",
        )


class _Disks(Inventory):
    """The detached disks; attached ones are deleted with their machine."""

    title = "disks"

    def __init__(self, clients: GcpClients, prices: _Prices) -> None:
        self._clients = clients
        self._prices = prices

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        return [
            Asset(
                kind="disk",
                id=one.name,
                where=last_part(one.zone),
                job_id=one.labels[machinetags.JOB],
                store_url=_store_of(one.labels, store_urls),
                created_at=to_time(one.creation_timestamp),
                price_per_day=self._prices.disk(one),
                detail=f"{one.size_gb} GiB {last_part(one.type_)}",
            )
            for one in _all(self._clients, "DisksClient", "disks", "listing the disks", _LABELLED)
            if not one.users
        ]

    def end(self, asset: Asset) -> None:
        request = {"project": self._clients.project, "zone": asset.where, "disk": asset.id}
        with ERRORS.translated(f"deleting disk {asset.id}", _IN_USE), suppress(api.NotFound):
            ERRORS.unless_throttled(lambda: self._clients.call("DisksClient", "delete_unary", request))


class _PlacementPolicies(Inventory):
    """The placement policies of jobs with several nodes; they cost nothing."""

    title = "placement policies"

    def __init__(self, clients: GcpClients) -> None:
        self._clients = clients

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        return list(self._found(store_urls))

    def end(self, asset: Asset) -> None:
        placement.remove_one(self._clients, asset.where, asset.id)

    def _found(self, store_urls: Sequence[str]) -> Iterator[Asset]:
        what = "listing the placement policies"
        for policy in _all(self._clients, "ResourcePoliciesClient", "resource_policies", what, ""):
            says = _DESCRIPTION.fullmatch(policy.description)
            for store_url in store_urls if says else ():
                assert says is not None
                if policy_name(says[1], store_url) == policy.name:
                    yield Asset(
                        kind="placement policy",
                        id=policy.name,
                        where=last_part(policy.region),
                        job_id=says[1],
                        store_url=store_url,
                        created_at=to_time(policy.creation_timestamp),
                        price_per_day=0.0,
                    )


class _Drivers(DriverInventory):
    """The functions of ``cloudspot driver`` in all regions, and accounts and roles without a function."""

    title = "drivers"

    def __init__(self, options: GcpOptions, clients: GcpClients) -> None:
        self._options = options
        self._clients = clients

    def host_of(self, name: str) -> FunctionHost:
        here = wanted_regions(self._options)[0]
        found = CloudRunHost(self._clients, region=here).region_of(name)
        return CloudRunHost(self._clients, region=found or here)

    def rest_of(self, name: str) -> DriverRest | None:
        return CloudRunHost(self._clients, region=wanted_regions(self._options)[0]).rest(name)


def _all(clients: GcpClients, kind: str, field: str, what: str, expression: str) -> list[Any]:
    """Return the listed items of all zones and regions; raise TransientError if one does not answer."""
    request = {"project": clients.project, "max_results": PAGE}
    if expression:
        request["filter"] = expression
    pages = ask(what, lambda: list(clients.call(kind, "aggregated_list", request).pages))
    silent = sorted({last_part(one) for page in pages for one in page.unreachables})
    if silent:
        raise TransientError(f"{what}: {', '.join(silent)} cannot be reached, so the list is not complete")
    return [one for page in pages for scope in page.items.values() for one in getattr(scope, field)]


def _store_of(labels: Any, store_urls: Sequence[str]) -> str:
    """Return the store whose digest a label holds, or "" if it is none of ``store_urls``."""
    digest = labels.get(machinetags.STORE, "")
    return next((one for one in store_urls if machinetags.store_digest(one) == digest), "")
