"""Boxes: the regions of a tensor that ranks hold. Pure, and without torch: the agent checks them too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Box(NamedTuple):
    """A region of a tensor: in each dimension a range."""

    offset: tuple[int, ...]
    """Where it begins."""
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Return how many elements it holds; 1 without dimensions."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Split:
    """Along a mesh dimension, a tensor dimension is divided into equal chunks, as by ``torch.chunk``."""

    dim: int
    factor: int = 1
    """More than 1: mesh dimensions further right have divided this dimension before, into so many chunks."""


def whole(shape: Sequence[int]) -> Box:
    """Return the box that is all of a tensor."""
    return Box((0,) * len(shape), tuple(shape))


def held(
    shape: Sequence[int], mesh_shape: Sequence[int], splits: Sequence[Split | None], place: Sequence[int]
) -> Box:
    """Return the box that a rank holds; without elements if the tensor has fewer than there are chunks.

    ``splits`` says for each mesh dimension how the tensor is divided along it; None: it is replicated.
    ``place`` is the rank's coordinate in the mesh.

    Raises:
        ValueError: a tensor dimension is divided in an order that no box describes.
    """
    offset, lengths = [0] * len(shape), list(shape)
    for mesh_dim, dim in _order(mesh_shape, splits):
        size = -(-lengths[dim] // mesh_shape[mesh_dim])
        start = min(size * place[mesh_dim], lengths[dim])
        offset[dim] += start
        lengths[dim] = min(size, lengths[dim] - start)
    return Box(tuple(offset), tuple(lengths))


def _order(mesh_shape: Sequence[int], splits: Sequence[Split | None]) -> Iterator[tuple[int, int]]:
    """Yield mesh and tensor dimensions in the order in which the tensor is divided.

    That is from left to right, but FSDP divides what tensor parallelism, further right in the mesh, has
    divided before; it says so with the factor.
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
                raise ValueError(f"dimension {split.dim} is divided {factor} x after {num_chunks} chunks")
            num_chunks *= mesh_shape[earlier]
            yield earlier, split.dim
    if waiting:
        raise ValueError(f"dimension {next(iter(waiting))} is divided in strides")


def places(root: Sequence[Any], mesh: Sequence[Any]) -> dict[int, tuple[int, ...]]:
    """Return the coordinate in its own copy of ``mesh`` of every rank of ``root``.

    Both are nested lists of ranks. ``mesh`` lies along some dimensions of ``root``: sliced, flattened or
    reordered. For each coordinate in the other dimensions there is a copy of it, on other ranks.

    Raises:
        ValueError: ``mesh`` does not lie along dimensions of ``root``.
    """
    in_root, in_mesh = dict(_coordinates(root)), dict(_coordinates(mesh))
    if not in_mesh.keys() <= in_root.keys():
        raise ValueError("the mesh has ranks that its root has not")
    found = [in_root[rank] for rank in in_mesh]
    varying = [dim for dim in range(len(found[0])) if len({coordinate[dim] for coordinate in found}) > 1]
    by_part = {tuple(in_root[rank][dim] for dim in varying): place for rank, place in in_mesh.items()}
    try:
        return {
            rank: by_part[tuple(coordinate[dim] for dim in varying)] for rank, coordinate in in_root.items()
        }
    except KeyError:
        raise ValueError("the mesh is not a slice of its root") from None


def _coordinates(nested: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    if isinstance(nested, int):
        yield nested, ()
        return
    for index, each in enumerate(nested):
        for rank, coordinate in _coordinates(each):
            yield rank, (index, *coordinate)


def overlap(one: Box, other: Box) -> Box | None:
    """Return what two boxes of a tensor have in common, None if that has no elements."""
    offset = tuple(map(max, one.offset, other.offset))
    ends = (min(a + n, b + m) for a, n, b, m in zip(*one, *other, strict=True))
    shape = tuple(end - start for start, end in zip(offset, ends, strict=True))
    return None if any(length <= 0 for length in shape) else Box(offset, shape)


class Runs:
    """The contiguous runs of a box in its tensor, in row-major order; in the box they follow one another."""

    def __init__(self, box: Box, shape: Sequence[int]) -> None:
        """Take a box, which has elements, of a tensor of this shape."""
        strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        self._base = sum(start * stride for start, stride in zip(box.offset, strides, strict=True))
        # What is divided in its first dimensions only is one run.
        dims = max((dim for dim in range(len(shape)) if box.shape[dim] != shape[dim]), default=0)
        self.length = math.prod(box.shape[dims:])
        """The elements of each."""
        self._outer = list(zip(box.shape[:dims], strides[:dims], strict=True))

    def start(self, number: int) -> int:
        """Return at which element of the tensor a run begins; they count from 0."""
        start = self._base
        for length, stride in reversed(self._outer):
            number, index = divmod(number, length)
            start += index * stride
        return start


def problem(boxes: Sequence[Box], shape: Sequence[int]) -> str | None:
    """Return why the boxes do not make up the tensor, each element once; None if they do."""
    for box in boxes:
        if len(box.offset) != len(shape) or len(box.shape) != len(shape):
            return f"a box of {len(box.offset)} and {len(box.shape)} dimensions in a tensor of {len(shape)}"
        if any(
            start < 0 or length < 1 or start + length > end
            for start, length, end in zip(*box, shape, strict=True)
        ):
            return f"a box of shape {list(box.shape)} at {list(box.offset)}, in a tensor of {list(shape)}"
    if len(shape) > 0 and len(boxes) > 1:
        # Sweep along the dimension that tells most boxes apart, so that few are open at a time.
        dim = max(range(len(shape)), key=lambda each: len({box.offset[each] for box in boxes}))
        open_boxes: list[Box] = []
        for box in sorted(boxes, key=lambda each: each.offset[dim]):
            open_boxes = [each for each in open_boxes if each.offset[dim] + each.shape[dim] > box.offset[dim]]
            if any(overlap(box, each) is not None for each in open_boxes):
                return f"two boxes that overlap at {list(box.offset)}"
            open_boxes.append(box)
    missing = math.prod(shape) - sum(box.num_elements for box in boxes)
    if missing:
        # 0-dimensional tensors have one element, and boxes of them overlap.
        return f"a hole of {missing} elements" if missing > 0 else "two boxes that overlap"
    return None
