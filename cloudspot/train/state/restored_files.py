"""The files of a restored checkpoint: their tables, whose entries are all checked, and their tensors.

The bytes were verified already, or are verified when they are fetched.
:mod:`cloudspot.train.state.checkpoint` interprets them.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cloudspot.train.distributed import Store, World, open_store
from cloudspot.train.errors import CheckpointError
from cloudspot.train.handoff import (
    GENERATION,
    HANDOFF,
    ON_DEMAND,
    RESTORE_MANIFEST,
    SEAL_FORMAT,
    fetched_path,
    wanted_path,
    write_json,
)
from cloudspot.train.state import boxes
from cloudspot.train.state.boxes import Box
from cloudspot.train.state.tree import DTYPES

POLL_SECONDS = 0.01


class RestoredFiles:
    """The parts of a checkpoint as restored to a directory."""

    def __init__(self, directory: Path) -> None:
        """Open the directory and check every table in it.

        Raises:
            CheckpointError: a table is missing, malformed, or points outside its file.
        """
        self._directory = directory
        manifest = _read_manifest(directory)
        self.step = number(manifest, "step")
        self.world_size = number(manifest, "world_size")
        """The number of ranks that saved the checkpoint."""
        self._is_fetched_on_demand = manifest.get(ON_DEMAND) is True
        self.seals: dict[int, dict[str, Any]] = {}
        """The seals by rank. Each contains the states of its own rank and of the ranks that this rank has
        relieved."""
        self.tensors: dict[str, StoredTensor] = {}
        """The tensors, by their names in the checkpoint."""
        parts = manifest.get("parts")
        if not isinstance(parts, list):
            raise CheckpointError(f"{RESTORE_MANIFEST} does not list the parts")
        for part in parts:
            self._open_part(part)
        states = [rank for seal in self.seals.values() for rank in json_object(seal, "rank_states")]
        self.rescue = next((seal.get("rescue") for seal in self.seals.values()), None)
        """The seals' description of the rescue; None if the checkpoint was not saved in one."""
        rescue = {} if self.rescue is None else json_object({"rescue": self.rescue}, "rescue")
        lost = [rank for rank in rescue.get("lost") or [] if rank not in (rescue.get("kept") or [])]
        there = sorted(str(rank) for rank in range(self.world_size) if rank not in lost)
        if len(parts) != len(self.seals) or sorted(states) != there:
            raise CheckpointError(f"{RESTORE_MANIFEST} does not list the state of each rank exactly once")
        if len({seal.get("plan") for seal in self.seals.values()}) != 1:
            raise CheckpointError("the parts come from different plans")
        for name, stored in self.tensors.items():
            problem = boxes.problem(list(stored.pieces), stored.shape) if stored.is_dtensor else None
            if problem is not None:
                raise CheckpointError(f"the checkpoint's {name} has {problem}")

    def fetch(self, regions: Sequence[tuple[StoredTensor, Box]], *, world: World) -> None:
        """Make sure that the files contain these boxes of tensors; call this once, before any box is read.

        If the checkpoint is fetched on demand, this waits until the agents have fetched the boxes of all
        ranks: a rank that continued sooner would wait for the others in its first collective, which has a
        time limit.

        Raises:
            CheckpointError: the checkpoint is fetched on demand, but there is no agent.
        """
        if not self._is_fetched_on_demand:
            return
        handoff = os.environ.get(HANDOFF)
        if handoff is None:
            raise CheckpointError(f"{self._directory} has to be fetched on demand, but there is no agent")
        pieces = [piece for stored, box in regions for piece, _, _ in stored.pieces_in(box)]
        ranges: dict[str, set[tuple[int, int]]] = {}
        for piece in pieces:
            if piece.end > piece.start:
                ranges.setdefault(piece.file, set()).add((piece.start, piece.end))
        nonce = secrets.token_hex(8)
        wanted = {"nonce": nonce, "ranges": {file: sorted(found) for file, found in sorted(ranges.items())}}
        write_json(wanted_path(Path(handoff), world.rank), wanted)
        answer = fetched_path(Path(handoff), world.rank)
        # An older answer may be for other boxes, requested by an earlier process of this rank.
        while not answer.exists() or answer.read_text(encoding="ascii") != nonce:
            time.sleep(POLL_SECONDS)
        for piece in pieces:
            piece.is_here = True
        if world.world_size > 1:
            store, _kept = open_store(world)
            await_all(store, world)

    def _open_part(self, part: Any) -> None:
        if not isinstance(part, dict) or not isinstance(part.get("file"), str):
            raise CheckpointError(f"{RESTORE_MANIFEST} names a part without a file")
        name, seal = part["file"], json_object(part, "seal")
        if Path(name).name != name or name in {"", ".", ".."}:
            raise CheckpointError(f"{RESTORE_MANIFEST} names {name!r}, which is not a plain file name")
        if seal.get("format") != SEAL_FORMAT:
            raise CheckpointError(
                f"{name} has format {seal.get('format')!r}; this cloudspot reads format {SEAL_FORMAT}"
            )
        rank, nbytes = number(part, "rank"), number(seal, "nbytes")
        if number(seal, "step") != self.step or number(seal, "rank") != rank:
            raise CheckpointError(f"{name} belongs to another checkpoint or rank")
        self.seals[rank] = seal
        items = seal.get("items")
        if not isinstance(items, list):
            raise CheckpointError(f"{name} has no table of items")
        data = self._map(name, nbytes)
        for item in items:
            self._add_item(name, item, data, nbytes)

    def _map(self, name: str, nbytes: int) -> Any:
        try:
            with (self._directory / name).open("rb") as file:
                size = file.seek(0, 2)
                if size < nbytes:
                    raise CheckpointError(f"{name} has {size} bytes; its seal says {nbytes}")
                if nbytes == 0:
                    return torch.empty(0, dtype=torch.uint8)
                # The mapping is copy-on-write only because torch warns about read-only memory.
                return torch.frombuffer(
                    mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_COPY), dtype=torch.uint8
                )
        except OSError as error:
            raise CheckpointError(f"{name} of the restored checkpoint cannot be read: {error}") from error

    def _add_item(self, file: str, item: Any, data: Any, nbytes: int) -> None:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise CheckpointError(f"{file} lists an item without a name")
        name, dtype, shape = item["name"], DTYPES.get(str(item.get("dtype"))), item.get("shape")
        if dtype is None or not isinstance(shape, list):
            raise CheckpointError(
                f"{file}: {name} has an impossible type or shape: {item.get('dtype')!r}, {shape!r}"
            )
        count = 1
        for length in shape:
            count *= checked(f"{name}: a length of its shape", length)
        offset, size = number(item, "offset"), number(item, "nbytes")
        itemsize = torch.empty(0, dtype=dtype).element_size()
        if size != count * itemsize or offset % itemsize or offset + size > nbytes:
            raise CheckpointError(
                f"{file}: {name} of type {item['dtype']} and shape {shape} cannot lie at bytes {offset} to"
                f" {offset + size} of {nbytes}"
            )
        view = data[offset : offset + size].view(dtype).view(shape)
        global_shape, start = item.get("global_shape"), item.get("global_offset")
        is_dtensor = global_shape is not None or start is not None
        whole_shape = _lengths(name, global_shape) if is_dtensor else tuple(shape)
        box = Box(_lengths(name, start), tuple(shape)) if is_dtensor else boxes.whole(whole_shape)
        stored = self.tensors.setdefault(name, StoredTensor(dtype, whole_shape, is_dtensor=is_dtensor))
        if (dtype, whole_shape, is_dtensor) != (stored.dtype, stored.shape, stored.is_dtensor):
            raise CheckpointError(f"the checkpoint's shards of {name} do not belong to the same tensor")
        if box in stored.pieces:
            raise CheckpointError(f"the checkpoint holds {name} twice")
        stored.pieces[box] = Piece(view, file, offset, offset + size, is_here=not self._is_fetched_on_demand)


