"""Converts tags for EC2's requests and from its answers; :mod:`cloudspot.plugin.machinetags` names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

NODE: Final = "cloudspot-node"
"""The node's rank in its launch, from 0, set by ``announce``; until then the launch index has the same
value."""
MAX_VALUE: Final = 256
"""The most characters of a tag's value."""


def to_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the tags in the form of EC2's requests."""
    return [{"Key": name, "Value": value[:MAX_VALUE]} for name, value in tags.items()]


def from_list(tags: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """Return the tags of an EC2 answer by name."""
    return {str(tag["Key"]): str(tag["Value"]) for tag in tags or ()}
