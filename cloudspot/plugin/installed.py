"""What installed distributions declare by entry points, read without importing any of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from cloudspot.errors import reason_of

COMMAND_GROUP: Final = "cloudspot.commands"
"""The other groups are in :mod:`cloudspot.hookspecs`, which ``--help`` does without."""


@dataclass(frozen=True)
class Declared:
    """A plugin as its distribution declares it, not yet imported."""

    name: str
    distribution: str
    version: str
    module: str
    """As its entry point names it."""
    load: Callable[[], object]
    error: str | None = None
    """Why it cannot be used; None: nothing speaks against it so far."""

    def __str__(self) -> str:
        return f'"{self.name}" of {self.distribution} {self.version}'.rstrip()


def from_distributions(group: str) -> Iterator[Declared]:
    """Yield what installed distributions declare in the group; unreadable metadata hides no other."""
    from importlib import metadata

    seen: set[str] = set()
    for distribution in metadata.distributions():
        text = distribution.read_text("entry_points.txt")
        if text is None or group not in text:
            continue
        name = str(distribution.metadata["Name"])
        if name.lower() in seen:
            continue  # shadowed: the same distribution further down sys.path
        seen.add(name.lower())
        version = str(distribution.metadata["Version"])
        try:
            points = [point for point in distribution.entry_points if point.group == group]
        except Exception as error:  # noqa: BLE001 - whatever a stranger's metadata provokes
            reason = f"its entry points cannot be read: {reason_of(error)}"
            yield Declared(name, name, version, "", object, reason)  # with an error, nobody loads it
            continue
        for point in points:
            yield Declared(point.name, name, version, point.value, point.load)
