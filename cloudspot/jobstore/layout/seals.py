"""A seal is the trainer's description of one rank's part of a checkpoint; this module parses and types it."""

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
    """An entry of a seal: a tensor, or one rank's shard of a tensor."""

    name: str
    dtype: str
    """torch's name of the dtype, such as ``float32``."""
    shape: tuple[Tally, ...]
    offset: Tally
    """The offset in the part, in bytes."""
    nbytes: Tally
    global_shape: tuple[Tally, ...] | None = None
    """The shape of the whole tensor if this is a shard; None for a whole tensor."""
    global_offset: tuple[Tally, ...] | None = None
    """The position of the shard in that tensor."""

    @property
    def is_shard(self) -> bool:
        """Whether the item is one rank's shard of a tensor."""
        return self.global_shape is not None or self.global_offset is not None

    @property
    def box(self) -> Box:
        """The box that the item covers in its tensor."""
        return Box((0,) * len(self.shape) if self.global_offset is None else self.global_offset, self.shape)


class Rescue(msgspec.Struct, frozen=True, kw_only=True):
    """A save of the survivors' state after other ranks were lost (P8)."""

    cause: Literal["lost", "failed"]
    """``lost``: a machine was lost. ``failed``: a process failed while all machines were there."""
    lost: tuple[Rank, ...]
    """The ranks that have saved nothing."""
    kept: tuple[Rank, ...] = ()
    """The lost ranks whose private state, such as that of random generators, other ranks had and saved."""
    is_exact: bool
    """Whether the continued training still equals an undisturbed one."""


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """A seal as described in :mod:`cloudspot.train.handoff`; typed, but not checked otherwise."""

    generation: OrdinalOrZero
    step: Tally
    round: OrdinalOrZero
    rank: Rank
    world_size: NodeCount
    relieved: tuple[Rank, ...] = ()
    """The ranks without a part; see ``Part``."""
    kind: str
    rescue: Rescue | None = None
    """The rescue, or None if all ranks took part in the save."""
    slot: str
    nbytes: Tally
    plan: str
    items: tuple[Item, ...]
    cuts: tuple[Tally, ...] = ()
    """Offsets of items before which a chunk ends: at each boundary between trained and untrained items, and
    around each large untrained item."""
    objects: Any = None
    rank_states: dict[str, Any]
    """The JSON state of this rank and of the ranks that it has relieved, by rank."""
    stall_seconds: Seconds
    way: str = ""
    """How the part was copied, as in ``records.SaveCost``, which also explains the next two fields. The field
    is empty if an earlier version wrote the seal.
    """
    copy_seconds: Seconds = 0.0
    lost_seconds: float | None = None
    boot: str = ""
    """The boot of the machine on which the part was sealed; empty if an earlier version wrote the seal."""
    sealed_monotonic: Seconds = 0.0
    """The time of the seal, by the monotonic clock that all processes of that boot share."""
    text: str
    """The complete text of the seal, as the trainer wrote it."""


def parse_seal(data: str | bytes, what: str) -> Seal:
    """Return the seal in a seal file or a part's record; ``what`` names the source in messages.

    Raises:
        CorruptData: the data is not a seal.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        # Use Python's JSON decoder, as the trainer uses its encoder: a scheduler's state may contain
        # infinity.
        seal: Seal = convert({**json.loads(text), "text": text}, Seal)
    except (ValueError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise CorruptData(f"{what} is malformed: {error}") from error
    return seal


def plan_digest(seals: Sequence[Seal]) -> str:
    """Return the digest of the table of all parts' items, as in ``cloudspot.train.state.partition``."""
    table = [[seal.rank, msgspec.to_builtins(seal.items)] for seal in seals]
    text = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
