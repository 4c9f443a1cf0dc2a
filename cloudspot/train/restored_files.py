"""The files of a restored checkpoint: their tables, of which each entry is checked, and the tensors in them.

The bytes are verified already. What they mean is :mod:`cloudspot.train.checkpoint`'s.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cloudspot.train import boxes
from cloudspot.train.boxes import Box
from cloudspot.train.errors import CheckpointError
from cloudspot.train.handoff import RESTORE_MANIFEST, SEAL_FORMAT
from cloudspot.train.tree import DTYPES


class RestoredFiles:
    """The parts of a checkpoint, as they were restored to a directory."""

    def __init__(self, directory: Path) -> None:
        """Open the directory and check every table in it.

        Raises:
            CheckpointError: something is missing, malformed, or points outside its file.
        """
        self._directory = directory
        manifest = _read_manifest(directory)
        self.step = number(manifest, "step")
        self.world_size = number(manifest, "world_size")
        """How many ranks saved."""
        self.seals: dict[int, dict[str, Any]] = {}
        """By rank; each holds the states of its own rank and of those that it has relieved, by rank."""
        self.tensors: dict[str, StoredTensor] = {}
        """By their names in the checkpoint."""
        parts = manifest.get("parts")
        if not isinstance(parts, list):
            raise CheckpointError(f"{RESTORE_MANIFEST} does not list the parts")
        for part in parts:
            self._open_part(part)
        states = [rank for seal in self.seals.values() for rank in json_object(seal, "rank_states")]
        if len(parts) != len(self.seals) or sorted(states) != sorted(map(str, range(self.world_size))):
            raise CheckpointError(f"{RESTORE_MANIFEST} does not list the state of each rank once")
        if len({seal.get("plan") for seal in self.seals.values()}) != 1:
            raise CheckpointError("the parts come from different plans")
        for name, stored in self.tensors.items():
            problem = boxes.problem(list(stored.pieces), stored.shape) if stored.is_dtensor else None
            if problem is not None:
                raise CheckpointError(f"the checkpoint's {name} has {problem}")

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
                # Copy-on-write, because torch warns of read-only memory; nobody writes to it.
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
            raise CheckpointError(f"{file}: {name} has type {item.get('dtype')!r} and shape {shape!r}")
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
            raise CheckpointError(f"the checkpoint's shards of {name} are not of one tensor")
        if box in stored.pieces:
            raise CheckpointError(f"the checkpoint holds {name} twice")
        stored.pieces[box] = view


class StoredTensor:
    """A tensor in the checkpoint's files."""

    def __init__(self, dtype: Any, shape: tuple[int, ...], *, is_dtensor: bool) -> None:
        """Describe a tensor, of which no piece is known yet."""
        self.dtype = dtype
        self.shape = shape
        self.is_dtensor = is_dtensor
        """Whether it was a DTensor; one piece may be all of it."""
        self.pieces: dict[Box, Any] = {}
        """Views of the files; they make up the tensor."""

    @property
    def divided(self) -> set[int]:
        """The dimensions along which it is divided into pieces."""
        return {dim for piece in self.pieces for dim, n in enumerate(piece.shape) if n != self.shape[dim]}

    def copy(self) -> Any:
        """Return all of it, in memory of its own."""
        found = self.read(boxes.whole(self.shape))
        return found.clone() if len(self.pieces) == 1 else found

    def read(self, box: Box) -> Any:
        """Return what lies in a box, which has elements: a view, if one piece holds all of it."""
        if box in self.pieces:
            return self.pieces[box]
        found = [(piece, each) for piece in self.pieces if (each := boxes.overlap(box, piece)) is not None]
        if len(found) == 1:
            piece, common = found[0]
            return _narrow(self.pieces[piece], common, piece)
        target = torch.empty(box.shape, dtype=self.dtype)
        for piece, common in found:
            _narrow(target, common, box).copy_(_narrow(self.pieces[piece], common, piece))
        return target


def _narrow(tensor: Any, box: Box, outer: Box) -> Any:
    """Return the view of a box in a tensor that is itself the box ``outer``."""
    for dim, (start, length) in enumerate(zip(box.offset, box.shape, strict=True)):
        tensor = tensor.narrow(dim, start - outer.offset[dim], length)
    return tensor


def json_object(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a member that must be a JSON object."""
    value = parent.get(key)
    if not isinstance(value, dict):
        raise CheckpointError(f"the checkpoint's {key!r} is not a JSON object")
    return value


def number(parent: Mapping[str, Any], key: str, *, limit: int = 2**62) -> int:
    """Return a member that must be an integer from 0 to ``limit``, exclusive."""
    return checked(f"the checkpoint's {key!r}", parent.get(key), limit=limit)


def checked(what: str, value: Any, *, limit: int = 2**62) -> int:
    """Return a value that must be an integer from 0 to ``limit``, exclusive; ``what`` is its name."""
    if type(value) is not int or not 0 <= value < limit:
        raise CheckpointError(f"{what} must be an integer >= 0: got {value!r}")
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
        raise CheckpointError(f"{name}: a shard needs a global_shape and a global_offset")
    return tuple(checked(f"{name}: the place of a shard", each) for each in value)
