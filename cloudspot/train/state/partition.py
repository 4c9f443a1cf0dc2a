"""Which rank writes what of a checkpoint, and where: a pure function of what every rank knows.

Each rank computes the same plan by itself, so a save needs no collective. ``torch.distributed.checkpoint``
plans with collectives, which hang when a rank dies. A table of items is all that it takes: under DDP all
ranks hold the same tensors, and of a sharded tensor every rank knows which rank holds which box.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cloudspot.train.state.boxes import Box

OWN_CHUNK_BYTES = 8 << 20
"""Frozen items of this size or more have chunks of their own."""


class Shard(NamedTuple):
    """A box of a sharded tensor."""

    box: Box
    holders: tuple[int, ...]
    """The ranks that hold it, ascending: several if it is replicated along a dimension of the mesh."""


@dataclass(frozen=True)
class Item:
    """A tensor of the state, described by what all ranks agree on."""

    name: str
    dtype: str
    """torch's name, such as ``float32``."""
    shape: tuple[int, ...]
    itemsize: int
    """Bytes of one element."""
    pinned: bool = False
    """Rank 0's is written: it is a buffer of the model, in which ranks may differ."""
    is_frozen: bool = False
    """It is not trained, so it is probably the same in each save; only where it lies depends on that."""
    shards: tuple[Shard, ...] = ()
    """The boxes that make up a DTensor; empty if it is none or has no elements: every rank holds all."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tensor, packed."""
        return self.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class Placement:
    """The position of an item, or of one box of it, in a part."""

    item: Item
    offset: int
    """Bytes from the beginning of the part; a multiple of the item's element size."""
    box: Box | None = None
    """What of a sharded item lies here; None: all of it."""
    giver: int | None = None
    """The rank that hands it over to the one that writes it; None: that holds it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of what lies here."""
        return self.item.shape if self.box is None else self.box.shape

    @property
    def nbytes(self) -> int:
        """Return the bytes of what lies here, packed."""
        return self.item.itemsize * math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        """Return the item's line in a seal."""
        line = {
            "name": self.item.name,
            "dtype": self.item.dtype,
            "shape": list(self.shape),
            "offset": self.offset,
            "nbytes": self.nbytes,
        }
        if self.box is not None:
            line["global_shape"] = list(self.item.shape)
            line["global_offset"] = list(self.box.offset)
        return line


@dataclass(frozen=True)
class Plan:
    """All ranks' parts of one checkpoint."""

    parts: tuple[tuple[Placement, ...], ...]
    """By rank; each by offset, without holes."""
    part_bytes: tuple[int, ...]
    """By rank."""
    digest: str
    """SHA-256 of the whole table, in hex: parts with another digest belong to another checkpoint."""
    takers: Mapping[int, int] = field(default_factory=dict)
    """By the ranks that are relieved, which have no part: the rank that takes what only they have."""

    def handed_over(self, giver: int) -> tuple[Placement, ...]:
        """Return what a relieved rank hands over, in this order."""
        return tuple(each for each in self.parts[self.takers[giver]] if each.giver == giver)


def plan(
    items: Sequence[Item],
    *,
    world_size: int,
    avoid: Collection[int] = frozenset(),
    rooms: Sequence[int] = (),
    handover_bytes: int = 0,
    are_lost: bool = False,
    buffers_from: int | None = None,
) -> Plan:
    """Spread the items, whose names are unique, over the ranks, evenly by bytes.

    Items that every rank holds are spread whole. Of a sharded item, each box goes to a rank that holds it.
    The result does not depend on the order of the items.

    Ranks to ``avoid``, whose machines are about to go, are relieved: they have no part, and what no other
    rank holds is handed over to one that stays. If that is more than ``handover_bytes``, they write it
    themselves, and nothing else. ``avoid`` is ignored when it names every rank, or when a part would outgrow
    its slot; ``rooms`` are the bytes that each rank's slots hold, if there is a limit.

    Ranks that ``are_lost`` hand over nothing now. Where ranks differ, the rank ``buffers_from`` writes what
    rank 0 has handed over before; None: the first rank that stays writes its own.

    Raises:
        LookupError: only lost ranks held a part of an item.
    """
    table = sorted(items, key=lambda item: item.name)
    staying = [rank for rank in range(world_size) if rank not in avoid]
    doomed = [rank for rank in range(world_size) if rank in avoid]
    if doomed and are_lost:
        pinned_to = staying[0] if buffers_from is None else buffers_from
        return _spread(table, world_size, staying, dict.fromkeys(doomed, staying[0]), pinned_to=pinned_to)
    if doomed and staying:
        takers = {rank: staying[index % len(staying)] for index, rank in enumerate(doomed)}
        for found in (_spread(table, world_size, staying, takers), _spread(table, world_size, staying, {})):
            given = sum(each.nbytes for part in found.parts for each in part if each.giver is not None)
            has_room = all(size <= room for size, room in zip(found.part_bytes, rooms, strict=bool(rooms)))
            if given <= handover_bytes and has_room:
                return found
    return _spread(table, world_size, range(world_size), {})


