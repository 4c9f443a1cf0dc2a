"""What ranks agree to do at a boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

INTERVAL = "interval"
DRAIN = "drain"
REWOUND = "rewound"
RESCUE = "rescue"
MAX_BYTES = 256 << 20
"""Tensors of more bytes than this stay with the ranks that hold them: rank 0's memory holds it all."""
BYTES_PER_SECOND = 50 << 20
"""What a store is taken to carry: a tenth of what it does on one machine."""
TIME_SHARE = 0.5
"""The share of the time before the guard that may go into it."""


@dataclass(frozen=True)
class SaveOrder:
    """What a main thread must do at a boundary: save there and go on, or save and leave.

    Who writes what follows from it and the table of items, so all ranks have the same.
    """

    kind: str
    """``REWOUND``: the state at a boundary behind is sealed, so leave. ``RESCUE``: see ``rescue``."""
    step: int | None
    """The boundary; None: leave now, without a save."""
    number: int = 0
    """Of the round, which the save is named by; 0: there was none."""
    avoid: frozenset[int] = frozenset()
    """Ranks whose machines are about to go; in a rescue, those that are lost."""
    rooms: tuple[int, ...] = ()
    """Bytes that each rank's slots hold, by rank."""
    handover_bytes: int = 0
    """So many bytes of tensors may be handed over."""
    rescue: Mapping[str, Any] | None = None
    """Of a ``RESCUE``: what its seals say of it."""
    keepers: Mapping[int, int] = field(default_factory=dict)
    """In a rescue, by lost ranks, the ranks that save what those had handed over."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "avoid": sorted(self.avoid), "keepers": sorted(self.keepers.items())}


def read_order(value: Mapping[str, Any]) -> SaveOrder:
    """Return what ``SaveOrder.to_json`` returned for."""
    avoid, rooms = frozenset(value["avoid"]), tuple(value["rooms"])
    return SaveOrder(**{**value, "avoid": avoid, "rooms": rooms, "keepers": dict(value["keepers"])})


def limit_bytes(seconds: float) -> int:
    """Return how many bytes of tensors may be handed over, ``seconds`` before the guard."""
    return int(min(MAX_BYTES, max(0.0, seconds) * TIME_SHARE * BYTES_PER_SECOND))


def make_order(
    kind: str, step: int, number: int, ranks: Sequence[Mapping[str, Any]], *, seconds: float
) -> SaveOrder:
    """Decide how all ranks save, from what each has said of itself, ``seconds`` before the guard.

    That is whether its machine has a "notice", which "node" that is, and the "room" of its slots. Ranks of
    one machine may hear of its notice one after the other.
    """
    nodes = {each["node"] for each in ranks if each["notice"]} if kind == DRAIN else set()
    avoid = frozenset(rank for rank, each in enumerate(ranks) if each["node"] in nodes)
    return SaveOrder(kind, step, number, avoid, tuple(each["room"] for each in ranks), limit_bytes(seconds))
