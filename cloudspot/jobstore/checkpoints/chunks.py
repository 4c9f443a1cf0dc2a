"""Read the chunks of a committed checkpoint and verify their checksums."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import xxhash

from cloudspot.errors import CorruptData, ObjectMissing
from cloudspot.interfaces import Data, ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.checkpoints.compression import decompress
from cloudspot.jobstore.checkpoints.parts import xxh3_128
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Chunk, Manifest, Part

BLOCK_BYTES = 8 << 20
"""Large enough that the latency of a request does not matter."""


@dataclass(frozen=True)
class StoredChunk:
    """A chunk, with its key and its position in its part."""

    key: str
    chunk: Chunk
    part: Part
    start: int
    """The offset of the chunk in its part, in bytes."""

    @property
    def is_compressed(self) -> bool:
        """Whether the stored object is compressed, and so shorter than the chunk."""
        return self.chunk.stored is not None


def stored_chunks(job_id: str, manifest: Manifest) -> list[StoredChunk]:
    """Return the chunks of all parts, in order."""
    stored = []
    for part in manifest.parts:
        start = 0
        for number, chunk in enumerate(part.chunks):
            home = chunk.home
            at = (part.save, part.rank, number) if home is None else (home.save, home.rank, home.number)
            key = (keys.chunk if chunk.stored is None else keys.compressed_chunk)(job_id, *at)
            stored.append(StoredChunk(key, chunk, part, start))
            start += chunk.size
    return stored


def check_sizes(store: ObjectStore, job_id: str, manifest: Manifest, chunks: Sequence[StoredChunk]) -> None:
    """Check by listings that all chunks exist, with the sizes that the manifest states.

    The size of a compressed chunk has only an upper bound, because it depends on the version of the library
    that wrote it last.

    Raises:
        CorruptData: a chunk is missing or has another size.
    """
    homes = {chunk.home.save for part in manifest.parts for chunk in part.chunks if chunk.home is not None}
    prefixes = [keys.save_prefix(job_id, save) for save in (manifest.save, *sorted(homes))]
    listed = map_parallel(
        lambda prefix: [(meta.key, meta.size) for meta in store.list_objects(prefix)], prefixes
    )
    sizes = dict(itertools.chain.from_iterable(listed))
    for stored in chunks:
        size = sizes.get(stored.key)
        if size is None:
            raise CorruptData(f"checkpoint {manifest.id}: chunk {stored.key} is missing")
        _check_size(stored, size)


@contextmanager
def read_chunk(store: ObjectStore, stored: StoredChunk, buffer: bytearray) -> Iterator[memoryview]:
    """Lend the verified bytes of a chunk; the buffer must be at least one byte longer than the chunk.

    Raises:
        CorruptData: the chunk is missing, too short, too long or changed, even on a second read.
    """
    with memoryview(buffer) as room:
        try:
            size = _read_into(store, stored, room)
        except CorruptData:  # The bytes may have been damaged in transit, so read them again.
            size = _read_into(store, stored, room)
        with room[:size] as data:
            yield data


def _read_into(store: ObjectStore, stored: StoredChunk, room: memoryview) -> int:
    """Read the verified bytes of a chunk into memory; return their number."""
    try:
        # The extra byte reveals an object that is too long, without reading all of it.
        with room[: stored.chunk.size + 1] as target:
            size = store.get_range_into(stored.key, 0, target)
    except ObjectMissing as error:
        raise CorruptData(f"chunk {stored.key} is missing") from error
    _check_size(stored, size)
    if stored.is_compressed:
        position = 0
        for block in _decompressed(stored, iter((bytes(room[:size]),))):
            room[position : position + len(block)] = block
            position += len(block)
        size = position
    with room[:size] as data:
        if xxh3_128(data) != stored.chunk.xxh3_128:
            raise _changed(stored)
    return size


def read_blocks(store: ObjectStore, stored: StoredChunk) -> Iterator[tuple[int, Data]]:
    """Yield the bytes of a chunk in blocks, each with its offset; the checksum is compared only at the end.

    For readers that can discard the results; blocks of ``BLOCK_BYTES`` need only a fraction of a chunk's
    memory.

    Raises:
        CorruptData: the chunk is missing, too short, too long or changed.
    """
    return _verified(stored, _read_object(store, stored))


def read_stored(store: ObjectStore, stored: StoredChunk) -> Iterator[bytes]:
    """Yield the bytes of a chunk's object, compressed or not; the checksum is compared only at the end.

    Raises:
        CorruptData: as in ``read_blocks``.
    """
    waiting: list[bytes] = []

    def noted() -> Iterator[bytes]:
        for piece in _read_object(store, stored):
            waiting.append(piece)
            yield piece

    for _ in _verified(stored, noted()):
        yield from waiting
        waiting.clear()


def _read_object(store: ObjectStore, stored: StoredChunk) -> Iterator[bytes]:
    """Yield the bytes of a chunk's object in blocks, with at least one extra byte if it is too long."""
    for start in range(0, stored.chunk.size, BLOCK_BYTES):
        length = min(BLOCK_BYTES, stored.chunk.size - start)
        is_last = start + length == stored.chunk.size
        try:
            block = store.get_range(stored.key, start, length + is_last)  # as in _read_into
        except ObjectMissing as error:
            raise CorruptData(f"chunk {stored.key} is missing") from error
        if len(block) != length:
            _check_size(stored, start + len(block))
        yield block
        if len(block) < length:
            return


def _verified(stored: StoredChunk, pieces: Iterator[bytes]) -> Iterator[tuple[int, Data]]:
    """Yield a chunk's bytes with their offsets, given the bytes of its object."""
    checksum = xxhash.xxh3_128()
    offset = 0
    for block in _decompressed(stored, pieces) if stored.is_compressed else pieces:
        checksum.update(block)
        yield offset, block
        offset += len(block)
    if checksum.hexdigest() != stored.chunk.xxh3_128:
        raise _changed(stored)


def _decompressed(stored: StoredChunk, pieces: Iterator[bytes]) -> Iterator[bytearray]:
    return decompress(pieces, stored.chunk.size, f"chunk {stored.key}")


def _changed(stored: StoredChunk) -> CorruptData:
    return CorruptData(f"chunk {stored.key} does not match its checksum")


def _check_size(stored: StoredChunk, size: int) -> None:
    expected = stored.chunk.size
    if stored.is_compressed:
        if not 0 < size < expected:
            raise CorruptData(f"chunk {stored.key} has {size} bytes and should have fewer than {expected}")
    elif size != expected:
        raise CorruptData(f"chunk {stored.key} has {size} bytes and should have {expected}")
