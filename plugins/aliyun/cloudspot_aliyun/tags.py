"""Converts tags, named by :mod:`cloudspot.plugin.machinetags`, to and from the form of ECS's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FOUND_BY: Final = "cloudspot"
"""The tag, with any value, of the vSwitches and security groups that cloudspot uses if the job names none."""
MAX_VALUE: Final = 128
"""The maximum length of a tag's value (API reference, RunInstances, Tag.N.Value; checked 2026-11)."""


def to_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the tags in the form of the SDK's requests."""
    return [{"Key": name, "Value": value[:MAX_VALUE]} for name, value in tags.items()]


def from_answer(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a resource in an ECS response, by name."""
    found = (described.get("Tags") or {}).get("Tag") or ()
    return {
        str(tag.get("TagKey", tag.get("Key", ""))): str(tag.get("TagValue", tag.get("Value", "")))
        for tag in found
    }
