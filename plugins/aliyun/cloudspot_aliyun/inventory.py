"""Finds the resources that cloudspot has made in an Alibaba Cloud account, for ``cloudspot reap``.

Resources are recognised by their tags. A deployment set has no tags, so it counts as cloudspot's only if its
name contains the digest of a known store. Public addresses and network interfaces are released with their
machine. cloudspot makes no launch template and no schedule, because ECS itself releases machines when their
time is up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.interfaces import FunctionHost, Inventory, MachineInventory
from cloudspot.model import Asset, Market
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import readable
from cloudspot.plugin.driverinventory import DriverInventory, DriverRest
from cloudspot_aliyun import deploymentsets, pricing, tags
from cloudspot_aliyun.api import items, read, read_numbered_pages, read_pages
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.ecs import EcsProvisioner
from cloudspot_aliyun.functionhost import FunctionComputeHost
from cloudspot_aliyun.listing import market_of, parse_time
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.request import deployment_set_name

_TAGGED: Final = [{"Key": machinetags.JOB}]
_SET: Final = re.compile(r"cloudspot-([a-z0-9-]+)-[0-9a-f]{8}")
_DISK_CODES: Final[Mapping[str, type[CloudspotError]]] = {"IncorrectDiskStatus": TransientError}
_NO_DISK: Final = frozenset({"InvalidDiskId.NotFound"})
HOURS_A_DAY: Final = 24


def account_regions(clients: AliyunClients) -> tuple[str, ...]:
    """Return the regions in which the account can use ECS."""
    answer = read(clients, "listing the regions (ecs:DescribeRegions)", "DescribeRegions")
    return tuple(sorted(str(one["RegionId"]) for one in items(answer, "Regions", "Region")))


def inventories(options: AliyunOptions, clients: AliyunClients) -> tuple[Inventory, ...]:
    """Return the inventories of the clients' region, in the order in which their assets should be ended."""
    return (*(kind(options, clients) for kind in (_Machines, _Disks, _DeploymentSets)), _Drivers(clients))


class _AliyunInventory(Inventory):
    """Resources of one kind in the clients' region."""

    plural: str

    def __init__(self, options: AliyunOptions, clients: AliyunClients) -> None:
        self.title = f"{self.plural} in {clients.region}"
        self._options = options
        self._clients = clients


class _Machines(_AliyunInventory):
    """The instances, including stopped ones; ECS does not list ended ones."""

    plural = "machines"

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        wanted, path = {"Tag": _TAGGED}, ("Instances", "Instance")
        what = f"listing the {self.title}"
        with readable(what):
            pages = read_pages(self._clients, what, "DescribeInstances", wanted, path=path)
            return [self._asset(one) for one in pages]

    def end(self, asset: Asset) -> None:
        MachineInventory(EcsProvisioner(self._options, self._clients)).end(asset)

    def _asset(self, described: Mapping[str, Any]) -> Asset:
        own_tags, market = tags.from_answer(described), market_of(described)
        is_stopped = described["Status"] == "Stopped"
        # A stopped machine's disk is billed; so is the machine, unless it was stopped in economical mode.
        price, currency = (None, "CNY") if is_stopped else self._price(described, market)
        return Asset(
            kind="stopped machine" if is_stopped else "machine",
            id=str(described["InstanceId"]),
            where=str(described.get("ZoneId") or ""),
            job_id=own_tags.get(machinetags.JOB, ""),
            store_url=own_tags.get(machinetags.STORE, ""),
            created_at=parse_time(described.get("CreationTime")),
            price_per_day=price,
            currency=currency,
            detail=f"{described['InstanceType']}, {market.value}",
        )

    def _price(self, described: Mapping[str, Any], market: Market) -> tuple[float | None, str]:
        """Return the machine's price per day, without its disk, and the currency."""
        instance_type = str(described["InstanceType"])
        with suppress(CloudspotError):
            if market is Market.SPOT:
                prices = pricing.spot_prices(self._clients, instance_type, spot_hours=0)
                spot = prices.get(str(described.get("ZoneId")))
                return (None, "CNY") if spot is None else (spot.price * HOURS_A_DAY, spot.currency)
            disk_type = self._options.disk_type
            price, currency = pricing.on_demand_price(self._clients, instance_type, disk_type=disk_type)
            return price * HOURS_A_DAY, currency
        return None, "CNY"


class _Disks(_AliyunInventory):
    """The detached disks. A machine's system disk has the machine's tags (from memory of RunInstances)."""

    plural = "disks"

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        wanted, path = {"Tag": _TAGGED, "Status": "Available"}, ("Disks", "Disk")
        what = f"listing the {self.title}"
        with readable(what):
            pages = read_pages(self._clients, what, "DescribeDisks", wanted, path=path)
            return [self._asset(one) for one in pages]

    def _asset(self, described: Mapping[str, Any]) -> Asset:
        own_tags = tags.from_answer(described)
        return Asset(
            kind="disk",
            id=str(described["DiskId"]),
            where=str(described.get("ZoneId") or ""),
            job_id=own_tags.get(machinetags.JOB, ""),
            store_url=own_tags.get(machinetags.STORE, ""),
            created_at=parse_time(described.get("CreationTime")),
            detail=f"{described.get('Size')} GiB {described.get('Category')}",
        )

    def end(self, asset: Asset) -> None:
        codes = {**_DISK_CODES, **dict.fromkeys(_NO_DISK, _GoneError)}
        with suppress(_GoneError):
            read(self._clients, f"deleting {asset.id}", "DeleteDisk", {"DiskId": asset.id}, codes=codes)


class _DeploymentSets(_AliyunInventory):
    """The deployment sets of jobs. Deployment sets cost nothing, but their number is limited."""

    plural = "deployment sets"

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        with readable(f"listing the {self.title}"):
            return list(self._found(store_urls))

    def end(self, asset: Asset) -> None:
        deploymentsets.remove_one(self._clients, asset.id)

    def _found(self, store_urls: Sequence[str]) -> Iterator[Asset]:
        what, path = f"listing the {self.title}", ("DeploymentSets", "DeploymentSet")
        for deployment_set in read_numbered_pages(
            self._clients, what, "DescribeDeploymentSets", {}, path=path
        ):
            name = str(deployment_set.get("DeploymentSetName"))
            match = _SET.fullmatch(name)
            for store_url in store_urls if match else ():
                assert match is not None
                if deployment_set_name(match[1], store_url) == name:
                    yield Asset(
                        kind="deployment set",
                        id=str(deployment_set["DeploymentSetId"]),
                        where=self._clients.region,
                        job_id=match[1],
                        store_url=store_url,
                        created_at=parse_time(deployment_set.get("CreationTime")),
                        price_per_day=0.0,
                        detail=name,
                    )


class _Drivers(DriverInventory):
    """The functions of ``cloudspot driver``, and roles whose function no longer exists."""

    def __init__(self, clients: AliyunClients) -> None:
        self.title = f"drivers in {clients.region}"
        self._host = FunctionComputeHost(clients)

    def host_of(self, name: str) -> FunctionHost:
        return self._host

    def rest_of(self, name: str) -> DriverRest | None:
        made_at = self._host.role(name).made_at()
        return None if made_at is None else DriverRest(("role",), made_at)


class _GoneError(CloudspotError):
    """The disk does not exist."""