@dataclass(eq=False)
class Piece:
    """The bytes of one box of a tensor, in one file."""

    data: Any
    """A view of the file, which must not be read unless ``is_here``."""
    file: str
    start: int
    """The offset in bytes at which the piece begins in the file."""
    end: int
    is_here: bool


class StoredTensor:
    """A tensor in the checkpoint's files."""

    def __init__(self, dtype: Any, shape: tuple[int, ...], *, is_dtensor: bool) -> None:
        """Describe a tensor that has no pieces yet."""
        self.dtype = dtype
        self.shape = shape
        self.is_dtensor = is_dtensor
        """Whether the tensor was saved as a DTensor, even if it has only one piece."""
        self.pieces: dict[Box, Piece] = {}
        """The pieces that make up the tensor, by their boxes."""

    @property
    def divided(self) -> set[int]:
        """The dimensions along which the tensor is divided into pieces."""
        return {dim for piece in self.pieces for dim, n in enumerate(piece.shape) if n != self.shape[dim]}

    def pieces_in(self, box: Box) -> Iterator[tuple[Piece, Box, Box]]:
        """Yield each piece that has elements in a box, with the piece's box and the overlap of both."""
        if box in self.pieces:
            yield self.pieces[box], box, box
            return
        for place, piece in self.pieces.items():
            common = boxes.overlap(box, place)
            if common is not None:
                yield piece, place, common

    def view(self, box: Box) -> Any:
        """Return the view of a box in its file if one piece contains the whole box, otherwise None.

        The view must not be read before the box is fetched: see ``RestoredFiles.fetch``.
        """
        found = list(self.pieces_in(box))
        if len(found) != 1:
            return None
        [(piece, place, common)] = found
        return piece.data if place == box else _narrow(piece.data, common, place)

    def copy_into(self, box: Box, target: Any) -> None:
        """Copy the elements in a box to a tensor of the box's shape.

        Raises:
            CheckpointError: a part of the box was not fetched.
        """
        for piece, place, common in self.pieces_in(box):
            if not piece.is_here:
                raise CheckpointError(
                    f"bytes {piece.start} to {piece.end} of {piece.file} are needed, but were not fetched"
                )
            _narrow(target, common, box).copy_(_narrow(piece.data, common, place))

    def read(self, box: Box) -> Any:
        """Return the elements in a box, as a view if one piece contains the whole box.

        Raises:
            CheckpointError: a part of the box was not fetched.
        """
        view = self.view(box)
        if view is not None and all(piece.is_here for piece, _, _ in self.pieces_in(box)):
            return view
        target = torch.empty(box.shape, dtype=self.dtype, device="cpu")
        self.copy_into(box, target)
        return target


