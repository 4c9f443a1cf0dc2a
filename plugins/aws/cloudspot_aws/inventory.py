"""Finds the resources that cloudspot has made in an AWS account, for ``cloudspot reap``.

cloudspot allocates no public addresses and no network interfaces; EC2 removes those of a machine with it.
Resources are recognised by their tags alone. Schedules have no tags, so they are recognised by the name, the
description and the target that :mod:`cloudspot_aws.limit` gives them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.interfaces import Inventory, MachineInventory
from cloudspot.model import Asset, Market
from cloudspot.plugin import machinetags
from cloudspot_aws import limit, pricing, tags
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.driverinventory import DriverInventory
from cloudspot_aws.ec2 import Ec2Provisioner
from cloudspot_aws.errors import ERRORS, ignored
from cloudspot_aws.offers import read_spot_prices
from cloudspot_aws.options import AwsOptions

_ALIVE: Final = ("pending", "running", "stopping", "stopped")
_TAGGED: Final = {"Name": "tag-key", "Values": [machinetags.JOB]}
_SCHEDULE: Final = re.compile(r"cloudspot-[0-9a-f]{20}-(i-[0-9a-f]+)")
_DESCRIPTION: Final = re.compile(r"cloudspot: ends (i-[0-9a-f]+) of job ([a-z0-9-]+), launch \d+")
HOURS_A_DAY: Final = 24


def account_regions(clients: AwsClients) -> tuple[str, ...]:
    """Return the regions that the account has enabled.

    Source: EC2 API reference, DescribeRegions: without AllRegions, it lists only enabled regions (checked
        2026-11).
    """
    with ERRORS.translated("listing the regions (ec2:DescribeRegions)"):
        return tuple(sorted(one["RegionName"] for one in clients.client("ec2").describe_regions()["Regions"]))


def inventories(options: AwsOptions, clients: AwsClients) -> tuple[Inventory, ...]:
    """Return the inventories of the clients' region, in the order in which their assets should be ended."""
    ours = (_Machines, _Volumes, _PlacementGroups, _Schedules)
    return (*(kind(options, clients) for kind in ours), DriverInventory(clients))


class _AwsInventory(Inventory):
    """Resources of one kind in the clients' region."""

    plural: str

    def __init__(self, options: AwsOptions, clients: AwsClients) -> None:
        self.title = f"{self.plural} in {clients.region}"
        self._options = options
        self._clients = clients

    @property
    def _ec2(self) -> Any:
        return self._clients.client("ec2")

    def _pages(self, operation: str, field: str, **wanted: Any) -> Iterator[Mapping[str, Any]]:
        with ERRORS.translated(f"listing the {self.title}"):
            for page in self._ec2.get_paginator(operation).paginate(**wanted):
                yield from page[field]


class _Machines(_AwsInventory):
    """The instances that have not ended, including stopped ones."""

    plural = "machines"

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        alive = {"Name": "instance-state-name", "Values": list(_ALIVE)}
        machines = [
            one
            for reservation in self._pages("describe_instances", "Reservations", Filters=[_TAGGED, alive])
            for one in reservation["Instances"]
        ]
        return [self._asset(one) for one in machines]

    def end(self, asset: Asset) -> None:
        MachineInventory(Ec2Provisioner(self._options, self._clients)).end(asset)

    def _asset(self, described: Mapping[str, Any]) -> Asset:
        state, zone = described["State"]["Name"], described["Placement"]["AvailabilityZone"]
        market = Market.SPOT if described.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND
        is_billed = state in {"pending", "running"}
        return Asset(
            kind="machine" if is_billed else f"{state} machine",
            id=described["InstanceId"],
            where=zone,
            job_id=_tag(described, machinetags.JOB),
            store_url=_tag(described, machinetags.STORE),
            created_at=described["LaunchTime"],
            # For a stopped machine, only the disk is billed.
            price_per_day=self._price(described["InstanceType"], zone, market) if is_billed else None,
            detail=f"{described['InstanceType']}, {market.value}",
        )

    def _price(self, instance_type: str, zone: str, market: Market) -> float | None:
        """Return the machine's price per day, without its disk and address."""
        with suppress(CloudspotError):
            if market is Market.SPOT:
                an_hour = read_spot_prices(self._clients, (instance_type,)).get((instance_type, zone))
            else:
                an_hour = pricing.on_demand_price(self._clients, self._clients.region, instance_type)
            return None if an_hour is None else an_hour * HOURS_A_DAY
        return None


