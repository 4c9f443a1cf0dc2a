"""Read the plugins that installed distributions declare by entry points, without importing them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import cloudspot
from cloudspot.errors import reason_of

COMMAND_GROUP: Final = "cloudspot.commands"
"""The entry point group of commands; the other groups are in :mod:`cloudspot.hookspecs`, which ``--help``
does not import."""

_PINNED: Final = re.compile(r"cloudspot\s*\(?\s*==\s*([\w.!+]+)\s*\)?$", re.IGNORECASE)
"""A requirement of one exact version of the core; plugins that are released together with the core have one.
"""


@dataclass(frozen=True)
class Declared:
    """A plugin that its distribution declares and that is not imported yet."""

    name: str
    distribution: str
    version: str
    module: str
    """The module that its entry point names."""
    load: Callable[[], object]
    error: str | None = None
    """Why it cannot be used, or None if no fault is known yet."""

    def __str__(self) -> str:
        return f'"{self.name}" of {self.distribution} {self.version}'.rstrip()


def from_distributions(group: str) -> Iterator[Declared]:
    """Yield the plugins declared in the group; a distribution with unreadable metadata hides no others."""
    from importlib import metadata

    seen: set[str] = set()
    for distribution in metadata.distributions():
        text = distribution.read_text("entry_points.txt")
        if text is None or group not in text:
            continue
        name = str(distribution.metadata["Name"])
        if name.lower() in seen:
            continue  # the same distribution also appears earlier on sys.path
        seen.add(name.lower())
        version = str(distribution.metadata["Version"])
        try:
            points = [point for point in distribution.entry_points if point.group == group]
            misfit = _misfit(distribution.requires or ())
        except Exception as error:  # noqa: BLE001 - foreign metadata may cause any error
            reason = f"its entry points cannot be read: {reason_of(error)}"
            yield Declared(name, name, version, "", object, reason)  # never loaded, because of the error
            continue
        for point in points:
            yield Declared(point.name, name, version, point.value, point.load, misfit)


def _misfit(requirements: Iterable[str]) -> str | None:
    """Return a message if a plugin is pinned to another version of the core, else None."""
    pins = [pin[1] for line in requirements if (pin := _PINNED.match(line))]
    if not pins or pins[0] == cloudspot.__version__:
        return None
    return (
        f"it fits cloudspot {pins[0]} only, and this is cloudspot {cloudspot.__version__}; "
        "install both in the same version"
    )
