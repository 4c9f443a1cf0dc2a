"""Compress the chunks of checkpoints by grouping the bytes of numbers into planes, then applying zstd; pure.

The high bytes of trained numbers hold the sign and the exponent and are much alike; the low bytes are mostly
noise. So each block is split into planes (the first byte of each number, the second, ...), and each plane is
compressed separately, unless a sample of it shows that this saves almost nothing. The width of the numbers is
found by trial, block by block, because a script's own files do not state it.

A compressed chunk is ``MAGIC`` followed by its blocks. A block consists of its length and its number of
planes (``_BLOCK``), the stored length of each plane (32 bits, little-endian), and the planes: byte ``i`` of
the block is in plane ``i % num_planes``. A plane that is stored at its own length is not compressed; a
shorter one is a zstd frame that states the size of its content.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from cloudspot.errors import CorruptData
from cloudspot.interfaces import Data

if TYPE_CHECKING:
    import zstandard

MAGIC = b"CSZ1"
BLOCK_BYTES = 4 << 20
"""Splitting a block of this size holds the interpreter's lock for about a millisecond per plane."""
MAX_PLANES = 16
MAX_SHARE = 0.9
"""Data stays uncompressed unless compression reduces it to this share of its size or less."""
_LEVEL = 1
"""Higher levels take longer and save nothing more on this data."""
_PLANES_PARAMETERS = {"min_match": 7, "hash_log": 6}
"""A plane of numbers has few repetitions, only uneven byte frequencies. With a tiny hash table zstd does not
search for repetitions, which is twice as fast and gives a result that is a tenth smaller.
"""
_SAMPLE_BYTES = 128 << 10
_WIDTHS = 1, 2, 4, 8
"""The possible widths of a number, in bytes."""
_BLOCK = struct.Struct("<IB")


def compress(data: Data, may_continue: Callable[[], bool] = lambda: True) -> bytearray | None:
    """Return the compressed data, or None if compression fails or saves less than a tenth.

    With the same version of the library, the same bytes give the same result. ``may_continue`` is called
    before each block; if it returns False, the compression stops and returns None.
    """
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(_LEVEL, **_PLANES_PARAMETERS)
    compressors = (
        zstandard.ZstdCompressor(level=_LEVEL),
        zstandard.ZstdCompressor(compression_params=parameters),
    )
    most = int(MAX_SHARE * len(data))
    compressed = bytearray(MAGIC)
    with memoryview(data) as view, suppress(MemoryError, zstandard.ZstdError):
        for start in range(0, len(view), BLOCK_BYTES):
            if len(compressed) > most or not may_continue():
                return None
            _add_block(compressed, bytes(view[start : start + BLOCK_BYTES]), *compressors)
        return compressed if len(compressed) <= most else None
    return None


def decompress(pieces: Iterator[Data], size: int, what: str) -> Iterator[bytearray]:
    """Yield the ``size`` bytes of a compressed chunk in blocks; ``what`` names the chunk in messages.

    ``pieces`` are the stored bytes, divided at any positions; they are consumed as needed. The result has the
    right length, but its content is not verified: the caller compares a checksum.

    Raises:
        CorruptData: ``compress`` cannot have made the pieces from ``size`` bytes. Even if they state false
            lengths, no more than a block is allocated.
    """
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    stored = _Stored(pieces, what)
    if stored.take(len(MAGIC)) != MAGIC:
        raise stored.malformed()
    left = size
    while left:
        length, num_planes = _BLOCK.unpack(stored.take(_BLOCK.size))
        if not (0 < length <= min(left, BLOCK_BYTES) and 0 < num_planes <= MAX_PLANES):
            raise stored.malformed()
        block = bytearray(length)
        for number, stored_bytes in enumerate(struct.unpack(f"<{num_planes}I", stored.take(4 * num_planes))):
            plane_bytes = len(range(number, length, num_planes))
            if stored_bytes > plane_bytes:
                raise stored.malformed()
            plane = stored.take(stored_bytes)
            if stored_bytes < plane_bytes:
                try:
                    # Check the size first, because decompression allocates as much memory as the frame
                    # states.
                    is_right = zstandard.frame_content_size(plane) == plane_bytes
                    plane = decompressor.decompress(plane, allow_extra_data=False) if is_right else b""
                except zstandard.ZstdError as error:
                    raise stored.malformed() from error
                if not is_right:
                    raise stored.malformed()
            block[number::num_planes] = plane
        left -= length
        yield block
    if not stored.is_over():
        raise stored.malformed()


