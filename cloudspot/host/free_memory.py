"""How much memory is left."""

from __future__ import annotations

from pathlib import Path


def free_memory_bytes() -> int | None:
    """Return the memory that can still be claimed on this machine, or None if the system does not say."""
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
        pass  # no cgroup v2 at the root: the machine's own figure stands
    return min(limits) if limits else None
