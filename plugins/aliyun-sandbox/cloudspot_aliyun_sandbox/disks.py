"""Detached disks, made by CreateDisk or left by a machine, and machines' disks, which are in use.

Source: ECS API reference, CreateDisk, DescribeDisks, DeleteDisk (checked 2026-11); the codes are from memory.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudspot_aliyun_sandbox.account import has_tags, wanted_tags
from cloudspot_aliyun_sandbox.machines import Machines, written_time
from cloudspot_aliyun_sandbox.rpc import ApiError, check_handled, nested

Parameters = Mapping[str, str]


@dataclass
class _Disk:
    region: str
    zone: str
    size: int
    category: str
    created_at: float
    tags: dict[str, str] = field(default_factory=dict)


class Disks:
    """The account's disks. The caller holds the machines' lock."""

    def __init__(self, machines: Machines, clock: Callable[[], float]) -> None:
        self._machines = machines
        self._clock = clock
        self._alone: dict[str, _Disk] = {}

    def create(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer CreateDisk."""
        made = f"d-bp1{secrets.token_hex(9)[:17]}"
        self._alone[made] = _Disk(
            region,
            parameters["ZoneId"],
            int(parameters["Size"]),
            parameters.get("DiskCategory", "cloud_essd"),
            self._clock(),
            {tag["Key"]: tag.get("Value", "") for tag in nested(parameters, "Tag")},
        )
        return {"DiskId": made}

    def describe(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribeDisks, with a single page."""
        check_handled(parameters, {"MaxResults", "Status", "Tag"}, what="filter")
        wanted, status = wanted_tags(parameters), parameters.get("Status", "All")
        rows = [
            {
                "DiskId": disk_id,
                "ZoneId": one.zone,
                "Size": one.size,
                "Category": one.category,
                "Status": "In_use" if disk_id in self._in_use(region) else "Available",
                "CreationTime": written_time(one.created_at),
                "Tags": {"Tag": [{"TagKey": name, "TagValue": value} for name, value in one.tags.items()]},
            }
            for disk_id, one in {**self._alone, **self._in_use(region)}.items()
            if one.region == region and has_tags(one.tags, wanted)
        ]
        return {"Disks": {"Disk": [one for one in rows if status in {"All", one["Status"]}]}}

    def delete(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DeleteDisk, which refuses an attached disk."""
        disk_id = parameters.get("DiskId", "")
        if disk_id in self._in_use(region):
            message = "The current disk status does not support this operation."
            raise ApiError("IncorrectDiskStatus", message, status=403)
        if disk_id not in self._alone or self._alone[disk_id].region != region:
            raise ApiError("InvalidDiskId.NotFound", "The specified disk does not exist.", status=404)
        del self._alone[disk_id]
        return {}

    def _in_use(self, region: str) -> dict[str, _Disk]:
        """Return the machines' system disks."""
        return {
            "d-" + one.id.removeprefix("i-"): _Disk(
                region, one.zone, one.boot_disk.size_gib, "cloud_essd", one.created_at, one.tags
            )
            for one in self._machines.known(region)
        }
