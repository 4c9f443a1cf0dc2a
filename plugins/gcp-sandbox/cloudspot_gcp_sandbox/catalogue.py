"""What the emulated Compute Engine offers: regions, zones, machine types, accelerators and images.

A part of the real catalogue: names, sizes and places are from memory of its documentation ("Machine
families", "Regions and zones", "GPU regions and zones").
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from cloudspot_gcp.options import DEFAULT_IMAGE, region_of

BASE: Final = "https://www.googleapis.com/compute/v1/"
CREATED: Final = "2026-11-01T00:00:00.000-07:00"
ZONES: Final[Mapping[str, str]] = {
    "us-central1": "abcf",
    "us-east1": "bcd",
    "europe-west4": "abc",
    "asia-east1": "abc",
}
IMAGE_PROJECT: Final = "deeplearning-platform-release"
FAMILY: Final = DEFAULT_IMAGE.rpartition("/")[2]
BARE_IMAGE: Final = "projects/ubuntu-os-cloud/global/images/ubuntu-2204-jammy-v20261101"
"""It has python3 and curl, and neither PyTorch nor cloudspot."""
HYPERDISK_ONLY: Final = frozenset({"c4", "n4"})
COMPACT_FAMILIES: Final = frozenset({"a2", "a3", "c2", "g2", "n2", "c4"})
"""The families here that a compact placement policy accepts."""


@dataclass(frozen=True)
class Image:
    """A machine image."""

    project: str
    name: str
    family: str
    size_gib: int
    architecture: str = "X86_64"

    @property
    def path(self) -> str:
        """Return ``projects/PROJECT/global/images/NAME``."""
        return f"projects/{self.project}/global/images/{self.name}"


IMAGES: Final = (
    Image(IMAGE_PROJECT, f"{FAMILY}-v20261001", FAMILY, 50),
    Image("ubuntu-os-cloud", "ubuntu-2204-jammy-v20261101", "ubuntu-2204-lts", 10),
    Image("ubuntu-os-cloud", "ubuntu-2204-jammy-arm64-v20261101", "ubuntu-2204-lts-arm64", 10, "ARM64"),
)


@dataclass(frozen=True)
class MachineType:
    """A machine type."""

    name: str
    cpus: int
    memory_mib: int
    accelerator: str = ""
    accelerator_count: int = 0
    is_shared: bool = False
    architecture: str = "X86_64"

    @property
    def family(self) -> str:
        """Return such as ``n2``."""
        return self.name.partition("-")[0]


def _sizes(family: str, kind: str, gib_a_cpu: float, sizes: Sequence[int]) -> list[MachineType]:
    return [MachineType(f"{family}-{kind}-{n}", n, int(n * gib_a_cpu * 1024)) for n in sizes]


MACHINE_TYPES: Final[Mapping[str, MachineType]] = {
    one.name: one
    for one in (
        MachineType("e2-medium", 2, 4096, is_shared=True),
        *_sizes("e2", "standard", 4, (2, 4, 8, 16, 32)),
        *_sizes("e2", "highmem", 8, (2, 4, 8, 16)),
        *_sizes("n1", "standard", 3.75, (1, 2, 4, 8, 16, 32)),
        *_sizes("n2", "standard", 4, (2, 4, 8, 16, 32, 64)),
        *_sizes("n2", "highcpu", 1, (2, 4, 8, 16, 32)),
        *_sizes("c2", "standard", 4, (4, 8, 16)),
        *_sizes("c4", "standard", 3.75, (2, 4, 8)),
        MachineType("t2a-standard-4", 4, 16384, architecture="ARM64"),
        MachineType("g2-standard-4", 4, 16384, "nvidia-l4", 1),
        MachineType("g2-standard-8", 8, 32768, "nvidia-l4", 1),
        MachineType("g2-standard-24", 24, 98304, "nvidia-l4", 2),
        MachineType("g2-standard-48", 48, 196608, "nvidia-l4", 4),
        MachineType("a2-highgpu-1g", 12, 87040, "nvidia-tesla-a100", 1),
        MachineType("a2-highgpu-2g", 24, 174080, "nvidia-tesla-a100", 2),
        MachineType("a2-highgpu-8g", 96, 696320, "nvidia-tesla-a100", 8),
        MachineType("a2-ultragpu-1g", 12, 174080, "nvidia-a100-80gb", 1),
        MachineType("a3-highgpu-8g", 208, 1916928, "nvidia-h100-80gb", 8),
    )
}
_PLACES: Final[Mapping[str, frozenset[str]]] = {
    "g2": frozenset({"us-central1-a", "us-central1-b", "us-central1-c", "us-east1-c", "europe-west4-a"}),
    "a2": frozenset({"us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "europe-west4-a"}),
    "a3": frozenset({"us-central1-a", "us-east1-d"}),
    "t2a": frozenset({"us-central1-a", "us-central1-b", "us-central1-f", "europe-west4-a"}),
}
ATTACHABLE: Final[Mapping[str, frozenset[str]]] = {
    "nvidia-tesla-t4": frozenset(
        {"us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-east1-c", "europe-west4-b"}
    ),
    "nvidia-tesla-v100": frozenset({"us-central1-a", "us-central1-b", "europe-west4-a"}),
}
"""Accelerators for machines of the family n1, with their zones."""


def zone_names() -> list[str]:
    """Return the names of all zones."""
    return [f"{region}-{letter}" for region, letters in ZONES.items() for letter in letters]


def is_in(machine_type: MachineType, zone: str) -> bool:
    """Return whether the zone has the machine type."""
    places = _PLACES.get(machine_type.family)
    return zone in zone_names() and (places is None or zone in places)


def number_of(text: str) -> str:
    """Return the id of a resource that always has the same, such as a zone."""
    return str(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))


@cache
def zone_value(zone: str, project: str) -> Mapping[str, Any]:
    """Return a zone as the API shows it."""
    path = f"projects/{project}/zones/{zone}"
    return {
        "kind": "compute#zone",
        "id": number_of(zone),
        "creationTimestamp": CREATED,
        "name": zone,
        "description": zone,
        "status": "UP",
        "region": f"{BASE}projects/{project}/regions/{region_of(zone)}",
        "selfLink": BASE + path,
    }


def region_value(region: str, project: str, quotas: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return a region as the API shows it."""
    return {
        "kind": "compute#region",
        "id": number_of(region),
        "creationTimestamp": CREATED,
        "name": region,
        "description": region,
        "status": "UP",
        "zones": [f"{BASE}projects/{project}/zones/{region}-{letter}" for letter in ZONES[region]],
        "quotas": list(quotas),
        "selfLink": f"{BASE}projects/{project}/regions/{region}",
    }


