"""Hands the state of a rank that must leave to a rank that stays, through the ranks' store (P4).

The relieved rank writes its state to the store in pieces, followed by the number of pieces; the taker reads
the pieces once that number is present. Pieces are small, because the store rejects messages of 8 MiB or more
and serves all ranks in the meantime.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from cloudspot.train.distributed import Store
from cloudspot.train.errors import SessionError
from cloudspot.train.rounds.save_order import SaveOrder

PIECE_BYTES = 1 << 20
_HEADER_BYTES = 8


def pack(state: Mapping[str, Any], tensors: Iterable[bytes]) -> bytes:
    """Return a JSON state and the tensors' bytes as one byte string."""
    header = json.dumps(state).encode()
    return b"".join((len(header).to_bytes(_HEADER_BYTES, "big"), header, *tensors))


def unpack(given: bytes, sizes: Iterable[int]) -> tuple[dict[str, Any], list[memoryview]]:
    """Return the state and the tensors' bytes; ``sizes`` are the tensors' sizes in bytes.

    Raises:
        SessionError: the sizes do not add up to the length of the data, because the ranks' plans differ.
    """
    view = memoryview(given)
    start = _HEADER_BYTES + int.from_bytes(view[:_HEADER_BYTES], "big")
    state: dict[str, Any] = json.loads(bytes(view[_HEADER_BYTES:start]))
    found = []
    for size in sizes:
        found.append(view[start : start + size])
        start += size
    if start != len(view):
        raise SessionError(f"a rank has handed over {len(view)} bytes, but {start} were expected")
    return state, found


class HandOver:
    """One rank's part in a hand-over: it gives its state, takes the states of others, or does neither."""

    def __init__(
        self,
        order: SaveOrder,
        rank: int,
        *,
        gives: bytes | None = None,
        awaits: Collection[int] = (),
        takes: Collection[int] = (),
    ) -> None:
        """Prepare the hand-over for the save of ``order``.

        The rank either gives the state ``gives``, or takes the states of the ranks in ``takes``. A giving
        rank is relieved once the takers, which are the ranks in ``awaits``, have sealed the state and left.
        """
        self.gives = gives
        self.taken: dict[int, bytes] = {}
        """The states taken so far, by the rank that gave them."""
        self.is_done = gives is None and not takes
        # A rewind that was called off has the same number as the drain that follows it, but a different
        # boundary.
        self._prefix = f"given/{order.number}/{order.step}"
        self._rank = rank
        self._awaits = awaits
        self._takes = takes
        self._has_given = False

    def advance(self, store: Store) -> bool:
        """Do all work that is possible without waiting; return whether the hand-over is done."""
        if self.gives is not None and not self._has_given:
            self._give(store, self.gives)
            self._has_given = True
        for rank in self._takes:
            if rank not in self.taken and store.check([key := self._key(rank)]):
                pieces = range(int(store.get(key)))
                self.taken[rank] = b"".join(store.get(f"{key}/{piece}") for piece in pieces)
        has_taken = len(self.taken) == len(self._takes)
        self.is_done = has_taken and all(store.check([f"parted/{rank}"]) for rank in self._awaits)
        return self.is_done

    def _give(self, store: Store, given: bytes) -> None:
        key = self._key(self._rank)
        starts = range(0, len(given), PIECE_BYTES)
        for piece, start in enumerate(starts):
            store.set(f"{key}/{piece}", given[start : start + PIECE_BYTES])
        store.set(key, str(len(starts)))

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/{rank}"
