"""Tags as EC2's requests and answers have them; their names are in :mod:`cloudspot.plugin.machinetags`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

NODE: Final = "cloudspot-node"
"""The node's rank in its launch, from 0, set by ``announce``; until then the launch index says the same."""
MAX_VALUE: Final = 256
"""Characters of a tag's value."""


def to_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the tags as EC2's requests have them."""
    return [{"Key": name, "Value": value[:MAX_VALUE]} for name, value in tags.items()]


def from_list(tags: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """Return the tags of an EC2 answer by name."""
    return {str(tag["Key"]): str(tag["Value"]) for tag in tags or ()}