def await_all(store: Store, world: World) -> None:
    """Return once every rank of this generation has called this function."""
    generation = os.environ.get(GENERATION, "")
    keys = [f"fetched/{generation}/{rank}" for rank in range(world.world_size)]
    store.set(keys[world.rank], "1")
    while not store.check(keys):
        time.sleep(POLL_SECONDS)


def _narrow(tensor: Any, box: Box, outer: Box) -> Any:
    """Return a view of a box, taken from a tensor that covers the box ``outer``."""
    for dim, (start, length) in enumerate(zip(box.offset, box.shape, strict=True)):
        tensor = tensor.narrow(dim, start - outer.offset[dim], length)
    return tensor


def json_object(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a member, which must be a JSON object."""
    value = parent.get(key)
    if not isinstance(value, dict):
        raise CheckpointError(f"the checkpoint's {key!r} is not a JSON object")
    return value


def number(parent: Mapping[str, Any], key: str, *, limit: int = 2**62) -> int:
    """Return a member, which must be an integer from 0 to ``limit`` (exclusive)."""
    return checked(f"the checkpoint's {key!r}", parent.get(key), limit=limit)


def checked(what: str, value: Any, *, limit: int = 2**62) -> int:
    """Return a value, which must be an integer from 0 to ``limit`` (exclusive); ``what`` is its name."""
    if type(value) is not int or not 0 <= value < limit:
        raise CheckpointError(f"{what} is {value!r}, but must be an integer from 0 to below {limit}")
    return value


def _read_manifest(directory: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((directory / RESTORE_MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{directory / RESTORE_MANIFEST} cannot be read: {error}") from error
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{directory / RESTORE_MANIFEST} is not a JSON object")
    return manifest


def _lengths(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise CheckpointError(f"{name}: a shard's global_shape or global_offset is {value!r}, not a list")
    return tuple(checked(f"{name}: a number in a shard's position", each) for each in value)
