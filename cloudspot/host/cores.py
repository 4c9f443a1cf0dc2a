"""How many cores this process may use."""

from __future__ import annotations

import os
from collections.abc import Mapping


def usable_cores(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of cores: ``CLOUDSPOT_CORES`` where the system itself would report more."""
    said = environ.get("CLOUDSPOT_CORES")
    if said is not None:
        return int(said)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