class _Volumes(_AwsInventory):
    """The detached volumes; attached ones are deleted with their machine."""

    plural = "volumes"

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        detached = {"Name": "status", "Values": ["available"]}
        return [
            Asset(
                kind="volume",
                id=one["VolumeId"],
                where=one["AvailabilityZone"],
                job_id=_tag(one, machinetags.JOB),
                store_url=_tag(one, machinetags.STORE),
                created_at=one["CreateTime"],
                price_per_day=self._price(one),
                detail=f"{one['Size']} GiB {one['VolumeType']}",
            )
            for one in self._pages("describe_volumes", "Volumes", Filters=[_TAGGED, detached])
        ]

    def end(self, asset: Asset) -> None:
        codes = {"VolumeInUse": CloudspotError}
        with ERRORS.translated(f"deleting {asset.id}", codes), ignored("InvalidVolume.NotFound"):
            self._ec2.delete_volume(VolumeId=asset.id)

    def _price(self, described: Mapping[str, Any]) -> float | None:
        with suppress(CloudspotError):
            a_gib = pricing.disk_price(self._clients, self._clients.region, described["VolumeType"])
            return None if a_gib is None else a_gib * HOURS_A_DAY * described["Size"]
        return None


class _PlacementGroups(_AwsInventory):
    """The placement groups of jobs with several nodes; they cost nothing."""

    plural = "placement groups"

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        with ERRORS.translated(f"listing the {self.title}"):
            groups = self._ec2.describe_placement_groups(Filters=[_TAGGED])["PlacementGroups"]
        return [
            Asset(
                kind="placement group",
                id=one["GroupName"],
                where=self._clients.region,
                job_id=_tag(one, machinetags.JOB),
                store_url=_tag(one, machinetags.STORE),
                price_per_day=0.0,
            )
            for one in groups
            if one["State"] not in {"deleting", "deleted"}
        ]

    def end(self, asset: Asset) -> None:
        codes = {"InvalidPlacementGroup.InUse": TransientError}
        with ERRORS.translated(f"deleting {asset.id}", codes), ignored("InvalidPlacementGroup.Unknown"):
            self._ec2.delete_placement_group(GroupName=asset.id)


class _Schedules(_AwsInventory):
    """The schedules that end machines; each one deletes itself after it has run."""

    plural = "schedules"

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        client = self._clients.client("scheduler")
        assets: list[Asset] = []
        with ERRORS.translated(f"listing the {self.title}"):
            for page in client.get_paginator("list_schedules").paginate(NamePrefix="cloudspot-"):
                for schedule in page["Schedules"]:
                    if _SCHEDULE.fullmatch(schedule["Name"]) and schedule["Target"]["Arn"].endswith(
                        limit.ACTION
                    ):
                        # The listing lacks the description, which shows whether a schedule is cloudspot's.
                        with ignored("ResourceNotFoundException"):
                            assets += self._known(client.get_schedule(Name=schedule["Name"]), store_urls)
        return assets

    def end(self, asset: Asset) -> None:
        what = f"deleting schedule {asset.id}"
        with ERRORS.translated(what), ignored("ResourceNotFoundException"):
            self._clients.client("scheduler").delete_schedule(Name=asset.id)

    def _known(self, described: Mapping[str, Any], store_urls: Sequence[str]) -> Iterator[Asset]:
        says = _DESCRIPTION.fullmatch(described.get("Description", ""))
        if says is None or not described["Name"].endswith(says[1]):
            return
        job_id = says[2]
        owners = (one for one in store_urls if described["Name"].startswith(limit.prefix_of(job_id, one)))
        yield Asset(
            kind="schedule",
            id=described["Name"],
            where=self._clients.region,
            job_id=job_id,
            store_url=next(owners, ""),
            created_at=described["CreationDate"],
            price_per_day=0.0,
            detail=f"ends {says[1]}",
        )


def _tag(described: Mapping[str, Any], name: str) -> str:
    return tags.from_list(described.get("Tags")).get(name, "")
