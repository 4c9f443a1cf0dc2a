"""One rank's saves: the plan, the copy into the arena at a boundary, and the seal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudspot.train import checkpoint
from cloudspot.train.arena import Arena, Slot
from cloudspot.train.boundary_marks import Description
from cloudspot.train.handoff import SEAL_FORMAT, write_json
from cloudspot.train.partition import Item, Plan, plan
from cloudspot.train.save_order import INTERVAL, SaveOrder
from cloudspot.train.tree import Json

_SLOT_POLL_SECONDS = 0.01

Describe = Callable[[], Description]


@dataclass(frozen=True)
class Copied:
    """A part that is in its slot and not sealed yet."""

    slot: Slot
    content: dict[str, Json]
    """The seal."""


class Saver:
    """Copies this rank's part of the state into its arena and seals it."""

    def __init__(self, arena: Arena) -> None:
        """Make the directory of the seals; the arena is claimed by ``prepare``."""
        self._arena = arena
        self._world = arena.world
        self._planned_for: tuple[Any, ...] | None = None
        self._plan: Plan | None = None
        self._lock = threading.RLock()  # a copy may be made beside the main thread
        self._claiming: threading.Thread | None = None
        self._claim_error: Exception | None = None
        self.sealed_step: int | None = None
        """The step of the newest seal."""
        arena.seals.mkdir(parents=True, exist_ok=True)

    def prepare(self, items: tuple[Item, ...]) -> None:
        """Plan, and claim the slots in the background, so that the first save finds them warm.

        Where memory is plentiful, the slots have room for this rank's part when all other nodes are to go.
        """
        with self._lock:
            self._prepare(items)

    def _prepare(self, items: tuple[Item, ...]) -> None:
        rank, num_local = self._world.rank, self._world.local_world_size
        first = rank - self._world.local_rank
        others = frozenset(range(self._world.world_size)) - frozenset(range(first, first + num_local))
        alone = plan(items, world_size=self._world.world_size, avoid=others)
        nbytes = self._plan_for(items).part_bytes[rank]
        self._claiming = threading.Thread(
            target=self._claim, args=(nbytes, alone.part_bytes[rank]), name="cloudspot-arena", daemon=True
        )
        self._claiming.start()

    def can_save(self) -> bool:
        """Return whether a save would find a claimed and free slot now."""
        return self._has_claimed() and self._arena.free_slot() is not None

    def room(self) -> int:
        """Return how many bytes each slot holds; 0 until they are claimed."""
        return self._arena.room() if self._has_claimed() else 0

    def save(
        self,
        objects: Mapping[str, Any],
        order: SaveOrder,
        *,
        step: int,
        describe: Describe,
        deadline: Callable[[], float] | None,
        is_held: bool = False,
    ) -> float | None:
        """Copy and seal this rank's part; return the seconds that took, or None without a slot.

        The arguments and errors are those of ``copy``. With ``is_held``, the agent uploads the part only if
        this process ends with status 0.
        """
        copied = self.copy(objects, order, step=step, describe=describe, deadline=deadline)
        if copied is None:
            return None
        self.seal(copied, is_held=is_held)
        seconds: float = copied.content["stall_seconds"]
        return seconds

    def copy(
        self,
        objects: Mapping[str, Any],
        order: SaveOrder,
        *,
        step: int,
        describe: Describe,
        deadline: Callable[[], float] | None,
    ) -> Copied | None:
        """Copy this rank's part into a slot, where it stays until the next copy; return None without a slot.

        ``step`` is the boundary: how many steps are in the state. ``describe`` is called once, when a slot is
        found. ``deadline`` is called repeatedly and returns until when (monotonic) to wait for a slot, taking
        back an upload that has not started; None: do not wait.

        Raises:
            SessionError: the state cannot be saved, or there is no room for it.
        """
        with self._lock:
            if self._claiming is not None:
                if self._claiming.is_alive():
                    self._arena.hurry()
                self._claiming.join()
            if self._claim_error is not None:
                raise self._claim_error
            slot = self._find_slot(deadline)
            if slot is None:
                return None
            started = time.monotonic()
            description = describe()
            rank_state = description.flatten_rank_state()
            state = checkpoint.take(objects)
            table = self._plan_for(state.items, order.avoid, order.rooms)
            rank = self._world.rank
            placements, nbytes = table.parts[rank], table.part_bytes[rank]
            must_grow = nbytes > slot.capacity
            self._arena.grow(slot, nbytes)
            slot.write(placements, [state.tensors[placement.item.name] for placement in placements])
            seconds = time.monotonic() - started
            seal = {
                "format": SEAL_FORMAT,
                "generation": self._arena.generation,
                "step": step,
                "rank": rank,
                "world_size": self._world.world_size,
                "kind": order.kind,
                "slot": str(slot.path),
                "nbytes": nbytes,
                "plan": table.digest,
                "items": [placement.to_json() for placement in placements],
                "objects": {"state": state.objects, "models": list(state.models), **description.shared},
                "rank_state": rank_state,
                "stall_seconds": seconds,
            }
            if must_grow and order.kind == INTERVAL:
                # The state has outgrown the slots: let the other one grow before a drain needs it.
                self.prepare(state.items)
            return Copied(slot, seal)

    def seal(self, copied: Copied, *, is_held: bool = False) -> None:
        """Give a copy to the agent."""
        step = copied.content["step"]
        copied.slot.seal = path = self._arena.seal_path(step, is_held=is_held)
        write_json(path, {**copied.content, "sealed_at_unix": time.time()})
        self.sealed_step = step

    def close(self) -> None:
        """Stop warming the arena; what is sealed stays for the agent."""
        self._arena.close()

    def _has_claimed(self) -> bool:
        return self._claiming is not None and not self._claiming.is_alive()

    def _claim(self, nbytes: int, wanted_nbytes: int) -> None:
        try:
            self._arena.claim(nbytes, wanted_nbytes)
        except Exception as error:  # raised by the next save, in the main thread
            self._claim_error = error

    def _find_slot(self, deadline: Callable[[], float] | None) -> Slot | None:
        if deadline is None:
            return self._arena.free_slot()
        while True:
            slot = self._arena.withdraw_slot()
            if slot is not None or time.monotonic() >= deadline():
                return slot
            time.sleep(_SLOT_POLL_SECONDS)

    def _plan_for(
        self, items: tuple[Item, ...], avoid: frozenset[int] = frozenset(), rooms: tuple[int, ...] = ()
    ) -> Plan:
        wanted = (items, avoid, rooms if avoid else ())
        if self._plan is None or self._planned_for != wanted:
            self._planned_for = wanted
            self._plan = plan(items, world_size=self._world.world_size, avoid=avoid, rooms=rooms)
        return self._plan
