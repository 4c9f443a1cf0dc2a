"""The tags by which cloudspot's machines and what belongs to them are found again.

Their names hold no slash and no space, so that a machine can read them from its metadata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

JOB: Final = "cloudspot-job"
LAUNCH: Final = "cloudspot-launch"
"""Counted from 1."""
NODE: Final = "cloudspot-node"
"""The node's rank in its launch, from 0, by ``announce``; before that the launch index says the same."""
NUM_NODES: Final = "cloudspot-num-nodes"
STORE: Final = "cloudspot-store"
"""Where the job's records lie: people find them by it, and two stores' jobs of the same id are told apart."""
MAX_SECONDS: Final = "cloudspot-max-seconds"
"""How long the machine may live."""
MASTER_PORT: Final = "MASTER_PORT"
"""For setup scripts; each generation agrees on a free port of its own."""
MAX_VALUE: Final = 256


def store_digest(store_url: str) -> str:
    """Return the few letters by which names of what is a store's job's tell it from another store's."""
    return hashlib.sha256(store_url.encode()).hexdigest()[:8]


def to_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the tags as EC2's requests have them."""
    return [{"Key": name, "Value": value[:MAX_VALUE]} for name, value in tags.items()]


def from_list(tags: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """Return the tags of an EC2 answer by name."""
    return {str(tag["Key"]): str(tag["Value"]) for tag in tags or ()}