def _spread(
    table: Sequence[Item],
    world_size: int,
    open_ranks: Sequence[int],
    takers: Mapping[int, int],
    *,
    pinned_to: int | None = None,
) -> Plan:
    shares: list[list[Placement]] = [[] for _ in range(world_size)]
    loads = [0] * world_size

    def place(placement: Placement, rank: int) -> None:
        if rank in takers:
            placement, rank = replace(placement, giver=rank), takers[rank]
        loads[rank] += placement.nbytes
        shares[rank].append(placement)

    for item in table:
        if item.pinned:
            place(Placement(item, 0), pinned_to or 0)
    # First what few ranks hold, then the rest to even it out.
    for placement, holders in _largest_first(table):
        able = set(holders).intersection(open_ranks) or holders
        if pinned_to is not None and not set(able) <= set(open_ranks):
            raise LookupError(f"only ranks that were lost hold a part of {placement.item.name}")
        place(placement, min(able, key=lambda each: (loads[each], each)))
    heap = [(loads[rank], rank) for rank in open_ranks]
    heapq.heapify(heap)
    free = (item for item in table if not item.pinned and not item.shards)
    # The largest first, each to the rank with the least so far.
    for item in sorted(free, key=lambda i: (-i.nbytes, i.name)):
        load, rank = heap[0]
        heapq.heapreplace(heap, (load + item.nbytes, rank))
        shares[rank].append(Placement(item, 0))
    parts, part_bytes = [], []
    for share in shares:
        # Wide elements first: every offset is a multiple of its element size, and there are no holes. Among
        # those of one width, what is not trained lies together, and what is sharded.
        placements, offset = [], 0
        for each in sorted(share, key=_place_in_part):
            placements.append(replace(each, offset=offset))
            offset += each.nbytes
        parts.append(tuple(placements))
        part_bytes.append(offset)
    return Plan(tuple(parts), tuple(part_bytes), _digest(parts, takers), takers)


def _place_in_part(placement: Placement) -> tuple[Any, ...]:
    item = placement.item
    return -item.itemsize, not item.is_frozen, placement.box is None, item.name, placement.box or ()


def cuts(placements: Sequence[Placement]) -> list[int]:
    """Return where a part's chunks are to be cut, ascending.

    That is where frozen items meet others, and around each large frozen one, wherever that lies: so what is
    frozen makes the same chunks. And where sharded items meet others, of which each node reads all.
    """
    offsets = set()
    for before, after in itertools.pairwise(placements):
        is_large = any(one.item.is_frozen and one.nbytes >= OWN_CHUNK_BYTES for one in (before, after))
        is_border = before.item.is_frozen != after.item.is_frozen or (before.box is None) != (
            after.box is None
        )
        if is_border or is_large:
            offsets.add(after.offset)
    return sorted(offsets)


def _largest_first(table: Sequence[Item]) -> Iterator[tuple[Placement, tuple[int, ...]]]:
    """Yield the boxes of sharded items and who holds them; those that one rank alone holds come first."""
    found = [(Placement(item, 0, box), holders) for item in table for box, holders in item.shards]
    found.sort(key=lambda each: (len(each[1]) > 1, -each[0].nbytes, each[0].item.name, each[0].box))
    yield from found


def _digest(parts: Sequence[Sequence[Placement]], relieved: Collection[int]) -> str:
    table = [
        [rank, [placement.to_json() for placement in part]]
        for rank, part in enumerate(parts)
        if rank not in relieved
    ]
    text = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
