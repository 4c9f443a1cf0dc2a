"""The emulated Compute Engine's catalogue: regions, zones, machine types, accelerators and images.

The catalogue is a selection from the real one. The sizes, disks and markets of machines with accelerators,
and the limits of attached accelerators, are from Compute Engine documentation, "GPU machine types" and
"Accelerator-optimized machine family" (as of 2026-04-14; checked 2026-11); the rest, above all the zones, is
from memory of "Machine families", "Regions and zones" and "GPU regions and zones".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
AI_ZONES: Final = ("us-central1-ai1a",)
"""Zones that are separate from their regions' other zones, and which a bulk insert never uses ("AI zones";
the discovery document's LocationPolicy.locations; checked 2026-11).
"""
IMAGE_PROJECT: Final = "deeplearning-platform-release"
FAMILY: Final = DEFAULT_IMAGE.rpartition("/")[2]
_DISKS: Final[Mapping[str, str]] = {
    "a3": "pd-balanced pd-ssd hyperdisk-balanced",
    "a3-ultragpu": "hyperdisk-balanced",
    "a4": "hyperdisk-balanced",
    "a4x": "hyperdisk-balanced",
    "c4": "hyperdisk-balanced",
    "g2": "pd-balanced pd-ssd",
    "g4": "hyperdisk-balanced",
    "n4": "hyperdisk-balanced",
}
"""The disks from which the machines of a series can boot; by default, any Persistent Disk."""
COMPACT_FAMILIES: Final = frozenset({"a2", "a3", "a4", "a4x", "c2", "g2", "g4", "n2", "c4"})
"""The emulated families that a compact placement policy accepts."""
_MARKETS: Final[Mapping[str, str]] = {
    "a3-highgpu-1g": "SPOT FLEX_START",
    "a3-highgpu-2g": "SPOT FLEX_START",
    "a3-highgpu-4g": "SPOT FLEX_START",
    "a3-ultragpu-8g": "SPOT FLEX_START",
    "a4-highgpu-8g": "SPOT FLEX_START",
    "a4x-highgpu-4g": "",
}
"""The provisioning models of machines without a reservation; by default, all models."""


@dataclass(frozen=True)
class Image:
    """A machine image."""

    project: str
    name: str
    family: str
    size_gib: int
    architecture: str = "X86_64"
    is_bare: bool = False
    """Whether the image has python3 and curl, but neither PyTorch nor cloudspot."""
    status: str = "READY"
    disk: str | None = None
    """The copy of a machine's disk that the image contains; see ``MachineHost.save_disk``."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the API shows in addition to, or instead of, the fields of all images."""

    @property
    def path(self) -> str:
        """Return ``projects/PROJECT/global/images/NAME``."""
        return f"projects/{self.project}/global/images/{self.name}"


IMAGES: Final = (
    Image(IMAGE_PROJECT, f"{FAMILY}-v20261001", FAMILY, 50),
    Image("ubuntu-os-cloud", "ubuntu-2204-jammy-v20261101", "ubuntu-2204-lts", 10, is_bare=True),
    Image(
        "ubuntu-os-cloud",
        "ubuntu-2204-jammy-arm64-v20261101",
        "ubuntu-2204-lts-arm64",
        10,
        "ARM64",
        is_bare=True,
    ),
)
BARE_IMAGE: Final = IMAGES[1].path


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
        """Return the family, such as ``n2``."""
        return self.name.partition("-")[0]

    @property
    def disks(self) -> frozenset[str]:
        """Return the kinds of disk from which the type can boot."""
        series = self.name.rpartition("-")[0]
        return frozenset(
            _DISKS.get(series, _DISKS.get(self.family, "pd-standard pd-balanced pd-ssd")).split()
        )

    @property
    def provisioning_models(self) -> frozenset[str]:
        """Return the type's provisioning models without a reservation."""
        return frozenset(_MARKETS.get(self.name, "STANDARD SPOT FLEX_START").split())


def _sizes(family: str, kind: str, gib_a_cpu: float, sizes: Sequence[int]) -> list[MachineType]:
    return [MachineType(f"{family}-{kind}-{n}", n, int(n * gib_a_cpu * 1024)) for n in sizes]


def _with(accelerator: str, *lines: str, architecture: str = "X86_64") -> list[MachineType]:
    """Return machine types, one for each line: a name, vCPUs, GB of memory, and a number of accelerators."""
    rows = [line.split() for line in lines]
    return [
        MachineType(name, int(cpus), int(gib) * 1024, accelerator, int(num), architecture=architecture)
        for name, cpus, gib, num in rows
    ]


