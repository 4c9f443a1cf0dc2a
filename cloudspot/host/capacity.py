"""The number of cores and the memory that this process may use on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def usable_cores(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of cores: ``CLOUDSPOT_CORES`` if it is set, otherwise the system's figure."""
    setting = environ.get("CLOUDSPOT_CORES")
    if setting is not None:
        return int(setting)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory_bytes() -> int | None:
    """Return the memory that can still be allocated, or None if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    limits = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    try:
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            limits.append(int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # without cgroup v2 at the root, the machine's own figure applies
    return min(limits) if limits else None
