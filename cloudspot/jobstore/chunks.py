"""Read the chunks of a committed checkpoint, compare them with their checksums, and write them to files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import xxhash

from cloudspot.errors import CorruptData, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import keys
from cloudspot.jobstore.parallel import each
from cloudspot.jobstore.parts import xxh3_128
from cloudspot.jobstore.records import Chunk, Manifest, Part

BLOCK_BYTES = 8 << 20
"""Large enough to make a request worth its latency."""


@dataclass(frozen=True)
class StoredChunk:
    """A chunk: its key, and where its bytes belong in its part."""

    key: str
    chunk: Chunk
    part: Part
    start: int
    """Bytes from the beginning of the part."""


def stored_chunks(job_id: str, manifest: Manifest) -> list[StoredChunk]:
    """Return the chunks of all parts, in order."""
    found = []
    for part in manifest.parts:
        start = 0
        for number, chunk in enumerate(part.chunks):
            home = chunk.home
            key = (
                keys.chunk(job_id, part.save, part.rank, number)
                if home is None
                else keys.chunk(job_id, home.save, home.rank, home.number)
            )
            found.append(StoredChunk(key, chunk, part, start))
            start += chunk.size
    return found


def check_sizes(store: ObjectStore, job_id: str, manifest: Manifest, chunks: Sequence[StoredChunk]) -> None:
    """Check by listings that the chunks are there and as long as the manifest says.

    Raises:
        CorruptData: one is missing or has another size.
    """
    homes = {chunk.home.save for part in manifest.parts for chunk in part.chunks if chunk.home is not None}
    prefixes = [keys.save_prefix(job_id, save) for save in (manifest.save, *sorted(homes))]
    listed = each(lambda prefix: [(meta.key, meta.size) for meta in store.list_objects(prefix)], prefixes)
    sizes = dict(itertools.chain.from_iterable(listed))
    for stored in chunks:
        size = sizes.get(stored.key)
        if size is None:
            raise CorruptData(f"checkpoint {manifest.id}: chunk {stored.key} is missing")
        _check_size(stored, size)


@contextmanager
def read_chunk(store: ObjectStore, stored: StoredChunk, buffer: bytearray) -> Iterator[memoryview]:
    """Lend the verified bytes of a chunk; the buffer must hold at least one byte more.

    Raises:
        CorruptData: it is missing, cut short or changed.
    """
    with memoryview(buffer) as room:
        try:
            # Asking for one byte more reveals a longer object without reading all of it.
            with room[: stored.chunk.size + 1] as target:
                size = store.get_range_into(stored.key, 0, target)
        except ObjectMissing as error:
            raise CorruptData(f"chunk {stored.key} is missing") from error
        _check_size(stored, size)
        with room[:size] as data:
            if xxh3_128(data) != stored.chunk.xxh3_128:
                raise _changed(stored)
            yield data


def read_blocks(store: ObjectStore, stored: StoredChunk) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of a chunk in blocks, each with its offset; they are verified only at the end.

    For readers that can discard what they have made of them: ``BLOCK_BYTES`` at a time need a fraction of
    the memory.

    Raises:
        CorruptData: the chunk is missing, cut short or changed.
    """
    checksum = xxhash.xxh3_128()
    for start in range(0, stored.chunk.size, BLOCK_BYTES):
        length = min(BLOCK_BYTES, stored.chunk.size - start)
        is_last = start + length == stored.chunk.size
        try:
            block = store.get_range(stored.key, start, length + is_last)  # one more, as above
        except ObjectMissing as error:
            raise CorruptData(f"chunk {stored.key} is missing") from error
        if len(block) != length:
            _check_size(stored, start + len(block))
        checksum.update(block)
        yield start, block
    if checksum.hexdigest() != stored.chunk.xxh3_128:
        raise _changed(stored)


def _changed(stored: StoredChunk) -> CorruptData:
    return CorruptData(f"chunk {stored.key} does not match its checksum")


def _check_size(stored: StoredChunk, size: int) -> None:
    if size != stored.chunk.size:
        raise CorruptData(f"chunk {stored.key} has {size} bytes and should have {stored.chunk.size}")