@cache
def machine_type_value(name: str, zone: str, project: str) -> Mapping[str, Any]:
    """Return a machine type as the API shows it in a zone."""
    one = MACHINE_TYPES[name]
    value: dict[str, Any] = {
        "kind": "compute#machineType",
        "id": number_of(name),
        "creationTimestamp": CREATED,
        "name": name,
        "description": f"{one.cpus} vCPUs, {one.memory_mib / 1024:g} GB RAM",
        "guestCpus": one.cpus,
        "memoryMb": one.memory_mib,
        "isSharedCpu": one.is_shared,
        "architecture": one.architecture,
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        "zone": zone,
        "selfLink": f"{BASE}projects/{project}/zones/{zone}/machineTypes/{name}",
    }
    if one.accelerator:
        value["accelerators"] = [
            {"guestAcceleratorType": one.accelerator, "guestAcceleratorCount": one.accelerator_count}
        ]
    return value


def machine_types_in(zone: str, project: str) -> list[Mapping[str, Any]]:
    """Return the zone's machine types, by name."""
    return [
        machine_type_value(name, zone, project)
        for name, one in sorted(MACHINE_TYPES.items())
        if is_in(one, zone)
    ]


def accelerator_types_in(zone: str, project: str) -> list[Mapping[str, Any]]:
    """Return the zone's accelerators, by name."""
    built_in = {one.accelerator for one in MACHINE_TYPES.values() if one.accelerator and is_in(one, zone)}
    attachable = {name for name, zones in ATTACHABLE.items() if zone in zones}
    return [
        {
            "kind": "compute#acceleratorType",
            "id": number_of(name),
            "creationTimestamp": CREATED,
            "name": name,
            "description": name.replace("-", " "),
            "maximumCardsPerInstance": 4 if name in attachable else 16,
            "zone": f"{BASE}projects/{project}/zones/{zone}",
            "selfLink": f"{BASE}projects/{project}/zones/{zone}/acceleratorTypes/{name}",
        }
        for name in sorted(built_in | attachable)
    ]


def image_value(image: Image) -> dict[str, Any]:
    """Return an image as the API shows it."""
    return {
        "kind": "compute#image",
        "id": number_of(image.name),
        "creationTimestamp": CREATED,
        "name": image.name,
        "family": image.family,
        "status": "READY",
        "architecture": image.architecture,
        "diskSizeGb": str(image.size_gib),
        "selfLink": BASE + image.path,
    }
