"""The save order: the action at a boundary that the ranks agree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

INTERVAL = "interval"
DRAIN = "drain"
REWOUND = "rewound"
RESCUE = "rescue"
MAX_BYTES = 256 << 20
"""The maximum size of the tensors that are handed over, because rank 0's memory must hold all of them."""
BYTES_PER_SECOND = 50 << 20
"""The assumed speed of a store: a tenth of a store's speed on a single machine."""
TIME_SHARE = 0.5
"""The share of the time before the guard that a hand-over may use."""


@dataclass(frozen=True)
class SaveOrder:
    """The action of a main thread at a boundary: save and continue, or save and leave.

    Together with the table of items, the order determines which rank writes which part, so it must be the
    same on all ranks.
    """

    kind: str
    """``REWOUND`` means that an earlier boundary's state is sealed: leave. For ``RESCUE``, see ``rescue``."""
    step: int | None
    """The boundary; None means to leave now, without a save."""
    number: int = 0
    """The round's number, which is part of the save's name; 0 if there was no round."""
    avoid: frozenset[int] = frozenset()
    """The ranks whose machines will be reclaimed; in a rescue, the lost ranks."""
    rooms: tuple[int, ...] = ()
    """The size of each rank's slots in bytes, by rank."""
    handover_bytes: int = 0
    """The maximum number of tensor bytes that may be handed over."""
    rescue: Mapping[str, Any] | None = None
    """In a ``RESCUE``, the description of the rescue to be stored in its seals."""
    keepers: Mapping[int, int] = field(default_factory=dict)
    """In a rescue, maps each lost rank to the rank that saves the state handed over by the lost rank."""

    def to_json(self) -> dict[str, Any]:
        """Return the order as JSON."""
        return {**asdict(self), "avoid": sorted(self.avoid), "keepers": sorted(self.keepers.items())}


def read_order(value: Mapping[str, Any]) -> SaveOrder:
    """Return the order for which ``SaveOrder.to_json`` returned ``value``."""
    avoid, rooms = frozenset(value["avoid"]), tuple(value["rooms"])
    return SaveOrder(**{**value, "avoid": avoid, "rooms": rooms, "keepers": dict(value["keepers"])})


def limit_bytes(seconds: float) -> int:
    """Return how many bytes of tensors may be handed over if the guard is in ``seconds``."""
    return int(min(MAX_BYTES, max(0.0, seconds) * TIME_SHARE * BYTES_PER_SECOND))


def make_order(
    kind: str, step: int, number: int, ranks: Sequence[Mapping[str, Any]], *, seconds: float
) -> SaveOrder:
    """Decide how all ranks save, from the reports of ``ranks``, if the guard is in ``seconds``.

    A report states whether the rank's machine has a "notice", which "node" it is, and the "room" of the
    rank's slots. Ranks on the same machine may learn of its notice at different times.
    """
    nodes = {each["node"] for each in ranks if each["notice"]} if kind == DRAIN else set()
    avoid = frozenset(rank for rank, each in enumerate(ranks) if each["node"] in nodes)
    return SaveOrder(kind, step, number, avoid, tuple(each["room"] for each in ranks), limit_bytes(seconds))
