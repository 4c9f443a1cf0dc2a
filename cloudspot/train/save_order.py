"""What ranks agree to do at a boundary."""

from __future__ import annotations

from dataclasses import dataclass

INTERVAL = "interval"
DRAIN = "drain"
REWOUND = "rewound"


@dataclass(frozen=True)
class SaveOrder:
    """What a main thread must do at a boundary: save there and go on, or save and leave."""

    kind: str
    """``REWOUND``: the state at a boundary behind is sealed, so leave."""
    step: int | None
    """The boundary; None: leave now, without a save."""
    avoid: frozenset[int] = frozenset()
    """Ranks whose machines are about to go."""
    rooms: tuple[int, ...] = ()
    """Bytes that each rank's slots hold, by rank: all ranks must plan with the same numbers."""
