"""The instance types of a region: what they are, and where ECS says that there are some."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from cloudspot.model import Market, Resources
from cloudspot_aliyun.api import items, read, read_pages
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.lookups import unknown_names

MIN_CPUS: Final = 2
MIN_MEMORY_BYTES: Final = 8 * 2**30
"""What a machine has at the least where the job does not say: torch, the agent and an arena need room."""
MAX_NAMED: Final = 10
"""Types of one DescribeInstanceTypes call (API reference; checked 2026-11)."""
GIB: Final = 2**30
_ARCHITECTURES: Final = {"X86": "x86_64", "ARM": "arm64"}
_MAKERS: Final = re.compile(r"\b(?:nvidia|tesla|amd|geforce)\b")
_UNFIT: Final = frozenset({"CreditEntryLevel"})
"""Families that run at a fraction of their processors once their credits are spent."""


class InstanceType(msgspec.Struct, frozen=True, kw_only=True):
    """What of an instance type matters for the choice."""

    name: str
    architecture: str
    """As images have it: ``x86_64`` or ``arm64``."""
    cpus: int
    memory_bytes: int
    accelerator: str | None
    """As ECS names it, such as ``NVIDIA A10``."""
    accelerator_count: int
    is_plain: bool
    """Neither bare metal nor of a family that is throttled: it may be chosen unasked."""

    def fits(self, resources: Resources) -> bool:
        """Say whether it has what one node must have."""
        if resources.accelerator is not None and _plain(resources.accelerator) != _plain(self.accelerator):
            return False
        if resources.accelerator_count and self.accelerator_count < resources.accelerator_count:
            return False
        return self.cpus >= resources.cpus and self.memory_bytes >= resources.memory_bytes


def named_types(clients: AliyunClients, names: Sequence[str]) -> list[InstanceType]:
    """Return the types of these names, in their order.

    Raises:
        SpecError: the region has no such type.
    """
    found: dict[str, InstanceType] = {}
    for start in range(0, len(names), MAX_NAMED):
        wanted = {"InstanceTypes": list(names[start : start + MAX_NAMED])}
        answer = read(clients, "looking up the instance types", "DescribeInstanceTypes", wanted)
        found |= {
            one.name: one for one in map(_to_type, items(answer, "InstanceTypes", "InstanceType")) if one
        }
    if any(name not in found for name in names):
        unknown_names(names, [*found, *(one.name for one in all_types(clients))], clients.region)
    return [found[name] for name in names if name in found]


def all_types(clients: AliyunClients) -> list[InstanceType]:
    """Return all types that there are."""
    pages = read_pages(
        clients,
        "looking for instance types that have the resources",
        "DescribeInstanceTypes",
        {},
        path=("InstanceTypes", "InstanceType"),
    )
    return [one for one in map(_to_type, pages) if one is not None]


def fitting_types(
    types: Sequence[InstanceType], resources: Resources, *, architecture: str
) -> list[InstanceType]:
    """Return the types that have what one node must have, the smallest first.

    A job that asks for no accelerator gets none, and at least ``MIN_CPUS`` and ``MIN_MEMORY_BYTES``.
    """
    wanted = msgspec.structs.replace(
        resources,
        cpus=resources.cpus or MIN_CPUS,
        memory_bytes=resources.memory_bytes or MIN_MEMORY_BYTES,
    )
    asks = bool(resources.accelerator or resources.accelerator_count)
    fitting = [
        one
        for one in types
        if one.fits(wanted)
        and one.is_plain
        and one.architecture == architecture
        and (asks or not one.accelerator_count)
    ]
    return sorted(fitting, key=lambda one: (one.accelerator_count, one.cpus, one.memory_bytes, one.name))


def stock(clients: AliyunClients, market: Market, *, spot_hours: int) -> dict[tuple[str, str], bool]:
    """Return by (type, zone) whether there are some now; a pair that is not in it can never be had.

    Raises:
        AuthError: the right ``ecs:DescribeAvailableResource`` is missing.
        TransientError: Alibaba Cloud did not answer.
    """
    wanted: dict[str, Any] = {
        "DestinationResource": "InstanceType",
        "InstanceChargeType": "PostPaid",
        "IoOptimized": "optimized",
        "NetworkCategory": "vpc",
        "SpotStrategy": "NoSpot",
    }
    if market is Market.SPOT:
        wanted |= {"SpotStrategy": "SpotAsPriceGo", "SpotDuration": spot_hours}
    answer = read(clients, "asking where there are machines", "DescribeAvailableResource", wanted)
    found: dict[tuple[str, str], bool] = {}
    for zone in items(answer, "AvailableZones", "AvailableZone"):
        for kind in items(zone, "AvailableResources", "AvailableResource"):
            for one in items(kind, "SupportedResources", "SupportedResource"):
                found[str(one["Value"]), str(zone["ZoneId"])] = one.get("Status") == "Available"
    return found


def _to_type(described: Mapping[str, Any]) -> InstanceType | None:
    architecture = _ARCHITECTURES.get(str(described.get("CpuArchitecture") or "X86").upper())
    if architecture is None:
        return None
    name = str(described["InstanceTypeId"])
    return InstanceType(
        name=name,
        architecture=architecture,
        cpus=int(described["CpuCoreCount"]),
        memory_bytes=round(float(described["MemorySize"]) * GIB),
        accelerator=str(described.get("GPUSpec") or "") or None,
        accelerator_count=int(described.get("GPUAmount") or 0),
        is_plain=described.get("InstanceFamilyLevel") not in _UNFIT
        and not name.startswith(("ecs.ebm", "ecs.scc")),
    )


def _plain(name: str | None) -> str:
    """Return a name as people agree on it: ``NVIDIA Tesla V100`` and ``v100`` are one."""
    return "-".join(_MAKERS.sub(" ", (name or "").lower()).split())
