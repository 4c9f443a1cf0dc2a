"""What a driver knows of the spot market: what is usual, and what was seen of each zone's machine type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from cloudspot.market.hazards import DEFAULT, Hazards, Tally, total
from cloudspot.market.situation import compared


@dataclass(frozen=True)
class Knowledge:
    """Tallies by pool: a machine type in a zone, as ``pool`` names it."""

    tallies: Mapping[str, Tally] = field(default_factory=dict)
    usual: Hazards = DEFAULT
    """With what a pool is compared."""

    def __add__(self, other: Knowledge) -> Knowledge:
        """Return what both have seen; what is usual is the first one's."""
        pools = sorted({*self.tallies, *other.tallies})
        tallies = {
            pool: total(one.tallies[pool] for one in (self, other) if pool in one.tallies) for pool in pools
        }
        return Knowledge(tallies, self.usual)

    def loss_factor(self, pool: str) -> float:
        """Return how many times more often than usual the pool's machines are lost."""
        tally = self.tallies.get(pool, Tally())
        return float(compared(np.sum(tally.losses), np.dot(tally.up_hours, self.usual.loss), doubt=2.0))

    @property
    def badness(self) -> float:
        """Return how much sooner machines are lost, and later to be had again, than is usual."""
        tally = total(self.tallies.values())
        losses = compared(np.sum(tally.losses), np.dot(tally.up_hours, self.usual.loss))
        return float(losses / self.gain_factor)

    @property
    def gain_factor(self) -> float:
        """Return how many times more often than usual there is capacity again, over all pools."""
        tally = total(self.tallies.values())
        return float(compared(np.sum(tally.gains), np.dot(tally.down_hours, self.usual.gain)))


NOTHING_KNOWN: Final = Knowledge()
"""For a driver that has seen nothing yet."""


def pool(zone: str, instance_type: str) -> str:
    """Return the name of a pool of machines that come and go together."""
    return f"{zone}/{instance_type}"
