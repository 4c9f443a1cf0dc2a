"""A driver's knowledge of the spot market: the usual hazards, and the tallies of each pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from cloudspot.market.hazards import DEFAULT, Hazards, Tally, total
from cloudspot.market.situation import compared


@dataclass(frozen=True)
class Knowledge:
    """Tallies by pool; a pool is a machine type in a zone, with the name that ``pool`` returns."""

    tallies: Mapping[str, Tally] = field(default_factory=dict)
    usual: Hazards = DEFAULT
    """The hazards with which a pool is compared."""

    def __add__(self, other: Knowledge) -> Knowledge:
        """Return the sum of both tallies, with the usual hazards of the first."""
        pools = sorted({*self.tallies, *other.tallies})
        tallies = {
            pool: total(one.tallies[pool] for one in (self, other) if pool in one.tallies) for pool in pools
        }
        return Knowledge(tallies, self.usual)

    def loss_factor(self, pool: str) -> float:
        """Return the pool's rate of losses, as a multiple of the usual rate."""
        tally = self.tallies.get(pool, Tally())
        return float(compared(np.sum(tally.losses), np.dot(tally.up_hours, self.usual.loss), doubt=2.0))

    @property
    def badness(self) -> float:
        """Return the pressure on capacity, which is losses relative to gains; 1 is usual."""
        tally = total(self.tallies.values())
        losses = compared(np.sum(tally.losses), np.dot(tally.up_hours, self.usual.loss))
        return float(losses / self.gain_factor)

    @property
    def gain_factor(self) -> float:
        """Return the rate at which capacity returns in all pools, as a multiple of the usual rate."""
        tally = total(self.tallies.values())
        return float(compared(np.sum(tally.gains), np.dot(tally.down_hours, self.usual.gain)))


NOTHING_KNOWN: Final = Knowledge()
"""The knowledge of a driver that has made no observations."""


def pool(zone: str, instance_type: str) -> str:
    """Return the name of a pool, which is a machine type in a zone."""
    return f"{zone}/{instance_type}"
