"""The instance types of a region, and the zones in which they are in stock."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cloudspot.model import Market
from cloudspot.plugin.machinetypes import MachineType
from cloudspot_aliyun.api import items, read, read_pages
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.options import unknown_type

MAX_NAMED: Final = 10
"""The maximum number of types in one DescribeInstanceTypes call (API reference; checked 2026-11)."""
GIB: Final = 2**30
_ARCHITECTURES: Final = {"X86": "x86_64", "ARM": "arm64"}
_MAKERS: Final = re.compile(r"\b(?:nvidia|tesla|amd|geforce)\b")
_UNFIT: Final = frozenset({"CreditEntryLevel", "EntryLevel"})
"""Families whose processors slow down once their credits are spent, such as t6, or are shared, such as s6."""


class InstanceType(MachineType, frozen=True, kw_only=True):
    """An instance type; its accelerator has ECS's name, such as ``NVIDIA A10``."""

    architecture: str
    """``x86_64`` or ``arm64``, as for images."""
    is_plain: bool
    """Whether the type may be chosen without being named: it is neither bare metal nor throttled."""

    def is_called(self, accelerator: str) -> bool:
        """Return whether ``accelerator`` names this type's one, as ``v100`` names ``NVIDIA Tesla V100``."""
        return _plain(accelerator) == _plain(self.accelerator or "")


def named_types(clients: AliyunClients, names: Sequence[str]) -> list[InstanceType]:
    """Return the named types, in the order of the names; raise SpecError if the region lacks one."""
    types: dict[str, InstanceType] = {}
    for start in range(0, len(names), MAX_NAMED):
        wanted = {"InstanceTypes": list(names[start : start + MAX_NAMED])}
        answer = read(clients, "looking up the instance types", "DescribeInstanceTypes", wanted)
        types |= {
            one.name: one for one in map(_to_type, items(answer, "InstanceTypes", "InstanceType")) if one
        }
    if any(name not in types for name in names):
        known = {*types, *(one.name for one in all_types(clients))}
        for name in names:
            if name not in known:
                raise unknown_type("instance_types", name, known, where=clients.region)
    return [types[name] for name in names if name in types]


def all_types(clients: AliyunClients) -> list[InstanceType]:
    """Return all types of the region."""
    pages = read_pages(
        clients,
        "looking for instance types that have the resources",
        "DescribeInstanceTypes",
        {},
        path=("InstanceTypes", "InstanceType"),
    )
    return [one for one in map(_to_type, pages) if one is not None]


def stock(clients: AliyunClients, market: Market, *, spot_hours: int) -> dict[tuple[str, str], bool]:
    """Return whether each (type, zone) is in stock now; pairs that are not sold are missing.

    Raises:
        AuthError: the permission ``ecs:DescribeAvailableResource`` is missing.
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
    has_stock: dict[tuple[str, str], bool] = {}
    for zone in items(answer, "AvailableZones", "AvailableZone"):
        for kind in items(zone, "AvailableResources", "AvailableResource"):
            for machine_type in items(kind, "SupportedResources", "SupportedResource"):
                has_stock[str(machine_type["Value"]), str(zone["ZoneId"])] = (
                    machine_type.get("Status") == "Available"
                )
    return has_stock


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


def _plain(name: str) -> str:
    return "-".join(_MAKERS.sub(" ", name.lower()).split())
