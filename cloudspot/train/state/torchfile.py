"""Writes the state of a restored checkpoint to a file that ``torch.load`` can read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cloudspot.train.errors import CheckpointError
from cloudspot.train.state.checkpoint import Checkpoint
from cloudspot.train.state.tree import rebuild, tensor_bytes

_WRAPPER = "module."


def write_torch_file(directory: Path, path: Path, *, objects: Sequence[str], nested: bool) -> None:
    """Write the objects' state dicts to ``path``.

    Tensors stay in the pages of the checkpoint's files until ``torch.save`` writes them, so the state need
    not fit into memory, unless it was sharded. Tied weights stay tied. ``directory`` contains a restored and
    verified checkpoint. With ``nested``, the file contains a dict of the state dicts by object name;
    otherwise, it contains the state dict of the only object.

    Raises:
        CheckpointError: the checkpoint's tables or state are malformed.
        OSError: the file cannot be written.
    """
    checkpoint = Checkpoint(directory)
    tensors: dict[str, Any] = {}

    def item(name: Any, _keys: Any) -> Any:
        if name not in tensors:
            tensors[name] = _alone(checkpoint.item(name))
        return tensors[name]

    trees = checkpoint.shared.get("state")
    if not isinstance(trees, dict) or not set(objects) <= set(trees):
        found = ", ".join(trees) if isinstance(trees, dict) else "no objects"
        raise CheckpointError(f"the checkpoint holds {found}, not all of {', '.join(objects)}")
    state = {name: _unwrapped(rebuild(name, trees[name], item)) for name in objects}
    torch.save(state if nested else state[objects[0]], path)


def _alone(view: Any) -> Any:
    """Return the tensor with storage of its own size, because torch.save writes whole storages."""
    if view.numel() == 0:
        return view.clone()
    if view.untyped_storage().nbytes() == view.numel() * view.element_size():
        return view  # combined from shards, its storage already has its size
    return torch.frombuffer(tensor_bytes(view), dtype=view.dtype).view(view.shape)


def _unwrapped(state: Any) -> Any:
    if isinstance(state, dict) and state and all(str(name).startswith(_WRAPPER) for name in state):
        return {name[len(_WRAPPER) :]: value for name, value in state.items()}
    return state
