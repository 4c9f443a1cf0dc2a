"""The input of a market policy, for one or many runs of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.intp]
Bools: TypeAlias = NDArray[np.bool_]

NOTHING: Final = -2
"""The choice to hold no machine and to wait."""
ON_DEMAND: Final = -1
"""The choice to hold on-demand machines. A choice of 0 or more is the index of a spot zone."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """N runs of a job at the same hour; arrays have shape [N], or [Z, N] with a row for each spot zone.

    Times are hours. Prices are shares of the on-demand price. A start is the time between the purchase of a
    machine and its first training step.
    """

    hours: float
    """The time since the job began."""
    length: float
    """The job's work, measured as its training time on machines that are never reclaimed."""
    deadline: float
    """When the job has to be finished; ``inf`` if it has no deadline."""
    start_hours: float
    move_hours: float
    """The pause when training moves to a machine that has already started beside the old one."""
    look_hours: float
    """The longest time until the policy is called again."""
    work_left: Floats
    starting: Floats
    """The time that the held machine still needs to start."""
    held: Ints
    """``NOTHING``, ``ON_DEMAND``, or the index of a zone."""
    idle_hours: Floats
    """How long the job has held nothing."""
    is_up: Bools
    """Whether each zone has spot capacity; the held zone does."""
    ages: Floats
    """How long each zone has been up or down, as far as it was observed."""
    loss_factors: Floats
    """The rate of a zone's losses, as a multiple of the usual rate for its age."""
    badness: Floats
    """The pressure on capacity, of shape [N]; 1 is usual. At higher values, losses come sooner and capacity
    returns later."""
    elsewhere: Floats
    """The probability of capacity in another zone when one zone is lost; of shape [N]."""
    prices: Floats
    """The prices of spot machines."""

    @property
    def hours_left(self) -> float:
        """The time to the deadline."""
        return self.deadline - self.hours

    @property
    def slack(self) -> Floats:
        """The time to the deadline that neither the remaining work nor the current start needs."""
        return self.hours_left - self.work_left - self.starting


def compared(seen: Floats, usual: Floats, *, doubt: float = 8.0) -> Floats:
    """Return how many times more often an event was seen than is usual, shrunk towards 1.

    ``doubt`` is the number of events that is added to both counts.
    """
    return (seen + doubt) / (usual + doubt)


class MarketPolicy(Protocol):
    """Chooses which machines to hold next, both for a job's driver and in simulations."""

    def choose(self, situation: Situation) -> Ints:
        """Return ``NOTHING``, ``ON_DEMAND``, the held value, or the index of a zone that is up, for each run.

        The choice depends only on the situation.
        """
        ...
