"""Boxes: the regions of a tensor that ranks hold. This needs no torch, as the agent checks boxes too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Box(NamedTuple):
    """A region of a tensor: a range in each dimension."""

    offset: tuple[int, ...]
    """The index at which the box begins, in each dimension."""
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Return the number of elements in the box; 1 if it has no dimensions."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Split:
    """Along a mesh dimension, a tensor dimension is divided into equal chunks, as ``torch.chunk`` does."""

    dim: int
    factor: int = 1
    """The number of chunks into which mesh dimensions further right have already divided this dimension."""


def whole(shape: Sequence[int]) -> Box:
    """Return the box that covers the whole tensor."""
    return Box((0,) * len(shape), tuple(shape))


def held(
    shape: Sequence[int], mesh_shape: Sequence[int], splits: Sequence[Split | None], place: Sequence[int]
) -> Box:
    """Return the box that a rank holds; it has no elements if there are too few for all chunks.

    ``splits`` describes how each mesh dimension divides the tensor; None means that it is replicated.
    ``place`` is the rank's coordinate in the mesh.

    Raises:
        ValueError: a tensor dimension is divided in an order that a box cannot describe.
    """
    offset, lengths = [0] * len(shape), list(shape)
    for mesh_dim, dim in _order(mesh_shape, splits):
        size = -(-lengths[dim] // mesh_shape[mesh_dim])
        start = min(size * place[mesh_dim], lengths[dim])
        offset[dim] += start
        lengths[dim] = min(size, lengths[dim] - start)
    return Box(tuple(offset), tuple(lengths))


def _order(mesh_shape: Sequence[int], splits: Sequence[Split | None]) -> Iterator[tuple[int, int]]:
    """Yield pairs of a mesh dimension and a tensor dimension, in the order in which the tensor is divided.

    Dimensions are divided from left to right, with one exception, which the factor shows: FSDP divides a
    dimension only after tensor parallelism has, although tensor parallelism is further right in the mesh.
    """
    waiting: dict[int, list[int]] = {}
    for mesh_dim, split in enumerate(splits):
        if split is None:
            continue
        if split.factor > 1:
            waiting.setdefault(split.dim, []).append(mesh_dim)
            continue
        yield mesh_dim, split.dim
        num_chunks = mesh_shape[mesh_dim]
        for earlier in reversed(waiting.pop(split.dim, [])):
            factor = getattr(splits[earlier], "factor", 1)
            if factor != num_chunks:
                raise ValueError(
                    f"dimension {split.dim} has {num_chunks} chunks when it is divided again, but its split "
                    f"factor is {factor}"
                )
            num_chunks *= mesh_shape[earlier]
            yield earlier, split.dim
    if waiting:
        raise ValueError(
            f"dimension {next(iter(waiting))} is divided in strides, but never again further right in the "
            "mesh"
        )


def places(root: Sequence[Any], mesh: Sequence[Any]) -> dict[int, tuple[int, ...]]:
    """Return, for each rank of ``root``, the rank's coordinate in its copy of ``mesh``.

    Both are given as nested lists of ranks. ``mesh`` is along some dimensions of ``root``: sliced, flattened
    or reordered. For each coordinate in the other dimensions, there is a copy of ``mesh`` with other ranks.

    Raises:
        ValueError: ``mesh`` is not along dimensions of ``root``.
    """
    in_root, in_mesh = dict(_coordinates(root)), dict(_coordinates(mesh))
    if extra := in_mesh.keys() - in_root.keys():
        raise ValueError(f"its mesh has ranks that the root mesh lacks: {sorted(extra)}")
    found = [in_root[rank] for rank in in_mesh]
    varying = [dim for dim in range(len(found[0])) if len({coordinate[dim] for coordinate in found}) > 1]
    by_part = {tuple(in_root[rank][dim] for dim in varying): place for rank, place in in_mesh.items()}
    try:
        return {
            rank: by_part[tuple(coordinate[dim] for dim in varying)] for rank, coordinate in in_root.items()
        }
    except KeyError:
        raise ValueError("its mesh is not a slice of the root mesh") from None


def _coordinates(nested: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    if isinstance(nested, int):
        yield nested, ()
        return
    for index, each in enumerate(nested):
        for rank, coordinate in _coordinates(each):
            yield rank, (index, *coordinate)


def overlap(one: Box, other: Box) -> Box | None:
    """Return the overlap of two boxes of a tensor, or None if the overlap has no elements."""
    offset = tuple(map(max, one.offset, other.offset))
    ends = (min(a + n, b + m) for a, n, b, m in zip(*one, *other, strict=True))
    shape = tuple(end - start for start, end in zip(offset, ends, strict=True))
    return None if any(length <= 0 for length in shape) else Box(offset, shape)


class Runs:
    """The contiguous runs of a box in its tensor, in row-major order; within the box, they are adjacent."""

    def __init__(self, box: Box, shape: Sequence[int]) -> None:
        """Find the runs of a non-empty box in a tensor of ``shape``."""
        strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        self._base = sum(start * stride for start, stride in zip(box.offset, strides, strict=True))
        # A box that is divided only in the first dimension is a single run.
        dims = max((dim for dim in range(len(shape)) if box.shape[dim] != shape[dim]), default=0)
        self.length = math.prod(box.shape[dims:])
        """The number of elements in each run."""
        self._outer = list(zip(box.shape[:dims], strides[:dims], strict=True))

    def start(self, number: int) -> int:
        """Return the index, in the tensor, of the first element of run ``number``; both count from 0."""
        start = self._base
        for length, stride in reversed(self._outer):
            number, index = divmod(number, length)
            start += index * stride
        return start


def problem(boxes: Sequence[Box], shape: Sequence[int]) -> str | None:
    """Return why the boxes do not cover each element of the tensor exactly once, or None if they do."""
    for box in boxes:
        if len(box.offset) != len(shape) or len(box.shape) != len(shape):
            return f"a box of {len(box.offset)} and {len(box.shape)} dimensions in a tensor of {len(shape)}"
        if any(
            start < 0 or length < 1 or start + length > end
            for start, length, end in zip(*box, shape, strict=True)
        ):
            return f"a box of shape {list(box.shape)} at {list(box.offset)}, in a tensor of {list(shape)}"
    if len(shape) > 0 and len(boxes) > 1:
        # Sweep along the dimension with the most distinct offsets, so that few boxes are active at a time.
        dim = max(range(len(shape)), key=lambda each: len({box.offset[each] for box in boxes}))
        open_boxes: list[Box] = []
        for box in sorted(boxes, key=lambda each: each.offset[dim]):
            open_boxes = [each for each in open_boxes if each.offset[dim] + each.shape[dim] > box.offset[dim]]
            if any(overlap(box, each) is not None for each in open_boxes):
                return f"two boxes that overlap at {list(box.offset)}"
            open_boxes.append(box)
    missing = math.prod(shape) - sum(box.num_elements for box in boxes)
    if missing:
        # A 0-dimensional tensor has one element, so boxes of it overlap.
        return f"a hole of {missing} elements" if missing > 0 else "two boxes that overlap"
    return None
