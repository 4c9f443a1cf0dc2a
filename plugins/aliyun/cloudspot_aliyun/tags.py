"""Tags as ECS's requests and answers have them; their names are in :mod:`cloudspot.plugin.machinetags`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FOUND_BY: Final = "cloudspot"
"""On a vSwitch or a security group, with any value: cloudspot uses these if the job names none."""
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
