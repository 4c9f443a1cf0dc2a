"""Plans which rank writes which tensors of a checkpoint, and where, from information that every rank has.

Each rank computes the same plan by itself, so a save needs no collective. ``torch.distributed.checkpoint``
plans with collectives, which hang when a rank dies. The plan needs only a table of items: under DDP, all
ranks have the same tensors, and every rank knows which rank holds which box of a sharded tensor.
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
"""Frozen items of at least this size get their own chunks."""


class Shard(NamedTuple):
    """A box of a sharded tensor."""

    box: Box
    holders: tuple[int, ...]
    """The ranks that hold the box, ascending: several if it is replicated along a mesh dimension."""


@dataclass(frozen=True)
class Item:
    """A tensor in the state, described by properties that are the same on all ranks."""

    name: str
    dtype: str
    """torch's name of the type, such as ``float32``."""
    shape: tuple[int, ...]
    itemsize: int
    """The number of bytes per element."""
    pinned: bool = False
    """Whether rank 0's tensor is written, because it is a model's buffer and may differ between ranks."""
    is_frozen: bool = False
    """Whether the item is not trained, and so is probably the same in each save. This affects only the item's
    position."""
    shards: tuple[Shard, ...] = ()
    """The boxes that make up a DTensor; empty if every rank holds the whole tensor or it has no elements."""

    @property
    def nbytes(self) -> int:
        """Return the size of the packed tensor in bytes."""
        return self.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class Placement:
    """The position of an item, or of one box of it, in a part."""

    item: Item
    offset: int
    """The offset in bytes from the beginning of the part; a multiple of the item's element size."""
    box: Box | None = None
    """The box of a sharded item, or None for a whole item."""
    giver: int | None = None
    """The rank that hands the data over to the writing rank; None if the writing rank has the data."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the item or box."""
        return self.item.shape if self.box is None else self.box.shape

    @property
    def nbytes(self) -> int:
        """Return the size of the packed item or box in bytes."""
        return self.item.itemsize * math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        """Return the item's entry in a seal."""
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
    """The parts of all ranks in one checkpoint."""

    parts: tuple[tuple[Placement, ...], ...]
    """The parts by rank. A part's placements are in the order of their offsets, without holes."""
    part_bytes: tuple[int, ...]
    """The sizes of the parts in bytes, by rank."""
    digest: str
    """The SHA-256 of the whole table, in hex: parts with a different digest belong to another checkpoint."""
    takers: Mapping[int, int] = field(default_factory=dict)
    """Maps each relieved rank, which has no part, to the rank that takes the boxes that only it holds."""

    def handed_over(self, giver: int) -> tuple[Placement, ...]:
        """Return the placements that a relieved rank hands over, in order."""
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
    """Distribute the items, whose names are unique, over the ranks, evenly by bytes.

    An item that every rank holds is written as a whole by one rank. Each box of a sharded item goes to a rank
    that holds it. The result does not depend on the order in which the items are given.

    The ranks to ``avoid``, whose machines will be reclaimed, are relieved: they have no part, and boxes that
    no other rank holds are handed over to ranks that stay. If these boxes exceed ``handover_bytes``, the
    ranks to avoid write the boxes themselves, but nothing else. ``avoid`` is ignored if it names every rank,
    or if a part would exceed its slot; ``rooms`` contains the size of each rank's slots in bytes, if they are
    limited.

    If the ranks to avoid ``are_lost``, they cannot hand over anything now. Buffers that may differ between
    ranks are written by the rank ``buffers_from``, which has rank 0's buffers from earlier; if it is None,
    the first rank that stays writes its own.

    Raises:
        LookupError: a part of an item was held only by lost ranks.
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
    # Place the items that few ranks hold first; the others then balance the loads.
    for placement, holders in _largest_first(table):
        able = set(holders).intersection(open_ranks) or holders
        if pinned_to is not None and not set(able) <= set(open_ranks):
            raise LookupError(f"a part of {placement.item.name} was held only by ranks that were lost")
        place(placement, min(able, key=lambda each: (loads[each], each)))
    heap = [(loads[rank], rank) for rank in open_ranks]
    heapq.heapify(heap)
    free = (item for item in table if not item.pinned and not item.shards)
    # Place the largest item first, and each item on the rank with the smallest load so far.
    for item in sorted(free, key=lambda i: (-i.nbytes, i.name)):
        load, rank = heap[0]
        heapq.heapreplace(heap, (load + item.nbytes, rank))
        shares[rank].append(Placement(item, 0))
    parts, part_bytes = [], []
    for share in shares:
        # Wide elements come first, so that every offset is a multiple of its element size and there are no
        # holes. Among elements of the same width, frozen items are adjacent, and so are sharded ones.
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
    """Return the offsets at which a part must be divided into chunks, ascending.

    There is a cut between frozen and other items, and around each large frozen item, so that frozen items
    form the same chunks in each save. There is also a cut between sharded and other items, because each node
    reads all of the other items.
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
    """Yield the boxes of sharded items with their holders, starting with boxes that only one rank holds."""
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
