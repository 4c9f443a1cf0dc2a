"""Which rank writes which tensor of a checkpoint, and where: a pure function of what every rank knows.

Each rank computes the same plan by itself, so a save needs no collective. ``torch.distributed.checkpoint``
plans with collectives, which hang when a rank dies, and is made for sharded state. Under DDP all ranks
hold the same tensors, so a table of items is all that it takes.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any


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
    """Rank 0 always writes it: it is a buffer of the model, in which ranks may differ."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tensor, packed."""
        nbytes = self.itemsize
        for length in self.shape:
            nbytes *= length
        return nbytes


@dataclass(frozen=True)
class Placement:
    """The position of an item in its part."""

    item: Item
    offset: int
    """Bytes from the beginning of the part; a multiple of the item's element size."""

    def to_json(self) -> dict[str, Any]:
        """Return the item's line in a seal."""
        return {
            "name": self.item.name,
            "dtype": self.item.dtype,
            "shape": list(self.item.shape),
            "offset": self.offset,
            "nbytes": self.item.nbytes,
        }


@dataclass(frozen=True)
class Plan:
    """All ranks' parts of one checkpoint."""

    parts: tuple[tuple[Placement, ...], ...]
    """By rank; each by offset, without holes."""
    part_bytes: tuple[int, ...]
    """By rank."""
    digest: str
    """SHA-256 of the whole table, in hex: parts with another digest belong to another checkpoint."""


def plan(
    items: Sequence[Item], *, world_size: int, avoid: Collection[int] = frozenset(), rooms: Sequence[int] = ()
) -> Plan:
    """Spread the items, whose names are unique, over the ranks, whole and evenly by bytes.

    The result does not depend on the order of the items. Ranks to ``avoid``, whose machines are about to go,
    get nothing but what is pinned to them. That is ignored when it names every rank, or when a part would
    outgrow its slot; ``rooms`` are the bytes that each rank's slots hold, if there is a limit.
    """
    table = sorted(items, key=lambda item: item.name)
    open_ranks = [rank for rank in range(world_size) if rank not in avoid] or list(range(world_size))
    shares: list[list[Item]] = [[] for _ in range(world_size)]
    shares[0] = [item for item in table if item.pinned]
    loads = [(sum(item.nbytes for item in shares[rank]), rank) for rank in open_ranks]
    heapq.heapify(loads)
    # The largest first, each to the rank with the least so far.
    for item in sorted((i for i in table if not i.pinned), key=lambda i: (-i.nbytes, i.name)):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + item.nbytes, rank))
        shares[rank].append(item)
    parts, part_bytes = [], []
    for share in shares:
        # Wide elements first: every offset is a multiple of its element size, and there are no holes.
        placements, offset = [], 0
        for item in sorted(share, key=lambda i: (-i.itemsize, i.name)):
            placements.append(Placement(item, offset))
            offset += item.nbytes
        parts.append(tuple(placements))
        part_bytes.append(offset)
    if avoid and rooms and any(nbytes > room for nbytes, room in zip(part_bytes, rooms, strict=True)):
        return plan(items, world_size=world_size)
    return Plan(tuple(parts), tuple(part_bytes), _digest(parts))


def _digest(parts: Sequence[Sequence[Placement]]) -> str:
    table = [[placement.to_json() for placement in part] for part in parts]
    text = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
