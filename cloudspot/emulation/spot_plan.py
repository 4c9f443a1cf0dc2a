"""A plan for an emulated cloud's spot market: its capacity and prices over time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from math import inf
from typing import Annotated

import msgspec

from cloudspot.jobfile.quantities import Duration, PositiveDuration


class Spell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A period in which the spot market is unusual."""

    zone: str = "*"
    """The zones to which it applies, as a shell pattern."""
    after: Duration = 0.0
    """When it begins, counted from the start of the first spot machine."""
    lasts: PositiveDuration | None = None
    """How long it lasts; by default, until the sandbox ends."""
    capacity: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The maximum number of spot machines of one type in a zone. It only affects starts: running machines
    keep running."""
    price: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """The factor by which the usual spot price is multiplied."""

    def __post_init__(self) -> None:
        if self.capacity is None and self.price is None:
            raise ValueError("the spell has neither capacity nor price; set one of them")


class SpotPlan:
    """Returns the state of the market, which depends on the time since the first spot machine started.

    Thread-safe.
    """

    def __init__(
        self, spells: Sequence[Spell] = (), *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.spells = tuple(spells)
        self._monotonic = monotonic
        self._begun_at: float | None = None

    def begin(self) -> None:
        """Note that a spot machine is starting; only the first call counts."""
        if self._begun_at is None:
            self._begun_at = self._monotonic()

    def capacity(self, zone: str) -> int | None:
        """Return how many spot machines of one type the zone can have now, or None if there is no limit."""
        return min((one.capacity for one in self._now(zone) if one.capacity is not None), default=None)

    def price_factor(self, zone: str) -> float:
        """Return the current factor of the zone's spot prices; the last spell with a price counts."""
        return next((one.price for one in reversed(self._now(zone)) if one.price is not None), 1.0)

    def _now(self, zone: str) -> list[Spell]:
        if self._begun_at is None:
            return []
        passed = self._monotonic() - self._begun_at
        return [
            one
            for one in self.spells
            if fnmatchcase(zone, one.zone) and one.after <= passed < one.after + (one.lasts or inf)
        ]
