"""Data about machine types that Compute Engine's API does not provide: disks, markets, and GPUs to attach.

Source, unless another is named: Compute Engine documentation, "GPU machine types" and "Accelerator-optimized
machine family" (as of 2026-04-14; checked 2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cloudspot.model import Market

ATTACHING_SERIES: Final = "n1"
"""The only series whose machines can have accelerators attached; other types have built-in accelerators."""
_LIMITS: Final[Mapping[str, Mapping[int, tuple[int, int]]]] = {
    "nvidia-tesla-p100": {1: (16, 104), 2: (32, 208), 4: (96, 624)},
    "nvidia-tesla-p4": {1: (24, 156), 2: (48, 312), 4: (96, 624)},
    "nvidia-tesla-t4": {1: (48, 312), 2: (48, 312), 4: (96, 624)},
    "nvidia-tesla-v100": {1: (12, 78), 2: (24, 156), 4: (48, 312), 8: (96, 624)},
}
"""The maximum vCPUs and GB of memory of a machine, by the accelerator and the number attached to it."""
_SMALLER_P100_ZONES: Final = frozenset({"us-east1-c", "europe-west1-b", "europe-west1-d"})
"""The zones where a machine with four P100 has at most 64 vCPUs and 208 GB."""
_RESERVED_ONLY: Final = frozenset({"a4x"})
_SPOT_ONLY: Final = frozenset(
    {"a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g", "a3-ultragpu", "a4"},
)
"""Machines that are sold on the spot market, by flex-start or from a reservation, but not on demand."""
_FRACTIONS: Final = frozenset({"g4-standard-6", "g4-standard-12", "g4-standard-24"})
"""Types that have an eighth, a quarter and a half of a GPU."""
_HYPERDISK_ONLY: Final = frozenset(
    {"a3-ultragpu", "a4", "a4x", "c4", "c4a", "c4d", "g4", "h4d", "m4", "n4", "n4a", "n4d", "x4"}
)
"""Series without Persistent Disk (for series without accelerators: "Hyperdisk", machine series support; from
memory)."""
_HYPERDISK_TOO: Final = frozenset({"a3", "c3", "c3d", "m3", "z3"})
"""Series with both kinds of disk (all but a3: the same source, from memory)."""
_NO_STANDARD_DISK: Final = frozenset({"a3", "c3", "c3d", "g2", "h3", "z3"})
"""Series without pd-standard ("Persistent Disk", machine series support; from memory)."""
_COMPACT: Final = frozenset(
    {"a2", "a3", "a3-ultragpu", "a4", "c2", "c2d", "c3", "c3d", "c4", "c4d", "g2", "g4", "h3", "n2", "n2d"}
)
"""Series that a compact placement policy accepts (AI Hypercomputer documentation, "Compact placement policy
and workload policy overview"; series without accelerators from memory)."""


def series_of(machine_type: str) -> str:
    """Return the series, such as ``n2``.

    ``a3-ultragpu`` counts as a series, because its disks and markets differ.
    """
    parts = machine_type.split("-")
    return "a3-ultragpu" if parts[:2] == ["a3", "ultragpu"] else parts[0]


def markets_of(machine_type: str) -> frozenset[Market]:
    """Return the markets that sell a machine without a reservation; there may be none."""
    if series_of(machine_type) in _RESERVED_ONLY:
        return frozenset()
    if {machine_type, series_of(machine_type)} & _SPOT_ONLY:
        return frozenset({Market.SPOT})
    return frozenset(Market)


def has_part_of_gpu(machine_type: str) -> bool:
    """Return whether a machine of this type shares its accelerator with other machines."""
    return machine_type in _FRACTIONS


def takes_disk(machine_type: str, disk_type: str) -> bool:
    """Return whether, as far as is known here, the type can boot from this kind of disk."""
    series = series_of(machine_type)
    if disk_type.startswith("hyperdisk"):
        return series in _HYPERDISK_ONLY | _HYPERDISK_TOO
    return series not in _HYPERDISK_ONLY and not (disk_type == "pd-standard" and series in _NO_STANDARD_DISK)


def can_be_compact(machine_type: str) -> bool:
    """Return whether the type works with compact placement. A4X would need a policy with its topology."""
    return series_of(machine_type) in _COMPACT


def is_attachable(accelerator: str) -> bool:
    """Return whether the accelerator can be attached to machines, rather than built into some types."""
    return accelerator in _LIMITS


def count_to_attach(
    accelerator: str, *, at_least: int, cpus: int, memory_bytes: int, zone: str
) -> int | None:
    """Return the minimum number of accelerators for such a machine in the zone, or None if it may have none.

    A larger machine needs more accelerators: a machine with 16 vCPUs needs at least two V100.
    """
    limits = _LIMITS[accelerator]
    if accelerator == "nvidia-tesla-p100" and zone in _SMALLER_P100_ZONES:
        limits = {**limits, 4: (64, 208)}
    for count, (most_cpus, most_gib) in limits.items():
        if count >= at_least and cpus <= most_cpus and memory_bytes <= most_gib * 2**30:
            return count
    return None
