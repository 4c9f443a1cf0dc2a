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
MAX_SECONDS: Final = "cloudspot-max-seconds"
"""How long the machine may live."""
MASTER_PORT: Final = "MASTER_PORT"
"""For setup scripts; each generation agrees on a free port of its own."""
FOUND_BY: Final = "cloudspot"
"""On a vSwitch or a security group, with any value: cloudspot uses these where the job names none."""
MAX_VALUE: Final = 128
"""Characters of a tag's value (API reference, RunInstances, Tag.N.Value; checked 2026-11)."""


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
