"""Write tensors of a checkpoint to a ``.safetensors`` file, chunk by chunk, without safetensors or torch.

The format: the length of the header (eight bytes, little-endian), the header, and the tensors' bytes. The
header is a JSON object with an entry for each tensor (``dtype``, ``shape``, ``data_offsets`` from the
header's end) and a map of strings, ``__metadata__``; spaces at its end align the bytes after it.
Source: https://huggingface.co/docs/safetensors (checked 2026-11).
"""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cloudspot.errors import CloudspotError, CorruptData
from cloudspot.host.partial_files import whole_file
from cloudspot.host.piecewise_writes import write_at
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.disk_room import check_room
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.checkpoints.chunks import StoredChunk, check_sizes, read_blocks, stored_chunks
from cloudspot.jobstore.checkpoints.parts import NUM_THREADS
from cloudspot.jobstore.checkpoints.tensors import StoredTensor, num_elements
from cloudspot.jobstore.layout.records import Manifest
from cloudspot.train.state.boxes import Runs

DTYPES: Mapping[str, tuple[str, int]] = {
    "bool": ("BOOL", 1),
    "uint8": ("U8", 1),
    "int8": ("I8", 1),
    "uint16": ("U16", 2),
    "int16": ("I16", 2),
    "uint32": ("U32", 4),
    "int32": ("I32", 4),
    "uint64": ("U64", 8),
    "int64": ("I64", 8),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "float32": ("F32", 4),
    "float64": ("F64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "float8_e5m2fnuz": ("F8_E5M2FNUZ", 1),
    "complex64": ("C64", 8),
}
"""For each dtype by torch's name: the format's name, and the bytes per element."""
MAX_HEADER_BYTES = 100_000_000
"""Readers refuse a longer header."""
_ALIGNMENT = 8


def write_safetensors(
    store: ObjectStore,
    job_id: str,
    manifest: Manifest,
    tensors: Sequence[StoredTensor],
    path: Path,
    *,
    metadata: Mapping[str, str],
    progress: Callable[[int], None] = lambda _count: None,
    num_threads: int = NUM_THREADS,
) -> int:
    """Write the tensors to ``path``, which appears complete or not at all; return the file's size.

    Read only the chunks that hold bytes of these tensors, verify each chunk, and keep at most ``num_threads``
    blocks in memory. ``progress`` is called with the bytes read, which add up to ``num_bytes_read``. Tied
    weights are written once under each name, because the format cannot express ties.

    Raises:
        CloudspotError: the format cannot hold one of the tensors, or the disk refuses.
        CorruptData: a chunk is missing or changed; the message names the chunk.
        TransientError: the store failed, and nothing is left at ``path``.
    """
    header, begins = _layout(tensors, metadata)
    store = with_retries(store)
    chunks = _needed(job_id, manifest, tensors)
    # All chunks must exist before a byte is written.
    check_sizes(store, job_id, manifest, chunks)
    index = _Index(tensors, begins)
    size = len(header) + sum(tensor.nbytes for tensor in tensors)
    with _disk_errors(path), whole_file(path) as file:
        check_room(path.parent, size)
        descriptor = file.fileno()
        write_at(descriptor, header, 0)
        os.ftruncate(descriptor, size)

        def carry(stored: StoredChunk) -> None:
            for offset, block in read_blocks(store, stored):
                with memoryview(block) as view:
                    for start, length, target in index.places(stored, offset, len(block)):
                        with view[start : start + length] as run:
                            write_at(descriptor, run, target)
                progress(len(block))

        map_parallel(carry, chunks, num_threads=num_threads)
    return size


def num_bytes_read(job_id: str, manifest: Manifest, tensors: Sequence[StoredTensor]) -> int:
    """Return the size of the chunks that hold bytes of the tensors."""
    return sum(stored.chunk.size for stored in _needed(job_id, manifest, tensors))


def _layout(tensors: Sequence[StoredTensor], metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int]]:
    """Return the header, preceded by its length, and each tensor's offset in the file, by name."""
    lines: dict[str, object] = {"__metadata__": dict(metadata)}
    position = 0
    starts: dict[str, int] = {}
    # Tensors of wide elements come first, as in the library, so that every tensor is aligned without gaps.
    for tensor in sorted(tensors, key=lambda one: (-_itemsize(one), one.name)):
        if tensor.name in lines:
            raise CloudspotError(
                f"two tensors would have the name {tensor.name!r}; export one object with --only"
            )
        code, _ = DTYPES[tensor.dtype]
        ends = [position, position + tensor.nbytes]
        lines[tensor.name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": ends}
        starts[tensor.name] = position
        position += tensor.nbytes
    text = json.dumps(lines, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise CloudspotError(
            f"the table of these tensors has {len(text)} bytes, but safetensors allows only "
            f"{MAX_HEADER_BYTES}: export to a .pt file"
        )
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + start for name, start in starts.items()}


def _itemsize(tensor: StoredTensor) -> int:
    if tensor.dtype not in DTYPES:
        raise CloudspotError(
            f"{tensor.name} is of type {tensor.dtype}, which a .safetensors file cannot hold: export to a "
            ".pt file"
        )
    _, itemsize = DTYPES[tensor.dtype]
    if tensor.nbytes != num_elements(tensor) * itemsize:
        raise CorruptData(
            f"{tensor.name} of type {tensor.dtype} and shape {list(tensor.shape)} cannot have "
            f"{tensor.nbytes} bytes"
        )
    return itemsize


def _needed(job_id: str, manifest: Manifest, tensors: Sequence[StoredTensor]) -> list[StoredChunk]:
    index = _Index(tensors, {tensor.name: 0 for tensor in tensors})
    return [
        stored
        for stored in stored_chunks(job_id, manifest)
        if any(True for _ in index.places(stored, 0, stored.chunk.size))
    ]


class _Index:
    """Maps the bytes of a chunk to their positions in the file."""

    def __init__(self, tensors: Sequence[StoredTensor], begins: Mapping[str, int]) -> None:
        self._pieces: dict[int, list[_Piece]] = {}
        """The pieces by rank; tied weights are next to each other."""
        for tensor in tensors:
            if tensor.nbytes:
                itemsize = tensor.nbytes // num_elements(tensor)
                for piece in tensor.pieces:
                    target = _Target(Runs(piece.box, tensor.shape), itemsize, begins[tensor.name])
                    found = _Piece(piece.offset, piece.offset + piece.nbytes, target)
                    self._pieces.setdefault(piece.rank, []).append(found)
        for pieces in self._pieces.values():
            pieces.sort(key=lambda each: (each.begin, each.end))

    def places(self, stored: StoredChunk, offset: int, length: int) -> Iterator[tuple[int, int, int]]:
        """Yield runs of a block of a chunk: offset in the block, length, offset in the file."""
        pieces = self._pieces.get(stored.part.rank, [])
        low = stored.start + offset
        high = low + length
        # The items of a part do not overlap, so their ends are in order too.
        first = bisect.bisect_right(pieces, low, key=lambda piece: piece.end)
        for number in range(first, len(pieces)):
            piece = pieces[number]
            if piece.begin >= high:
                return
            start, end = max(piece.begin, low), min(piece.end, high)
            for at, count, target in piece.target.extents(start - piece.begin, end - piece.begin):
                yield piece.begin + at - low, count, target


@dataclass(frozen=True)
class _Target:
    """The position of a piece in the file: several runs, unless only the first dimension is divided."""

    runs: Runs
    itemsize: int
    begin: int
    """The offset of the tensor in the file."""

    def extents(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield runs of some of the piece's bytes: offset in the piece, length, offset in the file."""
        nbytes = self.runs.length * self.itemsize
        while start < end:
            number, skipped = divmod(start, nbytes)
            count = min(nbytes - skipped, end - start)
            yield start, count, self.begin + self.runs.start(number) * self.itemsize + skipped
            start += count


class _Piece(NamedTuple):
    begin: int
    """The offset in the part."""
    end: int
    target: _Target


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CloudspotError(f"cannot write {path}: {error.strerror}") from error
