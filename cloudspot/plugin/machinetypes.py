"""The properties that all clouds' machine types share, and the selection of types that fit a node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from cloudspot.model import GIB, Resources

MIN_CPUS: Final = 2
MIN_MEMORY_BYTES: Final = 8 * GIB
"""The minimum memory if the job does not request a size; it has room for torch, the agent and an arena."""


class MachineType(msgspec.Struct, frozen=True, kw_only=True):
    """The properties by which a machine type is selected; a plugin adds those specific to its cloud."""

    name: str
    cpus: int
    memory_bytes: int
    accelerator: str | None = None
    """The cloud's name for the accelerator."""
    accelerator_count: int = 0

    def is_called(self, accelerator: str) -> bool:
        """Return whether the name means this type's accelerator; ``rtx-pro-4500`` means ``RTX PRO 4500``."""
        return _plain(accelerator) == _plain(self.accelerator or "")

    def fits(self, resources: Resources) -> bool:
        """Return whether the type has the resources for one node."""
        if resources.accelerator is not None and not self.is_called(resources.accelerator):
            return False
        if resources.accelerator_count and self.accelerator_count < resources.accelerator_count:
            return False
        return self.cpus >= resources.cpus and self.memory_bytes >= resources.memory_bytes


Type = TypeVar("Type", bound=MachineType)


def fitting_types(types: Iterable[Type], resources: Resources) -> list[Type]:
    """Return the types that have the resources for one node, smallest first.

    A job that requests no accelerator gets none. If the job requests no size, ``MIN_CPUS`` and
    ``MIN_MEMORY_BYTES`` apply.
    """
    wanted = msgspec.structs.replace(
        resources,
        cpus=resources.cpus or MIN_CPUS,
        memory_bytes=resources.memory_bytes or MIN_MEMORY_BYTES,
    )
    asks = bool(resources.accelerator or resources.accelerator_count)
    fitting = [one for one in types if one.fits(wanted) and (asks or not one.accelerator_count)]
    return sorted(fitting, key=lambda one: (one.accelerator_count, one.cpus, one.memory_bytes, one.name))


def _plain(name: str) -> str:
    return name.lower().replace(" ", "-")
