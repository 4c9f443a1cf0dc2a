"""One rank's saves: the plan, the copy into the arena at a boundary, the hand-over and the seal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from cloudspot.host.boot_clock import this_boot
from cloudspot.train.errors import SessionError
from cloudspot.train.handoff import SEAL_FORMAT, write_json
from cloudspot.train.rounds import handover
from cloudspot.train.rounds.handover import HandOver
from cloudspot.train.rounds.save_order import INTERVAL, MAX_BYTES, RESCUE, SaveOrder
from cloudspot.train.sessions.overlapped_save import OverlappedSave
from cloudspot.train.sessions.save_way import Way
from cloudspot.train.state import checkpoint
from cloudspot.train.state.arena import Arena, Slot
from cloudspot.train.state.boundary_marks import Description
from cloudspot.train.state.overlapped_copy import OverlappedCopy
from cloudspot.train.state.partition import Item, Placement, Plan, cuts, plan
from cloudspot.train.state.tree import Json, tensor_bytes

_SAME = ("generation", "step", "round", "plan")
"""The members of a seal that must be equal on the giving and the taking rank."""
_STOP_SECONDS = 5.0
_SLOT_POLL_SECONDS = 0.01

_NOTHING: Mapping[int, Json] = MappingProxyType({})

Describe = Callable[[], Description]


@dataclass(frozen=True)
class Copied:
    """A part that is in its slot, except for tensors that other ranks hand over, and is not sealed yet."""

    slot: Slot | None
    """The slot, or None if the rank is relieved and has no part."""
    content: dict[str, Json]
    """The content of the seal."""
    handover: HandOver
    """The hand-over, which must be completed before the part is sealed."""
    taken: Mapping[int, tuple[Placement, ...]]
    """The placements of tensors that other ranks hand over, by rank, in the order of the tensors' bytes."""
    tried: OverlappedCopy | None = None
    """In a trial, the copy that could have been made during the step."""


