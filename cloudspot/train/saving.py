"""One rank's saves: the plan, the copy into the arena at a boundary, and the seal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from cloudspot.train import checkpoint
from cloudspot.train.arena import Arena, Slot
from cloudspot.train.handoff import seals_directory, write_json
from cloudspot.train.partition import Item, Plan, plan
from cloudspot.train.tree import Json

_SLOT_POLL_SECONDS = 0.01

Describe = Callable[[], tuple[Mapping[str, Json], Mapping[str, Json]]]
"""Returns what a save holds beside the objects' state: what all ranks share, and this rank's own."""


class Saver:
    """Copies this rank's part of the state into its arena and seals it."""

    def __init__(self, arena: Arena, *, handoff: Path, generation: int, rank: int, world_size: int) -> None:
        """Make the directory of the seals; the arena is claimed by ``prepare``."""
        self._arena = arena
        self._generation = generation
        self._rank = rank
        self._world_size = world_size
        self._table: tuple[tuple[Item, ...], frozenset[int]] | None = None
        self._plan: Plan | None = None
        self._claiming: threading.Thread | None = None
        self._claim_error: Exception | None = None
        self.sealed_step: int | None = None
        """The step of the newest seal."""
        seals_directory(handoff).mkdir(parents=True, exist_ok=True)

    def prepare(self, items: tuple[Item, ...]) -> None:
        """Plan, and claim the slots beside the training, so that the first save finds them warm."""
        nbytes = self._plan_for(items, frozenset()).part_bytes[self._rank]
        self._claiming = threading.Thread(
            target=self._claim, args=(nbytes,), name="cloudspot-arena", daemon=True
        )
        self._claiming.start()

    def can_save(self) -> bool:
        """Say whether a save would find a claimed and free slot now."""
        claiming = self._claiming
        return claiming is not None and not claiming.is_alive() and self._arena.free_slot() is not None

    def save(
        self,
        objects: Mapping[str, Any],
        *,
        kind: str,
        step: int,
        avoid: Collection[int],
        describe: Describe,
        deadline: Callable[[], float] | None,
    ) -> float | None:
        """Copy and seal this rank's part; return the seconds that took, or None without a slot.

        Args:
            objects: The tracked objects by name.
            kind: ``interval``, ``drain`` or ``final``.
            step: The boundary: so many steps are in the state.
            avoid: Ranks whose machines are about to go.
            describe: Called once, when a slot is found.
            deadline: Tells until when (monotonic) to wait for a slot, taking back an upload that has
                not started; asked again and again. None: not at all.

        Raises:
            SessionError: the state cannot be saved, or there is no room for it.
        """
        if self._claiming is not None:
            self._claiming.join()
        if self._claim_error is not None:
            raise self._claim_error
        slot = self._find_slot(deadline)
        if slot is None:
            return None
        started = time.monotonic()
        shared, rank_state = describe()
        state = checkpoint.take(objects)
        table = self._plan_for(state.items, frozenset(avoid))
        placements = table.parts[self._rank]
        nbytes = table.part_bytes[self._rank]
        self._arena.grow(slot, nbytes)
        slot.write(placements, [state.tensors[placement.item.name] for placement in placements])
        seconds = time.monotonic() - started
        seal = {
            "format": checkpoint.FORMAT,
            "generation": self._generation,
            "step": step,
            "rank": self._rank,
            "world_size": self._world_size,
            "kind": kind,
            "slot": str(slot.path),
            "nbytes": nbytes,
            "plan": table.digest,
            "items": [placement.to_json() for placement in placements],
            "objects": {"state": state.objects, "models": list(state.models), **shared},
            "rank_state": rank_state,
            "stall_seconds": seconds,
            "sealed_at_unix": time.time(),
        }
        path = self._arena.seal_path(step)
        slot.seal = path
        write_json(path, seal)
        self.sealed_step = step
        return seconds

    def close(self) -> None:
        """Stop warming the arena; what is sealed stays for the agent."""
        self._arena.close()

    def _claim(self, nbytes: int) -> None:
        try:
            self._arena.claim(nbytes)
        except Exception as error:  # the next save raises it, in the thread that can be stopped by it
            self._claim_error = error

    def _find_slot(self, deadline: Callable[[], float] | None) -> Slot | None:
        if deadline is None:
            return self._arena.free_slot()
        while True:
            slot = self._arena.withdraw_slot()
            if slot is not None or time.monotonic() >= deadline():
                return slot
            time.sleep(_SLOT_POLL_SECONDS)

    def _plan_for(self, items: tuple[Item, ...], avoid: frozenset[int]) -> Plan:
        if self._plan is None or self._table != (items, avoid):
            self._table = (items, avoid)
            self._plan = plan(items, world_size=self._world_size, avoid=avoid)
        return self._plan
