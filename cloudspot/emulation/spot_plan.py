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
    """A period with an unusual spot market."""

    zone: str = "*"
    """The zones that it applies to, as a shell pattern."""
    after: Duration = 0.0
    """When it begins, counted from the start of the first spot machine."""
    lasts: PositiveDuration | None = None
    """How long it lasts; by default, until the end."""
    capacity: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The limit of spot machines of a type in a zone. It only affects starts: running machines stay."""
    price: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """The factor of the usual spot price."""

    def __post_init__(self) -> None:
        if self.capacity is None and self.price is None:
            raise ValueError("the spell has neither capacity nor price; set one of them")


class SpotPlan:
    """Returns the state of the market by the time since the first spot machine started. Thread-safe."""

    def __init__(
        self, spells: Sequence[Spell] = (), *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.spells = tuple(spells)
        self._monotonic = monotonic
        self._begun_at: float | None = None

    def begin(self) -> None:
        """Note that a spot machine starts; only the first call counts."""
        if self._begun_at is None:
            self._begun_at = self._monotonic()

    def capacity(self, zone: str) -> int | None:
        """Return how many spot machines of a type the zone can have now, or None for any number."""
        return min((one.capacity for one in self._now(zone) if one.capacity is not None), default=None)

    def price_factor(self, zone: str) -> float:
        """Return the present factor of the zone's spot prices; the last spell with a price counts."""
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