class Saver:
    """Copies this rank's part of the state into its arena and seals it."""

    def __init__(self, arena: Arena) -> None:
        """Create the directory of the seals; ``prepare`` claims the arena."""
        self._arena = arena
        self._world = arena.world
        self._planned_for: tuple[Any, ...] | None = None
        self._plan: Plan | None = None
        self._frozen: frozenset[str] | None = None
        """The items that were not trained when the first plan was made. Later, these items may differ between
        ranks, for example while one rank evaluates, but the plan must not differ."""
        self._lock = threading.RLock()  # another thread may also copy
        self._claiming: threading.Thread | None = None
        self._claim_error: Exception | None = None
        self.overlapped: OverlappedSave | None = None
        """A save that is being copied during the training or is about to be sealed."""
        self.sealed_step: int | None = None
        """The step of the latest seal."""
        self.relieved: Collection[int] = ()
        """The ranks that hand over their states in the latest save."""
        arena.seals.mkdir(parents=True, exist_ok=True)

    def prepare(self, items: tuple[Item, ...]) -> None:
        """Make the plan, and claim the slots in the background, so that they are warm at the first save.

        If there is enough memory, the slots also have room for this rank's part in case all other nodes are
        lost.
        """
        with self._lock:
            self._prepare(items)

    def _prepare(self, items: tuple[Item, ...], *, written: Slot | None = None) -> None:
        rank, num_local = self._world.rank, self._world.local_world_size
        first = rank - self._world.local_rank
        others = frozenset(range(self._world.world_size)) - frozenset(range(first, first + num_local))
        most = MAX_BYTES
        alone = plan(items, world_size=self._world.world_size, avoid=others, handover_bytes=most)
        nbytes = self._plan_for(items).part_bytes[rank]
        self._claiming = threading.Thread(
            target=self._claim,
            args=(nbytes, alone.part_bytes[rank], written),
            name="cloudspot-arena",
            daemon=True,
        )
        self._claiming.start()

    def can_save(self) -> bool:
        """Return whether a save would now find a claimed and free slot."""
        return self._has_claimed() and self._arena.free_slot() is not None

    def room(self) -> int:
        """Return the size of each slot in bytes; 0 until the slots are claimed."""
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
    ) -> bool:
        """Copy and seal this rank's part; return False if no slot is free.

        The order must not hand over any state. The arguments and errors are those of ``copy``. With
        ``is_held``, the agent uploads the part only if this process ends with status 0.
        """
        copied = self.copy(objects, order, step=step, describe=describe, deadline=deadline)
        if copied is not None:
            self.seal(copied, is_held=is_held)
        return copied is not None

    def copy(
        self,
        objects: Mapping[str, Any],
        order: SaveOrder,
        *,
        step: int,
        describe: Describe,
        deadline: Callable[[], float] | None,
        kept: Mapping[int, Json] = _NOTHING,
        way: Way = Way.BOUNDARY,
        but: Collection[str] = (),
    ) -> Copied | None:
        """Copy this rank's part into a slot, where it stays until the next copy; return None if none is free.

        A rank that the order relieves needs no slot.

        ``step`` is the number of steps in the saved state. ``describe`` is called once, after a slot is
        found. ``deadline`` is called repeatedly and returns until when to wait for a slot (monotonic); for
        this, an upload that has not started is taken back. If ``deadline`` is None, there is no waiting. In a
        rescue, ``kept`` contains the states of lost ranks that this rank adds to its own. ``way`` says
        whether large tensors are copied now or later; those named in ``but`` are copied now. An earlier save
        that is not sealed yet is abandoned.

        Raises:
            SessionError: the state cannot be saved, or there is no room for a slot.
        """
        with self._lock:
            if self.overlapped is not None:
                self.overlapped.cancel()
            started = time.monotonic()
            state = checkpoint.take(objects)
            table = self._plan_for(state.items, order)
            self.relieved, rank = table.takers, self._world.rank
            slot = None
            if rank not in table.takers:
                searched = time.monotonic()
                slot = self._find_slot(deadline)
                if slot is None:
                    return None
                started += time.monotonic() - searched
            description = describe()
            content: dict[str, Json] = {
                "format": SEAL_FORMAT,
                "generation": self._arena.generation,
                "step": step,
                "round": order.number,
                "rank": rank,
                "world_size": self._world.world_size,
                "relieved": sorted(table.takers),
                "kind": order.kind,
                "rescue": order.rescue,
                "plan": table.digest,
                "objects": {
                    "state": state.objects,
                    "models": list(state.models),
                    "layouts": state.layouts,
                    **description.shared,
                },
                "rank_states": {
                    str(rank): description.flatten_rank_state(),
                    **{str(lost): state for lost, state in kept.items()},
                },
            }
            if slot is None:
                return Copied(None, content, self._giving(order, table, state.tensors, content), {})
            placements, nbytes = table.parts[rank], table.part_bytes[rank]
            takers = {} if order.kind == RESCUE else table.takers
            taken = {giver: table.handed_over(giver) for giver, taker in takers.items() if taker == rank}
            must_grow = nbytes > slot.capacity
            self._arena.grow(slot, nbytes)
            own = tuple(each for each in placements if each.giver is None) if taken else placements
            later = {} if way is Way.BOUNDARY else state.optimized
            copying = slot.write(
                own,
                [state.tensors[placement.item.name] for placement in own],
                later={name: each for name, each in later.items() if name not in but},
                is_trial=way is Way.TRIAL,
            )
            if way is Way.TRIAL:
                copying.copy_now()
            content |= {
                "slot": str(slot.path),
                "nbytes": nbytes,
                "items": [placement.to_json() for placement in placements],
                "cuts": cuts(placements),
                "stall_seconds": time.monotonic() - started,
                "copy_seconds": time.monotonic() - started,
                "way": Way.OVERLAPPED.value if way is Way.OVERLAPPED else Way.BOUNDARY.value,
            }
            if must_grow and order.kind == INTERVAL:
                # The state has outgrown the slots: enlarge the other slot before a drain needs it.
                self._prepare(state.items, written=slot)
            handing = HandOver(order, rank, takes=taken)
            copied = Copied(slot, content, handing, taken, copying if way is Way.TRIAL else None)
            if way is Way.OVERLAPPED and copying.nbytes:
                slot.is_being_written = True
                self.overlapped = OverlappedSave(
                    copying,
                    seal=partial(self._seal_later, copied),
                    release=partial(setattr, slot, "is_being_written", False),
                )
            return copied

    def _seal_later(self, copied: Copied, waited: float, seconds: float) -> None:
        copied.content["stall_seconds"] += waited
        copied.content["copy_seconds"] += seconds
        self.seal(copied)

    def _giving(
        self, order: SaveOrder, table: Plan, tensors: Mapping[str, Any], content: Mapping[str, Json]
    ) -> HandOver:
        rank = self._world.rank
        given = handover.pack(
            {key: content[key] for key in (*_SAME, "objects", "rank_states")},
            (_bytes_of(tensors[each.item.name]) for each in table.handed_over(rank)),
        )
        # Rank 0's process hosts the store, so it leaves only when no rank needs the store any longer.
        staying = [each for each in range(self._world.world_size) if each not in table.takers]
        awaits = staying if rank == 0 else [table.takers[rank]]
        return HandOver(order, rank, gives=given, awaits=awaits)

    def seal(self, copied: Copied, *, is_held: bool = False) -> None:
        """Give a copy to the agent, including the states that others handed over; do nothing if relieved."""
        slot, content = copied.slot, copied.content
        if slot is None:
            self.sealed_step = content["step"]
            return
        for giver, placements in copied.taken.items():
            given = copied.handover.taken[giver]
            state, tensors = handover.unpack(given, [each.nbytes for each in placements])
            for key in _SAME:
                if state[key] != content[key]:
                    what = f"rank {giver} hands over a state with {key} {state[key]}"
                    raise SessionError(f"{what}, but this rank saves {key} {content[key]}")
            for placement, data in zip(placements, tensors, strict=True):
                slot.put(placement.offset, data)
            content["rank_states"] |= state["rank_states"]
            if giver == 0:  # if ranks differ, rank 0's state is used
                content["objects"] = state["objects"]
        slot.seal = path = self._arena.seal_path(content["step"], content["round"], is_held=is_held)
        write_json(path, {**content, "boot": this_boot(), "sealed_monotonic": time.monotonic()})
        self.sealed_step = content["step"]

    def close(self) -> None:
        """Stop warming the arena; sealed parts are kept for the agent."""
        self._arena.stop()
        if self._claiming is not None:
            # If a thread is running torch's code when Python exits, the process ends with SIGABRT.
            self._claiming.join(_STOP_SECONDS)
        self._arena.close()

    def _has_claimed(self) -> bool:
        return self._claiming is not None and not self._claiming.is_alive()

    def _claim(self, nbytes: int, wanted_nbytes: int, written: Slot | None) -> None:
        try:
            self._arena.claim(nbytes, wanted_nbytes, written=written)
        except Exception as error:  # the next save raises it, in the main thread
            self._claim_error = error

    def _find_slot(self, deadline: Callable[[], float] | None) -> Slot | None:
        if self._claiming is not None:
            if self._claiming.is_alive():
                self._arena.hurry()
            self._claiming.join()
        if self._claim_error is not None:
            raise self._claim_error
        if deadline is None:
            return self._arena.free_slot()
        while True:
            slot = self._arena.withdraw_slot()
            if slot is not None or time.monotonic() >= deadline():
                return slot
            time.sleep(_SLOT_POLL_SECONDS)

    def _plan_for(self, items: tuple[Item, ...], order: SaveOrder | None = None) -> Plan:
        if self._frozen is None:
            self._frozen = frozenset(item.name for item in items if item.is_frozen)
        items = tuple(
            one if one.is_frozen == (one.name in self._frozen) else replace(one, is_frozen=not one.is_frozen)
            for one in items
        )
        avoid, rooms, most, are_lost = frozenset[int](), tuple[int, ...](), 0, False
        buffers_from: int | None = None
        if order is not None and order.avoid:
            avoid, rooms, most = order.avoid, order.rooms, order.handover_bytes
            are_lost, buffers_from = order.kind == RESCUE, order.keepers.get(0)
        planned_for = (items, avoid, rooms, most, are_lost, buffers_from)
        if self._plan is None or self._planned_for != planned_for:
            self._planned_for = planned_for
            world_size = self._world.world_size
            self._plan = plan(
                items,
                world_size=world_size,
                avoid=avoid,
                rooms=rooms,
                handover_bytes=most,
                are_lost=are_lost,
                buffers_from=buffers_from,
            )
        return self._plan


def _bytes_of(tensor: Any) -> bytes:
    cpu = tensor.detach().cpu().contiguous()
    return bytes(tensor_bytes(cpu))