MACHINE_TYPES: Final[Mapping[str, MachineType]] = {
    one.name: one
    for one in (
        MachineType("e2-medium", 2, 4096, is_shared=True),
        *_sizes("e2", "standard", 4, (2, 4, 8, 16, 32)),
        *_sizes("e2", "highmem", 8, (2, 4, 8, 16)),
        *_sizes("n1", "standard", 3.75, (1, 2, 4, 8, 16, 32, 64, 96)),
        *_sizes("n1", "highmem", 6.5, (2, 4, 8, 16, 32, 64, 96)),
        *_sizes("n1", "highcpu", 0.9, (2, 4, 8, 16, 32, 64, 96)),
        *_sizes("n2", "standard", 4, (2, 4, 8, 16, 32, 64)),
        *_sizes("n2", "highcpu", 1, (2, 4, 8, 16, 32)),
        *_sizes("c2", "standard", 4, (4, 8, 16)),
        *_sizes("c4", "standard", 3.75, (2, 4, 8)),
        MachineType("t2a-standard-4", 4, 16384, architecture="ARM64"),
        *_with("nvidia-l4", "g2-standard-4 4 16 1", "g2-standard-8 8 32 1", "g2-standard-12 12 48 1"),
        *_with("nvidia-l4", "g2-standard-16 16 64 1", "g2-standard-24 24 96 2", "g2-standard-32 32 128 1"),
        *_with("nvidia-l4", "g2-standard-48 48 192 4", "g2-standard-96 96 384 8"),
        # How the API shows a part of a GPU is not documented; here the worst case is assumed, a whole GPU.
        *_with("nvidia-rtx-pro-6000", "g4-standard-6 6 22 1", "g4-standard-24 24 90 1"),
        *_with("nvidia-rtx-pro-6000", "g4-standard-48 48 180 1", "g4-standard-96 96 360 2"),
        *_with("nvidia-rtx-pro-6000", "g4-standard-192 192 720 4", "g4-standard-384 384 1440 8"),
        *_with("nvidia-tesla-a100", "a2-highgpu-1g 12 85 1", "a2-highgpu-2g 24 170 2"),
        *_with("nvidia-tesla-a100", "a2-highgpu-4g 48 340 4", "a2-highgpu-8g 96 680 8"),
        *_with("nvidia-tesla-a100", "a2-megagpu-16g 96 1360 16"),
        *_with("nvidia-a100-80gb", "a2-ultragpu-1g 12 170 1", "a2-ultragpu-2g 24 340 2"),
        *_with("nvidia-a100-80gb", "a2-ultragpu-4g 48 680 4", "a2-ultragpu-8g 96 1360 8"),
        *_with("nvidia-h100-80gb", "a3-highgpu-1g 26 234 1", "a3-highgpu-2g 52 468 2"),
        *_with("nvidia-h100-80gb", "a3-highgpu-4g 104 936 4", "a3-highgpu-8g 208 1872 8"),
        *_with("nvidia-h100-mega-80gb", "a3-megagpu-8g 208 1872 8"),
        *_with("nvidia-h200-141gb", "a3-ultragpu-8g 224 2952 8"),
        *_with("nvidia-b200", "a4-highgpu-8g 224 3968 8"),
        *_with("nvidia-gb200", "a4x-highgpu-4g 140 884 4", architecture="ARM64"),
    )
}
_PLACES: Final[Mapping[str, frozenset[str]]] = {
    "g2": frozenset({"us-central1-a", "us-central1-b", "us-central1-c", "us-east1-c", "europe-west4-a"}),
    "g4": frozenset({"us-central1-b", "us-central1-f", "europe-west4-c"}),
    "a2": frozenset({"us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "europe-west4-a"}),
    "a3": frozenset({"us-central1-a", "us-central1-c", "us-east1-d"}),
    "a4": frozenset({"us-central1-b", *AI_ZONES}),
    "a4x": frozenset({"us-central1-a"}),
    "t2a": frozenset({"us-central1-a", "us-central1-b", "us-central1-f", "europe-west4-a"}),
}


@dataclass(frozen=True)
class Attachable:
    """An accelerator that can be attached to machines of the family n1."""

    zones: frozenset[str]
    limits: Mapping[int, tuple[int, int]]
    """The maximum vCPUs and GB of memory of a machine, by the number of accelerators attached."""
    smaller: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    """The different limits that apply in some zones."""

    def limit(self, count: int, zone: str) -> tuple[int, int]:
        """Return the maximum vCPUs and GB of memory of a machine with ``count`` accelerators in the zone."""
        return self.smaller.get(zone, self.limits).get(count, self.limits[count])


ATTACHABLE: Final[Mapping[str, Attachable]] = {
    "nvidia-tesla-t4": Attachable(
        frozenset(
            {
                "us-central1-a",
                "us-central1-b",
                "us-central1-c",
                "us-central1-f",
                "us-east1-c",
                "europe-west4-b",
            }
        ),
        {1: (48, 312), 2: (48, 312), 4: (96, 624)},
    ),
    "nvidia-tesla-v100": Attachable(
        frozenset({"us-central1-a", "us-central1-b", "europe-west4-a"}),
        {1: (12, 78), 2: (24, 156), 4: (48, 312), 8: (96, 624)},
    ),
    "nvidia-tesla-p100": Attachable(
        frozenset({"us-central1-c", "us-central1-f", "us-east1-b", "us-east1-c", "europe-west4-a"}),
        {1: (16, 104), 2: (32, 208), 4: (96, 624)},
        {"us-east1-c": {4: (64, 208)}},
    ),
    "nvidia-tesla-p4": Attachable(
        frozenset({"us-central1-a", "us-central1-c", "europe-west4-b"}),
        {1: (24, 156), 2: (48, 312), 4: (96, 624)},
    ),
}


def zone_names() -> list[str]:
    """Return the names of all zones."""
    return [f"{region}-{letter}" for region, letters in ZONES.items() for letter in letters] + [*AI_ZONES]


def is_in(machine_type: MachineType, zone: str) -> bool:
    """Return whether the zone has the machine type."""
    places = _PLACES.get(machine_type.family, frozenset(zone_names()) - {*AI_ZONES})
    return zone in zone_names() and zone in places


def number_of(text: str) -> str:
    """Return the id of a resource whose id never changes, such as a zone."""
    return str(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))


@cache
def zone_value(zone: str, project: str) -> Mapping[str, Any]:
    """Return a zone in the form in which the API shows it."""
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
    """Return a region in the form in which the API shows it."""
    return {
        "kind": "compute#region",
        "id": number_of(region),
        "creationTimestamp": CREATED,
        "name": region,
        "description": region,
        "status": "UP",
        "zones": [
            f"{BASE}projects/{project}/zones/{one}" for one in zone_names() if region_of(one) == region
        ],
        "quotas": list(quotas),
        "selfLink": f"{BASE}projects/{project}/regions/{region}",
    }


@cache
def machine_type_value(name: str, zone: str, project: str) -> Mapping[str, Any]:
    """Return a machine type as the API shows it in a zone."""
    type_ = MACHINE_TYPES[name]
    resource: dict[str, Any] = {
        "kind": "compute#machineType",
        "id": number_of(name),
        "creationTimestamp": CREATED,
        "name": name,
        "description": f"{type_.cpus} vCPUs, {type_.memory_mib / 1024:g} GB RAM",
        "guestCpus": type_.cpus,
        "memoryMb": type_.memory_mib,
        "isSharedCpu": type_.is_shared,
        "architecture": type_.architecture,
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        "zone": zone,
        "selfLink": f"{BASE}projects/{project}/zones/{zone}/machineTypes/{name}",
    }
    if type_.accelerator:
        resource["accelerators"] = [
            {"guestAcceleratorType": type_.accelerator, "guestAcceleratorCount": type_.accelerator_count}
        ]
    return resource


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
    attachable = {name: max(one.limits) for name, one in ATTACHABLE.items() if zone in one.zones}
    return [
        {
            "kind": "compute#acceleratorType",
            "id": number_of(name),
            "creationTimestamp": CREATED,
            "name": name,
            "description": name.replace("-", " "),
            "maximumCardsPerInstance": attachable.get(name, 16),
            "zone": f"{BASE}projects/{project}/zones/{zone}",
            "selfLink": f"{BASE}projects/{project}/zones/{zone}/acceleratorTypes/{name}",
        }
        for name in sorted(built_in | set(attachable))
    ]


def image_value(image: Image) -> dict[str, Any]:
    """Return an image in the form in which the API shows it."""
    return {
        "kind": "compute#image",
        "id": number_of(image.name),
        "creationTimestamp": CREATED,
        "name": image.name,
        **({"family": image.family} if image.family else {}),
        "status": image.status,
        "architecture": image.architecture,
        "diskSizeGb": str(image.size_gib),
        "selfLink": BASE + image.path,
        **image.facts,
    }
