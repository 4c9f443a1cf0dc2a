"""Find the tensors of a session's checkpoint: their names and the positions of their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cloudspot.errors import CloudspotError, CorruptData
from cloudspot.jobstore.layout.records import Manifest
from cloudspot.jobstore.layout.seals import Item
from cloudspot.train.state.boxes import Box

WRAPPER = "module."
"""The prefix that DistributedDataParallel adds to every name if a script saves the wrapper's own state."""


@dataclass(frozen=True)
class Piece:
    """The position of the bytes of one box of a tensor."""

    box: Box
    rank: int
    """The rank whose part holds the bytes."""
    offset: int
    """The offset in the part, in bytes."""
    nbytes: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint."""

    name: str
    """The tensor's name in the export."""
    dtype: str
    """torch's name of the dtype, such as ``float32``."""
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    """The pieces of the tensor; several if it was sharded."""

    @property
    def nbytes(self) -> int:
        """The total bytes of all pieces."""
        return sum(piece.nbytes for piece in self.pieces)


@dataclass(frozen=True)
class Selection:
    """The part of a checkpoint to export."""

    objects: tuple[str, ...]
    """The names of the exported tracked objects."""
    tensors: tuple[StoredTensor, ...]
    """The tensors; tied weights appear once under each name, with the same bytes."""
    left_out: tuple[str, ...]
    """The entries of the objects' states that are not tensors, or that contain such values."""


def shared_state(manifest: Manifest) -> dict[str, Any]:
    """Return the JSON state that all ranks of a session's checkpoint share: object trees and position.

    Raises:
        CorruptData: the seal lacks state that every session writes.
    """
    seals = [part.parsed_seal for part in manifest.parts]
    shared = min(seals, key=lambda seal: min(map(int, seal.rank_states))).objects  # as a resume does
    if not isinstance(shared, dict) or not isinstance(shared.get("state"), dict):
        raise CorruptData(f"checkpoint {manifest.id}: its seal holds no state of objects")
    models = shared.get("models")
    if not isinstance(models, list) or not all(name in shared["state"] for name in models):
        raise CorruptData(f"checkpoint {manifest.id}: its seal names models that are not in the checkpoint")
    return shared


def choose(manifest: Manifest, *, only: str | None = None, whole: bool = False) -> Selection:
    """Return the tensors of the models, under the names in their own ``state_dict``.

    ``manifest`` is a result of ``read_manifest``. With several models, each name begins with the object's
    name and a dot. ``only`` selects one object, a model or not; ``whole`` selects every tensor. Names of
    nested values are paths such as ``optimizer/state/0/exp_avg``.

    Raises:
        CloudspotError: no tracked object has that name, or none of the objects is a model.
        CorruptData: the seals contradict themselves.
    """
    shared = shared_state(manifest)
    items = _items(manifest)
    state: dict[str, Any] = shared["state"]
    if whole:
        tensors = tuple(_stored(name, pieces) for name, pieces in items.items())
        return Selection(tuple(state), tensors, ())
    objects = _objects(manifest, state, shared["models"], only)
    chosen: list[StoredTensor] = []
    left_out: list[str] = []
    for name in objects:
        prefix = f"{name}." if len(objects) > 1 else ""
        leaves = list(_leaves("", state[name]))
        cut = len(WRAPPER) if all(path.startswith(WRAPPER) for path, _ in leaves) else 0
        for path, item in leaves:
            if item is None:
                left_out.append(prefix + path[cut:].partition("/")[0])
            elif item in items:
                chosen.append(_stored(prefix + path[cut:], items[item]))
            else:
                raise CorruptData(
                    f"checkpoint {manifest.id}: {name} names tensor {item!r}, which is not in the checkpoint"
                )
    return Selection(objects, tuple(chosen), tuple(dict.fromkeys(left_out)))


def _objects(
    manifest: Manifest, state: dict[str, Any], models: Sequence[str], only: str | None
) -> tuple[str, ...]:
    names = ", ".join(state)
    if only is not None:
        if only not in state:
            raise CloudspotError(f"checkpoint {manifest.id} holds no object {only!r}; it holds: {names}")
        return (only,)
    if not models:
        raise CloudspotError(
            f"none of the objects in checkpoint {manifest.id} is a model; export one of them with --only, "
            f"or the whole state with --all; the objects are: {names or 'none'}"
        )
    return tuple(models)


def _items(manifest: Manifest) -> dict[str, list[tuple[int, Item]]]:
    items: dict[str, list[tuple[int, Item]]] = {}
    for part in manifest.parts:
        for item in part.parsed_seal.items:
            items.setdefault(item.name, []).append((part.rank, item))
    return items


def _stored(name: str, places: Sequence[tuple[int, Item]]) -> StoredTensor:
    _, first = places[0]
    shape = first.shape if first.global_shape is None else first.global_shape
    pieces = tuple(Piece(item.box, rank, item.offset, item.nbytes) for rank, item in places)
    return StoredTensor(name, first.dtype, shape, pieces)


def _leaves(path: str, tree: Any) -> Iterator[tuple[str, str | None]]:
    """Yield each value's path and its item, or None for other values; see ``cloudspot.train.state.tree``."""
    children: Iterator[tuple[Any, Any]]
    if isinstance(tree, list):
        children = enumerate(tree)
    elif not isinstance(tree, dict):
        yield path, None
        return
    elif tree.keys() == {"$item"}:
        yield path, tree["$item"]
        return
    elif tree.keys() == {"$dict"}:
        children = iter(tree["$dict"])
    elif tree.keys() == {"$tuple"}:
        children = enumerate(tree["$tuple"])
    elif len(tree) == 1 and next(iter(tree)).startswith("$"):
        yield path, None
        return
    else:
        children = iter(tree.items())
    for key, value in children:
        yield from _leaves(f"{path}/{key}" if path else str(key), value)


def num_elements(tensor: StoredTensor) -> int:
    """Return the number of elements of the tensor: 1 if it has no dimensions."""
    return math.prod(tensor.shape)
