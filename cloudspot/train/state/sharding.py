"""DTensors: which rank holds which box of a tensor, and how boxes of a checkpoint are loaded into it.

No function here is a collective. Every rank knows a tensor's mesh and placements, which determine all its
boxes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Mapping
from typing import Any

import torch

from cloudspot.train.errors import SessionError
from cloudspot.train.state import boxes
from cloudspot.train.state.boxes import Box, Split
from cloudspot.train.state.partition import Shard


def is_dtensor(value: Any) -> bool:
    """Return whether the value is a DTensor, sharded or not."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local_of(tensor: Any) -> Any:
    """Return this rank's live local tensor of a DTensor."""
    with torch.no_grad():
        return tensor.to_local()


def describe(path: str, tensor: Any) -> tuple[tuple[Shard, ...], Any]:
    """Return a DTensor's boxes with the ranks that hold them, and the live tensor of this rank's box.

    There is one box if every rank holds the whole tensor, and none if the tensor has no elements.

    Raises:
        SessionError: the DTensor's mesh contains only some of the ranks, or boxes cannot describe its
            placements; the message names ``path``.
    """
    shape, local = tuple(tensor.shape), local_of(tensor)
    try:
        box, shards = _held(shape, tensor.device_mesh, tensor.placements)
    except ValueError as error:
        raise SessionError(f"{path} is a DTensor that cannot be saved: {error}") from error
    if tensor.numel() == 0:
        return (), local.new_empty(shape)
    # FSDP does not keep the other dimensions of a shard that has no elements.
    if tuple(local.shape) != box.shape and (local.numel() or box.num_elements):
        raise SessionError(
            f"{path} is a DTensor that cannot be saved: this rank should hold a shard {list(box.shape)} of"
            f" {list(shape)}, but holds {list(local.shape)}"
        )
    return shards, local


def box_of(tensor: Any) -> Box:
    """Return the box of a DTensor that this rank holds.

    Raises:
        SessionError: for the same reasons as in ``describe``.
    """
    try:
        box, _ = _held(tuple(tensor.shape), tensor.device_mesh, tensor.placements)
    except ValueError as error:
        raise SessionError(f"a DTensor cannot be loaded: {error}") from error
    return box


def empty(shape: tuple[int, ...], dtype: Any, *, like: Any, divided: Collection[int]) -> Any:
    """Return a DTensor without values, with the same placement as ``like``.

    If its shape differs from that of ``like``, a dimension is divided only if it is in ``divided`` and has
    the same length in both shapes.
    """
    if shape == tuple(like.shape):
        return torch.empty_like(like, dtype=dtype, requires_grad=False)
    from torch.distributed.tensor import DTensor, Replicate

    placements = [
        each
        if not _is_replicated(each) and each.dim in divided and shape[each.dim] == like.shape[each.dim]
        else Replicate()
        for each in like.placements
    ]
    box, _ = _held(shape, like.device_mesh, tuple(placements))
    local = torch.empty(box.shape, dtype=dtype, device=local_of(like).device)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        local, like.device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
    )


def tied(module: Any) -> dict[str, str]:
    """If a module's sharded parameter has several names, map each of these to a common name.

    Addresses cannot identify a parameter, because the empty shards of all tensors have the same address.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if is_dtensor(parameter):
            names.setdefault(id(parameter), []).append(name)
    return {name: several[0] for several in names.values() if len(several) > 1 for name in several}


def own_statistics(module: Any) -> list[str]:
    """Return the names of the layers in a sharded module whose statistics differ between ranks."""
    if not any(map(is_dtensor, module.parameters())):
        return []
    return [
        name
        for name, each in module.named_modules()
        if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)  # noqa: SLF001 - their base has no public name
        and not isinstance(each, torch.nn.SyncBatchNorm)
        and each.track_running_stats
    ]


def fsdp_modules(module: Any) -> list[Any]:
    """Return the submodules of a module, including itself, on which ``fully_shard`` was called."""
    return [each for each in module.modules() if hasattr(each, "_get_fsdp_state")]


def has_unreduced_gradients(fsdp_module: Any) -> bool:
    """Return whether any of ``fsdp_modules`` has gradients that FSDP has not reduced yet.

    Such gradients are not in ``.grad``: with ``set_requires_gradient_sync(False)``, FSDP accumulates them
    elsewhere.
    """
    state = fsdp_module._get_fsdp_state()  # noqa: SLF001 - FSDP has no public way to these gradients
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # torch < 2.10
        groups = [state._fsdp_param_group] if state._fsdp_param_group else []  # noqa: SLF001
    return any(
        getattr(group, "_partial_reduce_output", None) is not None
        or any(
            each.unsharded_accumulated_grad is not None
            or getattr(getattr(each, "_unsharded_param", None), "grad", None) is not None
            for each in group.fsdp_params
        )
        for group in groups
    )


@functools.lru_cache(maxsize=4096)
def _held(shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]) -> tuple[Box, tuple[Shard, ...]]:
    """Return this rank's box, and all boxes. The result is cached for tensors of the same layout."""
    splits = [_split(each, len(shape)) for each in placements]
    mesh_shape = tuple(mesh.mesh.shape)
    holders: dict[Box, list[int]] = {}
    mine = None
    for rank, place in sorted(_places(mesh).items()):
        box = boxes.held(shape, mesh_shape, splits, place)
        if rank == torch.distributed.get_rank():
            mine = box
        if box.num_elements:
            holders.setdefault(box, []).append(rank)
    assert mine is not None, "this rank is in the mesh"
    return mine, tuple(Shard(box, tuple(ranks)) for box, ranks in sorted(holders.items()))


def _places(mesh: Any) -> Mapping[int, tuple[int, ...]]:
    places = boxes.places(_root_of(mesh).mesh.tolist(), mesh.mesh.tolist())
    world_size = torch.distributed.get_world_size()
    if set(places) != set(range(world_size)):
        raise ValueError(
            f"its device mesh has only {len(places)} of {world_size} ranks; make it a slice of a mesh of "
            "all ranks"
        )
    return places


def _root_of(mesh: Any) -> Any:
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()  # noqa: SLF001 - torch has no public name for it
    from torch.distributed.device_mesh import _mesh_resources  # torch < 2.9

    return _mesh_resources.get_root_mesh(mesh)


def _split(placement: Any, num_dims: int) -> Split | None:
    if _is_replicated(placement):
        return None
    kind = type(placement).__name__
    if kind not in {"Shard", "_StridedShard"} or not 0 <= placement.dim < num_dims:
        raise ValueError(f"its placement {placement!r} is not supported")
    return Split(placement.dim, getattr(placement, "split_factor", 1))


def _is_replicated(placement: Any) -> bool:
    return type(placement).__name__ == "Replicate"
