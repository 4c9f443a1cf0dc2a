"""The seats without a heartbeat: open, void, or just claimed."""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from cloudspot.agent.node_context import NodeContext
from cloudspot.jobstore.layout.records import Seat, Slot
from cloudspot.jobstore.nodes.launches import read_slots

LOOK_SECONDS = 3.0
"""The time between two looks at these seats while the nodes agree on a generation."""


class OpenSeats:
    """Looks at the seats of the job's launches that this node has not heard from."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._slots: dict[int, dict[int, Slot]] = {}
        """The known slots by launch and rank; slots never change."""
        self._seen: dict[Seat, float] = {}
        """When each seat was first seen unclaimed (monotonic)."""
        self._looked_at = -math.inf
        self.claimed: frozenset[Seat] = frozenset()
        """The seats that are known to be claimed."""
        self.void: frozenset[Seat] = frozenset()
        """The seats that no machine can claim any more."""

    def look(self, seats: Collection[Seat]) -> None:
        """Look at the seats that are not known to be claimed or void, unless the last look was just now.

        This takes a request for each launch with such seats, and one for each new slot.
        """
        unknown = set(seats) - self.claimed - self.void
        if not unknown or time.monotonic() < self._looked_at + LOOK_SECONDS:
            return
        context = self._context
        for launch in sorted({seat.launch for seat in unknown}):
            known = self._slots.get(launch, {})
            self._slots[launch] = context.retry_until(
                lambda k=launch, slots=known: read_slots(context.store, context.job_id, k, known=slots)  # type: ignore[misc]
            )
        self._looked_at = time.monotonic()
        taken = {
            Seat(launch, rank): slot for launch, slots in self._slots.items() for rank, slot in slots.items()
        }
        self.claimed = frozenset(seat for seat, slot in taken.items() if slot.instance_id is not None)
        self.void = frozenset(taken) - self.claimed
        for seat in unknown - taken.keys():
            self._seen.setdefault(seat, self._looked_at)

    def unclaimed(self, seats: Collection[Seat]) -> dict[Seat, float]:
        """Return those of the seats that are unclaimed, each with the seconds since it was first seen."""
        now = time.monotonic()
        return {
            seat: now - self._seen[seat]
            for seat in seats
            if seat in self._seen and seat not in self.claimed and seat not in self.void
        }
