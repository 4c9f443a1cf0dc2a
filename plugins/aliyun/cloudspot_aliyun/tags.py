"""The tags by which cloudspot's machines and what belongs to them are found again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

JOB: Final = "cloudspot-job"
LAUNCH: Final = "cloudspot-launch"
"""Counted from 1."""
NUM_NODES: Final = "cloudspot-num-nodes"
STORE: Final = "cloudspot-store"
"""Where the job's records lie: people find them by it, and two stores' jobs of the same id are told apart."""
STORE_REST: Final = "cloudspot-store-2"
"""What of it is too long for one tag."""
MAX_SECONDS: Final = "cloudspot-max-seconds"
"""How long the machine may live."""
MASTER_PORT: Final = "MASTER_PORT"
"""For setup scripts; each generation agrees on a free port of its own."""
FOUND_BY: Final = "cloudspot"
"""On a vSwitch or a security group, with any value: cloudspot uses these where the job names none."""
MAX_VALUE: Final = 128
"""Characters of a tag's value (API reference, RunInstances, Tag.N.Value; checked 2026-11)."""


def store_tags(store_url: str) -> dict[str, str]:
    """Return the tags that say whose a machine is, whole."""
    found = {STORE: store_url[:MAX_VALUE], STORE_REST: store_url[MAX_VALUE : 2 * MAX_VALUE]}
    return {name: value for name, value in found.items() if value}


def store_of(found: Mapping[str, str]) -> str:
    """Return what ``store_tags`` was given."""
    return found.get(STORE, "") + found.get(STORE_REST, "")


def to_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the tags as the SDK's requests have them."""
    return [{"Key": name, "Value": value[:MAX_VALUE]} for name, value in tags.items()]


def from_answer(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of an instance, vSwitch or group in an answer of ECS by name."""
    found = (described.get("Tags") or {}).get("Tag") or ()
    return {
        str(tag.get("TagKey", tag.get("Key", ""))): str(tag.get("TagValue", tag.get("Value", "")))
        for tag in found
    }
