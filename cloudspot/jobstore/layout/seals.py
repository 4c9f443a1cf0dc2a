"""A seal: the trainer's description of one rank's part of a checkpoint, parsed and typed in one place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from cloudspot.decoding import NodeCount, OrdinalOrZero, Rank, Seconds, Tally, convert
from cloudspot.errors import CorruptData
from cloudspot.train.state.boxes import Box


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line in a seal: a tensor, or one rank's shard of it."""

    name: str
    dtype: str
    """torch's name, such as ``float32``."""
    shape: tuple[Tally, ...]
    offset: Tally
    """Bytes from the beginning of the part."""
    nbytes: Tally
    global_shape: tuple[Tally, ...] | None = None
    """Of the tensor that this is a shard of; None: it is a whole tensor."""
    global_offset: tuple[Tally, ...] | None = None
    """Where in that tensor the shard begins."""

    @property
    def is_shard(self) -> bool:
        """Return whether it is one rank's shard of a tensor."""
        return self.global_shape is not None or self.global_offset is not None

    @property
    def box(self) -> Box:
        """Return what of its tensor it is."""
        return Box((0,) * len(self.shape) if self.global_offset is None else self.global_offset, self.shape)


class Rescue(msgspec.Struct, frozen=True, kw_only=True):
    """A save of what the survivors held when others were lost (P8)."""

    cause: Literal["lost", "failed"]
    """``lost``: a machine was. ``failed``: all machines were there, and a process failed."""
    lost: tuple[Rank, ...]
    """The ranks that have saved nothing."""
    kept: tuple[Rank, ...] = ()
    """Those of them whose own state, as that of their random generators, others had and saved."""
    is_exact: bool
    """Whether what follows is equal to an undisturbed run all the same."""


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """What :mod:`cloudspot.train.handoff` says of a seal; typed, and otherwise not yet checked."""

    generation: OrdinalOrZero
    step: Tally
    round: OrdinalOrZero
    rank: Rank
    world_size: NodeCount
    relieved: tuple[Rank, ...] = ()
    """Ranks that bring no part: see ``Part``."""
    kind: str
    rescue: Rescue | None = None
    """None: all ranks took part."""
    slot: str
    nbytes: Tally
    plan: str
    items: tuple[Item, ...]
    cuts: tuple[Tally, ...] = ()
    """Offsets of items before which a chunk ends: where what is trained follows what is not, or the other way
    round, and around each large item that is not trained."""
    objects: Any = None
    rank_states: dict[str, Any]
    """The JSON state of this rank and of those that it has relieved, by rank."""
    stall_seconds: Seconds
    way: str = ""
    """How it was copied: see ``records.SaveCost``, which has the next two as well. Empty: an earlier version
    has written the seal."""
    copy_seconds: Seconds = 0.0
    lost_seconds: float | None = None
    boot: str = ""
    """The boot of the machine on which it was sealed; empty: an earlier version has written the seal."""
    sealed_monotonic: Seconds = 0.0
    """When it was sealed, by the monotonic clock that the processes of that boot share."""
    text: str
    """All of it, as the trainer wrote it."""


def parse_seal(data: str | bytes, what: str) -> Seal:
    """Return the seal in a seal file or a part's record; ``what`` names it in messages.

    Raises:
        CorruptData: it is not a seal.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        # Python's own reader, like the trainer's writer: a scheduler's state may hold infinity.
        seal: Seal = convert({**json.loads(text), "text": text}, Seal)
    except (ValueError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise CorruptData(f"{what} is malformed: {error}") from error
    return seal


def plan_digest(seals: Sequence[Seal]) -> str:
    """Return the digest of the table of all parts' items, as ``cloudspot.train.state.partition`` makes it."""
    table = [[seal.rank, msgspec.to_builtins(seal.items)] for seal in seals]
    text = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