class Cost(NamedTuple):
    """The cost of uploading one chunk."""

    compress_seconds: float
    """The time spent on compression, even if the chunk was then uploaded uncompressed."""
    saved_bytes: int
    put_seconds: float
    put_bytes: int


def shortens(costs: Sequence[Cost]) -> bool:
    """Return whether an upload took less time because its chunks were compressed.

    Each thread compresses a chunk, then puts it; the saved bytes would have taken as long, per byte, as the
    sent bytes.
    """
    compress_seconds = sum(cost.compress_seconds for cost in costs)
    saved_bytes = sum(cost.saved_bytes for cost in costs)
    put_seconds = sum(cost.put_seconds for cost in costs)
    put_bytes = sum(cost.put_bytes for cost in costs)
    return compress_seconds * put_bytes < saved_bytes * put_seconds


class Compression:
    """Decides when a node compresses chunks: always during the training, otherwise only if that is faster.

    A drain has a deadline, and nothing may delay its commit. So its chunks are compressed only if compression
    was measured to shorten the last upload during the training.
    """

    def __init__(self) -> None:
        self._costs: Sequence[Cost] = ()

    def is_used(self, *, in_background: bool) -> bool:
        """Return whether to compress the chunks of the next upload."""
        return in_background or shortens(self._costs)

    def note(self, costs: Sequence[Cost]) -> None:
        """Record the costs of a background upload's chunks, if it sent any."""
        self._costs = costs or self._costs


def _add_block(
    found: bytearray,
    block: bytes,
    of_anything: zstandard.ZstdCompressor,
    of_planes: zstandard.ZstdCompressor,
) -> None:
    middle = len(block) // 2 // max(_WIDTHS) * max(_WIDTHS)
    sample = block[middle : middle + _SAMPLE_BYTES]
    samples = {width: [sample[number::width] for number in range(width)] for width in _WIDTHS}
    compressors = {width: of_anything if width == 1 else of_planes for width in _WIDTHS}
    sizes = {
        width: [len(_shorter(plane, compressors[width])) for plane in planes]
        for width, planes in samples.items()
    }
    # Each further plane must save 1/400 of the bytes, because splitting and joining take time.
    width = min(_WIDTHS, key=lambda width: sum(sizes[width]) + width * len(sample) // 400)
    planes = [block[number::width] for number in range(width)]
    for number, (size, plane) in enumerate(zip(sizes[width], samples[width], strict=True)):
        if size < len(plane):
            planes[number] = _shorter(planes[number], compressors[width])
    found += _BLOCK.pack(len(block), width)
    found += struct.pack(f"<{width}I", *map(len, planes))
    for plane in planes:
        found += plane


def _shorter(plane: bytes, compressor: zstandard.ZstdCompressor) -> bytes:
    """Return the plane, compressed if that makes it short enough."""
    compressed = compressor.compress(plane)
    return compressed if len(compressed) <= MAX_SHARE * len(plane) else plane


class _Stored:
    """Reads the bytes of a compressed chunk in sequence."""

    def __init__(self, pieces: Iterator[Data], what: str) -> None:
        self._pieces = pieces
        self._what = what
        self._rest = memoryview(b"")

    def take(self, count: int) -> Data:
        """Return the next ``count`` bytes.

        Raises:
            CorruptData: fewer bytes are left.
        """
        runs: list[memoryview] = []
        while count:
            if self.is_over():
                raise CorruptData(f"{self._what} is truncated")
            run, self._rest = self._rest[:count], self._rest[count:]
            runs.append(run)
            count -= len(run)
        return runs[0] if len(runs) == 1 else b"".join(runs)

    def is_over(self) -> bool:
        """Return whether all bytes have been taken."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return True
            self._rest = memoryview(piece)
        return False

    def malformed(self) -> CorruptData:
        """Return the error for a malformed chunk."""
        return CorruptData(f"{self._what} is not a compressed chunk of its size")
