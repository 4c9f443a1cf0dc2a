"""A rank's own state at a boundary, in pieces that another rank can keep and a save can store (P8).

The own state consists of the rank's random generators, its position in the data and, on rank 0, the models'
buffers, because checkpoints contain those of rank 0. Only JSON and tensors' bytes leave the process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from cloudspot.train.state.boundary_marks import Mark
from cloudspot.train.state.tree import Json, flatten, tensor_bytes

Name = tuple[str, ...]
"""The name of a piece: ``state`` or ``buffers``, followed by the keys that lead to the piece."""
_STATE, _BUFFERS = "state", "buffers"


class OwnState(NamedTuple):
    """Another rank's own state, in the form that a save accepts."""

    rank_state: Json
    mark: Mark
    """This rank's mark; if the other rank is rank 0, it has rank 0's buffers."""


def obstacle(mark: Mark, *, rank: int) -> str | None:
    """Return why this rank's own state at a boundary cannot be handed over, or None if it can."""
    if mark.description.loader_state is not None:
        return "its loader's position is read only when the state is saved"
    if rank == 0 and not all(each.copies_all for each in mark.layout.models.values()):
        return "it has buffers that are too large to be copied at each step"
    return None


def take(mark: Mark, *, rank: int) -> dict[Name, Any]:
    """Return this rank's pieces at a boundary: CPU tensors, and values that ``flatten`` accepts."""
    found: dict[Name, Any] = {}
    for key, value in mark.description.rank_state.items():
        is_plain = type(value) is dict and all(type(each) is str and each[:1] != "$" for each in value)
        if value and is_plain:
            found |= {(_STATE, key, each): piece for each, piece in value.items()}
        else:
            found[_STATE, key] = value
    if rank == 0:
        for name, model in mark.models.items():
            found |= {(_BUFFERS, name, str(i)): each.cpu() for i, each in enumerate(model.buffers)}
    return found


def encode(name: Name, piece: Any) -> bytes:
    """Return a piece as bytes."""
    if name[0] == _BUFFERS:
        return bytes(tensor_bytes(piece))
    return json.dumps(flatten("rank", piece, None)).encode()


def is_same(one: Any, two: Any) -> bool:
    """Return whether two pieces are equal; False if they cannot be compared."""
    if one is two:
        return True
    if isinstance(one, torch.Tensor):
        if not isinstance(two, torch.Tensor) or (one.dtype, one.shape) != (two.dtype, two.shape):
            return False
        return bool(tensor_bytes(one) == tensor_bytes(two))  # torch.equal treats 0.0 and -0.0 as equal
    if type(one) is not type(two):
        return False
    if type(one) is dict:
        return one.keys() == two.keys() and all(is_same(each, two[key]) for key, each in one.items())
    try:
        return bool(one == two)
    except (ValueError, RuntimeError):  # tensors or arrays in a sequence
        return len(one) == len(two) and all(map(is_same, one, two))


def rebuild(pieces: Mapping[Name, bytes], mark: Mark, *, rank: int) -> OwnState | None:
    """Return the own state of ``rank`` at the boundary that this rank has marked, or None if incomplete."""
    state: dict[str, Any] = {}
    models = dict(mark.models)
    try:
        for (kind, *path), data in pieces.items():
            if kind == _STATE:
                *outer, last = path
                inside = state.setdefault(outer[0], {}) if outer else state
                inside[last] = json.loads(data)
        for name, model in mark.models.items() if rank == 0 else ():
            given = [bytearray(pieces[_BUFFERS, name, str(i)]) for i in range(len(model.buffers))]
            pairs = zip(given, model.buffers, strict=True)
            found = [torch.frombuffer(data, dtype=each.dtype).reshape(each.shape) for data, each in pairs]
            models[name] = model._replace(buffers=found)
    except (LookupError, ValueError, TypeError, RuntimeError, RecursionError):
        return None
    is_whole = isinstance(state.get("random"), dict)
    return OwnState(state, replace(mark, models=models)) if is_whole else None
