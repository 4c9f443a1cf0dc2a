"""The tags or labels that identify cloudspot's machines and the resources that belong to them.

The names contain no slash or space, so that a machine can read them from its metadata.
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
"""The launch's number, counted from 1."""
NUM_NODES: Final = "cloudspot-num-nodes"
"""The maximum number of nodes that train together."""
STORE: Final = "cloudspot-store"
"""The store of the job's records, which leads people to them; two stores may have jobs with the same id."""
MAX_SECONDS: Final = "cloudspot-max-seconds"
"""How long the machine may live."""
MASTER_PORT: Final = "MASTER_PORT"
"""The port for setup scripts; each generation agrees on a free port of its own."""


def tags_of(group: InstanceGroup) -> dict[str, str]:
    """Return cloudspot's own tags for a launch's machines, for a cloud that accepts such names and values.

    ``instances`` finds the machines by these tags. Two tags are not included: the job's labels,
    ``group.labels``, which the plugin adds in the cloud's form; and the rank, which differs between machines
    and is a number in the machine's name or a tag of the plugin. If a tag's value cannot contain the
    characters of a URL, use ``store_digest(group.store_url)`` instead of the store's URL, and compare with
    that.
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
    """Return the launch number in a machine's tags, or 0 if the tags have none.

    No journal has a launch 0, so a machine whose tags were tampered with is ended.
    """
    return whole_number(tags.get(LAUNCH), most=MAX_LAUNCHES - 1) or 0


def store_digest(store_url: str) -> str:
    """Return eight characters that identify a store on its machines where a URL does not fit."""
    return hashlib.sha256(store_url.encode()).hexdigest()[:8]
