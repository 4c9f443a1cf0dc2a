"""How all ranks save at a boundary that they have passed, if some take long to reach the next one (P4).

In a round r whose boundary is still ahead, a rank that learns of the drain writes the last boundary that it
has passed to ``rewind/r/asked``. Then:

1. Each rank's background thread lets its main thread reach that boundary, but not the next one. It writes to
   ``rewind/r/stands/<rank>`` at which passed boundaries the state still stands, and whether its machine is
   about to go.
2. Rank 0 writes to ``rewind/r/to`` how all ranks save at the latest boundary that all have named. Each rank
   copies its part or hands it over, and writes to ``rewind/r/copied/<rank>`` whether the state still stands.
3. Rank 0 writes that boundary to ``place/r``, by compare_set. If a rank cannot rewind, rank 0 writes
   ``rewind/r/off`` instead, and the round is served at the boundary ahead.

The save has the number r + 1, and so replaces the next round. Some ranks may have saved already in round r.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from cloudspot.train.distributed import Store
from cloudspot.train.rounds.handover import HandOver
from cloudspot.train.rounds.save_order import DRAIN, REWOUND, SaveOrder, make_order, read_order

_AHEAD = "ahead"


class Rewindable(Protocol):
    """A rank's operations on boundaries that it has passed; the background thread calls them."""

    def has_marked(self, number: int) -> bool:
        """Return whether the main thread has passed boundary ``number``."""

    def standing(self, number: int) -> list[int]:
        """Return the passed boundaries at which the state still stands; a rank has asked for ``number``."""

    def copy(self, order: SaveOrder) -> HandOver | None:
        """Copy this rank's part of the state at the boundary; return None if it does not stand afterwards."""

    def publish(self) -> None:
        """Seal the last copy with the states that others gave, and report that this rank has drained."""


class Rewind:
    """One rank's part in a round's only attempt to rewind."""

    def __init__(
        self, store: Store, number: int, *, rank: int, world_size: int, rewindable: Rewindable | None
    ) -> None:
        """Take part in round ``number``; without ``rewindable``, this rank cannot rewind."""
        self._store = store
        self._number = number
        self._rank = rank
        self._world_size = world_size
        self._rewindable = rewindable
        self._announced = ""
        self._has_arrived = False
        self._order: SaveOrder | None = None
        self._handover: HandOver | None = None
        self.asked: int | None = None
        """The last boundary passed by the asking rank; None if no rank has asked."""
        self.is_off = False
        """Whether the attempt has failed."""

    def ask(self, boundary: int) -> None:
        """Begin the attempt, unless another rank has begun it."""
        self._store.compare_set(self._key("asked"), "", str(boundary))

    def look(self) -> bool:
        """Return whether the attempt is under way."""
        if self.asked is None and not self.is_off and self._store.check([self._key("asked")]):
            self.asked = int(self._store.get(self._key("asked")))
        return self.asked is not None and not self.is_off

    def advance(
        self,
        *,
        can_rewind: bool,
        seconds: float,
        own: Mapping[str, Any],
    ) -> SaveOrder | None:
        """Do all work that is possible without waiting for others.

        Return the order of the save once all ranks have copied and this rank has sealed, otherwise None.
        ``can_rewind`` says whether this rank is still in its loop and has not begun to leave the loop,
        ``seconds`` is the time left for a rewind, and ``own`` is this rank's report for ``make_order``.
        """
        assert self.asked is not None
        rewindable = self._rewindable
        if self._announced == "":
            if rewindable is None or not can_rewind:
                self._announce("stands", {})
            elif rewindable.has_marked(self.asked):
                boundaries = rewindable.standing(self.asked)
                self._announce("stands", {"boundaries": boundaries, **own} if boundaries else {})
        elif self._announced == "stands" and rewindable is not None and self._store.check([self._key("to")]):
            self._order = read_order(json.loads(self._store.get(self._key("to"))))
            self._handover = rewindable.copy(self._order)
            if self._handover is not None:
                self._handover.advance(self._store)  # a relieved rank gives
            self._announce("copied", self._handover is not None)
        if self._rank == 0:
            self._preside(seconds)
        place = self._place()
        if place is not None and place.isdigit():
            assert rewindable is not None
            assert self._order is not None
            assert self._handover is not None
            self._handover.advance(self._store)  # a taker takes: all ranks have given
            rewindable.publish()
            return replace(self._order, kind=REWOUND)
        self.is_off = place is not None or self._store.check([self._key("off")])
        return None

    def arrive(self) -> bool:
        """Report that this rank has reached the boundary ahead; return whether the round is served there."""
        keys = [f"arrived/{self._number}/{rank}" for rank in range(self._world_size)]
        if not self._has_arrived:
            self._store.set(keys[self._rank], "1")
            self._has_arrived = True
        if self._rank == 0 and self._store.check(keys):
            self._store.compare_set(self._place_key, "", _AHEAD)
        return self._place() == _AHEAD

    @property
    def _place_key(self) -> str:
        return f"place/{self._number}"

    def _place(self) -> str | None:
        """Return where the round is served, or None if this is undecided."""
        return self._store.get(self._place_key).decode() if self._store.check([self._place_key]) else None

    def _has_stopped(self, rank: int) -> bool:
        """Return whether a rank has stopped taking part in rounds."""
        return any(self._store.check([f"{ending}/{rank}"]) for ending in ("finished", "left", "parted"))

    def _announce(self, stage: str, value: object) -> None:
        self._store.set(self._key(f"{stage}/{self._rank}"), json.dumps(value))
        self._announced = stage

    def _preside(self, seconds: float) -> None:
        stage = self._announced or "stands"
        found = {
            rank: json.loads(self._store.get(key))
            for rank in range(self._world_size)
            if self._store.check([key := self._key(f"{stage}/{rank}")])
        }
        missing = set(range(self._world_size)) - set(found)
        if not all(found.values()) or seconds < 0 or any(map(self._has_stopped, missing)):
            self._store.set(self._key("off"), "1")
        elif not missing and stage == "copied":
            assert self._order is not None
            self._store.compare_set(self._place_key, "", str(self._order.step))
        elif not missing:
            ranks = [found[rank] for rank in range(self._world_size)]
            common = set.intersection(*(set(each["boundaries"]) for each in ranks))
            if common:
                order = make_order(DRAIN, max(common), self._number + 1, ranks, seconds=seconds)
                self._store.set(self._key("to"), json.dumps(order.to_json()))
            else:
                self._store.set(self._key("off"), "1")

    def _key(self, name: str) -> str:
        return f"rewind/{self._number}/{name}"
