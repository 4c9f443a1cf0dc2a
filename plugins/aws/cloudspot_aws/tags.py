"""Converts tags, named by :mod:`cloudspot.plugin.machinetags`, to and from the form of EC2's API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

NODE: Final = "cloudspot-node"
"""The node's rank in its launch, from 0, set by ``announce``; until then the launch index serves as the rank.
"""
MAX_VALUE: Final = 256
"""The maximum length of a tag's value, in characters."""


def to_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the tags in the form of EC2's requests."""
    return [{"Key": name, "Value": value[:MAX_VALUE]} for name, value in tags.items()]


def from_list(tags: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """Return the tags of an EC2 response, by name."""
    return {str(tag["Key"]): str(tag["Value"]) for tag in tags or ()}
