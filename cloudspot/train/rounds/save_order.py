"""The save order: the action that ranks agree on for a boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

INTERVAL = "interval"
DRAIN = "drain"
REWOUND = "rewound"
RESCUE = "rescue"
MAX_BYTES = 256 << 20
"""The maximum size of the tensors that are handed over, because rank 0's memory holds them all."""
BYTES_PER_SECOND = 50 << 20
"""The assumed speed of a store: a tenth of its speed on one machine."""
TIME_SHARE = 0.5
"""The share of the time before the guard that a hand-over may take."""


@dataclass(frozen=True)
class SaveOrder:
    """The action of a main thread at a boundary: save there and go on, or save and leave.

    Together with the table of items it determines which rank writes which part, so all ranks have the same.
    """

    kind: str
    """With ``REWOUND``, the state at an earlier boundary is sealed: leave. For ``RESCUE``, see ``rescue``."""
    step: int | None
    """The boundary; None means to leave now, without a save."""
    number: int = 0
    """The number of the round, which is part of the save's name; 0 if there was no round."""
    avoid: frozenset[int] = frozenset()
    """The ranks whose machines are about to go; in a rescue, the lost ranks."""
    rooms: tuple[int, ...] = ()
    """The bytes that each rank's slots hold, by rank."""
    handover_bytes: int = 0
    """The maximum number of bytes of tensors that may be handed over."""
    rescue: Mapping[str, Any] | None = None
    """In a ``RESCUE``, the description of it that its seals hold."""
    keepers: Mapping[int, int] = field(default_factory=dict)
    """In a rescue, maps each lost rank to the rank that saves the state it had handed over."""

    def to_json(self) -> dict[str, Any]:
        """Return the order as JSON."""
        return {**asdict(self), "avoid": sorted(self.avoid), "keepers": sorted(self.keepers.items())}


def read_order(value: Mapping[str, Any]) -> SaveOrder:
    """Return the order for which ``SaveOrder.to_json`` returned ``value``."""
    avoid, rooms = frozenset(value["avoid"]), tuple(value["rooms"])
    return SaveOrder(**{**value, "avoid": avoid, "rooms": rooms, "keepers": dict(value["keepers"])})


def limit_bytes(seconds: float) -> int:
    """Return how many bytes of tensors may be handed over, ``seconds`` before the guard."""
    return int(min(MAX_BYTES, max(0.0, seconds) * TIME_SHARE * BYTES_PER_SECOND))


def make_order(
    kind: str, step: int, number: int, ranks: Sequence[Mapping[str, Any]], *, seconds: float
) -> SaveOrder:
    """Decide how all ranks save, from the reports of ``ranks``, ``seconds`` before the guard.

    A report says whether the rank's machine has a "notice", which "node" it is, and the "room" of the rank's
    slots. Ranks of one machine may learn of its notice at different moments.
    """
    nodes = {each["node"] for each in ranks if each["notice"]} if kind == DRAIN else set()
    avoid = frozenset(rank for rank, each in enumerate(ranks) if each["node"] in nodes)
    return SaveOrder(kind, step, number, avoid, tuple(each["room"] for each in ranks), limit_bytes(seconds))
