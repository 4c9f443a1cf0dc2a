"""What a market policy may know when it is asked, for many runs of a job at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.intp]
Bools: TypeAlias = NDArray[np.bool_]

NOTHING: Final = -2
"""To hold no machine, and wait."""
ON_DEMAND: Final = -1
"""To hold machines on demand. What is not negative is the index of a spot zone."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """N runs of a job at the same hour; arrays are of shape [N], or [Z, N] with a row for each spot zone.

    Times are hours. Prices are shares of on-demand's. A start is the time in which a machine
    that was bought does not train yet.
    """

    hours: float
    """Since the job began."""
    length: float
    """The job's work: how long it trains on machines that nobody takes."""
    deadline: float
    """When the job has to be done; ``inf``: whenever."""
    start_hours: float
    move_hours: float
    """The standstill when training moves to a machine that has started beside the old one."""
    look_hours: float
    """After this long at most the policy is asked again."""
    work_left: Floats
    starting: Floats
    """What the held machine still needs to start."""
    held: Ints
    """``NOTHING``, ``ON_DEMAND``, or the index of a zone."""
    idle_hours: Floats
    """For how long nothing has been held."""
    is_up: Bools
    """Where a spot machine can be had; it is held where this is so, too."""
    ages: Floats
    """For how long that has been so, as far as somebody has looked."""
    loss_factors: Floats
    """How often a zone's machines are lost, as a multiple of what is usual at their age."""
    badness: Floats
    """How much sooner machines are lost, and later to be had again, than is usual (1); of shape [N]."""
    elsewhere: Floats
    """How likely there is capacity in another zone when one is lost; of shape [N]."""
    prices: Floats
    """Of spot machines."""

    @property
    def hours_left(self) -> float:
        """The time to the deadline."""
        return self.deadline - self.hours

    @property
    def slack(self) -> Floats:
        """The time that need not be trained, nor be spent on the start under way."""
        return self.hours_left - self.work_left - self.starting


def compared(seen: Floats, usual: Floats, *, doubt: float = 8.0) -> Floats:
    """Return how many times more often something was seen than is usual, drawn to 1.

    ``doubt`` is the number of usual events that are added to both.
    """
    return (seen + doubt) / (usual + doubt)


class MarketPolicy(Protocol):
    """Chooses what to hold next; the same code for a job's driver and for a simulation."""

    def choose(self, situation: Situation) -> Ints:
        """Return ``NOTHING``, ``ON_DEMAND``, what is held, or the index of a zone that is up, for each run.

        The answer follows from the situation alone.
        """
        ...
