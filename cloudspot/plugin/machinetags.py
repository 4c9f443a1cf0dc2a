"""The tags or labels by which cloudspot's machines, and what belongs to them, are found again.

The names hold no slash and no space, so that a machine can read them from its metadata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from cloudspot.decoding import MAX_LAUNCHES, whole_number
from cloudspot.model import DEFAULT_MASTER_PORT, InstanceGroup

JOB: Final = "cloudspot-job"
"""The job's id."""
LAUNCH: Final = "cloudspot-launch"
"""Counted from 1."""
NUM_NODES: Final = "cloudspot-num-nodes"
"""How many nodes train together at most."""
STORE: Final = "cloudspot-store"
"""Where the job's records lie: it leads people to them, and tells apart two stores' jobs of the same id."""
MAX_SECONDS: Final = "cloudspot-max-seconds"
"""How long the machine may live."""
MASTER_PORT: Final = "MASTER_PORT"
"""For setup scripts; each generation agrees on a free port of its own."""


def tags_of(group: InstanceGroup) -> dict[str, str]:
    """Return cloudspot's own tags of a launch's machines, for a cloud that takes such names and values.

    ``instances`` finds the machines by them. Two things are not among them: the job's labels,
    ``group.labels``, which the plugin adds in whatever form the cloud takes them; and the rank, which is each
    machine's own, as a number in its name or a tag of the plugin's. Where a value may not hold a URL's
    characters, put ``store_digest(group.store_url)`` in place of the store's URL, and compare with that.
    """
    tags = {
        JOB: group.job_id,
        LAUNCH: str(group.launch),
        NUM_NODES: str(group.job_nodes),
        MAX_SECONDS: f"{group.max_seconds:.0f}",
        MASTER_PORT: str(DEFAULT_MASTER_PORT),
    }
    return {**tags, STORE: group.store_url} if group.store_url else tags


def launch_of(tags: Mapping[str, str]) -> int:
    """Return the launch that a machine's tags name.

    0 if they name none: that launch is in no journal, so a machine whose tags were tampered with is ended.
    """
    return whole_number(tags.get(LAUNCH), most=MAX_LAUNCHES - 1) or 0


def store_digest(store_url: str) -> str:
    """Return eight letters that tell one store's machines from another's where a URL does not fit."""
    return hashlib.sha256(store_url.encode()).hexdigest()[:8]
