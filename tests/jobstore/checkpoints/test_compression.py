"""Compressed chunks: they come back as they were, or not at all."""

import random
import struct
import tracemalloc
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cloudspot.errors import CorruptData
from cloudspot.jobstore.checkpoints import compression
from cloudspot.jobstore.checkpoints.compression import (
    BLOCK_BYTES,
    MAGIC,
    Compression,
    Cost,
    compress,
    decompress,
    shortens,
)


def numbers(code, count):
    """Numbers as a training leaves them: near zero, of either sign."""
    rng = random.Random(count)
    kind = "d" if code == "float64" else "f"
    packed = struct.pack(f"<{count}{kind}", *(rng.gauss(0.0, 0.02) for _ in range(count)))
    return b"".join(packed[at + 2 : at + 4] for at in range(0, len(packed), 4)) if code == "bf16" else packed


def opened(compressed, size, *, piece_bytes=1 << 30):
    pieces = (compressed[at : at + piece_bytes] for at in range(0, len(compressed), piece_bytes))
    return b"".join(decompress(pieces, size, "chunk k"))


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(compression, "BLOCK_BYTES", 1000)


@pytest.mark.parametrize(
    ("code", "num_planes", "share"),
    [("bf16", 2, (0.6, 0.75)), ("float32", 4, (0.8, 0.88)), ("float64", 8, (0.84, 0.9))],
)
def test_numbers_are_compressed_by_their_planes(code, num_planes, share):
    data = numbers(code, 100_000)
    compressed = compress(data)
    assert share[0] < len(compressed) / len(data) < share[1]
    assert compressed[len(MAGIC) + 4] == num_planes
    assert len(zstandard.ZstdCompressor(level=1).compress(data)) > 1.05 * len(compressed)
    assert opened(compressed, len(data)) == data


@pytest.mark.parametrize("size", [100, 999, 1000, 1001, 2000, 4003])
@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_any_length_comes_back_in_any_pieces(small_blocks, size, piece_bytes):
    data = numbers("float32", size)[3 : 3 + size // 2] + bytes(size - size // 2)
    compressed = compress(data)
    assert opened(compressed, size, piece_bytes=piece_bytes) == data


def test_blocks_of_several_kinds_are_each_taken_as_they_are(small_blocks):
    kinds = (random.Random(1).randbytes(1000), bytes(1000), numbers("bf16", 500), b'{"a": 1}' * 125)
    data = b"".join(kinds)
    assert opened(compress(data), len(data)) == data


@pytest.mark.parametrize("data", [b"", b"a", random.Random(1).randbytes(100_000)])
def test_what_does_not_become_a_tenth_shorter_stays_as_it_is(data):
    assert compress(data) is None


def test_the_same_bytes_give_the_same_bytes():
    data = numbers("float32", 50_000)
    assert compress(data) == compress(memoryview(bytearray(data)))


@given(st.binary(max_size=300), st.integers(1, 40))
def test_whatever_is_compressed_comes_back(data, times):
    data *= times
    compressed = compress(data)
    if compressed is not None:
        assert len(compressed) <= 0.9 * len(data)
        assert opened(compressed, len(data)) == data


DATA = numbers("float32", 500) + bytes(2000)
GOOD = bytes(compress(DATA))


@pytest.mark.parametrize("size", [0, 1, len(DATA) - 1, len(DATA) + 1, 1 << 40])
def test_a_chunk_of_another_size_is_corrupt(size):
    with pytest.raises(CorruptData, match="chunk k"):
        opened(GOOD, size)


def test_what_is_cut_off_or_has_something_behind_it_is_corrupt():
    for length in range(len(GOOD)):
        with pytest.raises(CorruptData, match="chunk k"):
            opened(GOOD[:length], len(DATA))
    with pytest.raises(CorruptData, match="chunk k is not a compressed chunk of its size"):
        opened(GOOD + b"\0", len(DATA))


@pytest.mark.full
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_changed_byte_is_corrupt_or_leaves_as_many_bytes_for_the_checksum(position, change):
    changed = bytearray(GOOD)
    changed[position] ^= change
    with suppress(CorruptData):
        assert len(opened(bytes(changed), len(DATA))) == len(DATA)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_as_corrupt(data):
    with pytest.raises(CorruptData, match="chunk k"):
        opened(MAGIC + data, 1 << 20)


def one_block(length, *planes, plane_lengths=None):
    lengths = plane_lengths or [len(plane) for plane in planes]
    return MAGIC + struct.pack(f"<IB{len(lengths)}I", length, len(lengths), *lengths) + b"".join(planes)


def frame(data, **options):
    return zstandard.ZstdCompressor(**options).compress(data)


@pytest.mark.parametrize(
    "bomb",
    [
        one_block(1000, frame(bytes(1 << 28))),
        one_block(1000, frame(bytes(1000), write_content_size=False)),
        one_block(1000, frame(bytes(500)) + frame(bytes(500))),
        one_block(1000, frame(bytes(1000)) + b"x"),
        one_block(1000, frame(bytes(999))),
        one_block(1 << 31, frame(bytes(1000))),
        one_block(0, b""),
        one_block(1000, plane_lengths=[0xFFFFFFFF]),
        one_block(1000, plane_lengths=[0]),
        one_block(1000, b"x" * 1001),
        MAGIC + struct.pack("<IB", 1000, 0),
        MAGIC + struct.pack("<IB255I", 1000, 255, *[0] * 255),
        one_block(0, b"") * (1 << 10),
    ],
)
def test_no_claim_takes_more_memory_than_the_chunk(bomb):
    tracemalloc.start()
    with pytest.raises(CorruptData, match="chunk k"):
        opened(bomb, 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(bomb) + (1 << 20)


def test_a_plane_that_is_a_skippable_frame_is_corrupt():
    skippable = struct.pack("<II", 0x184D2A50, 20) + bytes(20)
    with pytest.raises(CorruptData, match="chunk k"):
        opened(one_block(1000, skippable), 1000)


def test_a_chunk_is_decompressed_a_block_at_a_time():
    data = bytes(3 * BLOCK_BYTES)
    blocks = decompress(iter([compress(data)]), len(data), "chunk k")
    assert [len(block) for block in blocks] == [BLOCK_BYTES] * 3


# --- when it pays -----------------------------------------------------------------------------------


def cost(compress_seconds, saved_share, put_seconds_per_byte, num_bytes=1000):
    put_bytes = int(num_bytes * (1 - saved_share))
    return Cost(compress_seconds, num_bytes - put_bytes, put_bytes * put_seconds_per_byte, put_bytes)


@pytest.mark.parametrize(
    ("costs", "is_shorter"),
    [
        ([], False),
        ([cost(1.0, 0.3, 0.01)], True),  # 3 s saved for 1
        ([cost(4.0, 0.3, 0.01)], False),
        ([cost(1.0, 0.0, 1.0)], False),
        ([cost(1.0, 0.3, 0.0)], False),
        ([cost(1.0, 0.3, 0.01), cost(2.5, 0.0, 0.01)], False),  # what is tried in vain counts
        ([cost(1.0, 0.3, 0.01), cost(1.5, 0.0, 0.01)], True),
    ],
)
def test_an_upload_was_shorter_if_the_bytes_saved_would_have_taken_longer(costs, is_shorter):
    assert shortens(costs) is is_shorter


@pytest.mark.full
@given(st.floats(0.001, 10), st.floats(0.01, 0.99), st.floats(1e-6, 1e-2))
def test_it_is_the_sum_of_what_each_thread_does(compress_seconds, saved_share, put_seconds_per_byte):
    one = cost(compress_seconds, saved_share, put_seconds_per_byte, num_bytes=1_000_000)
    with_it = one.compress_seconds + one.put_seconds
    without = (one.put_bytes + one.saved_bytes) * one.put_seconds / one.put_bytes
    if abs(with_it - without) > 1e-9 * without:
        assert shortens([one]) is (with_it < without)


def test_a_drain_compresses_only_if_the_last_save_beside_the_training_was_shorter_for_it():
    known = Compression()
    assert known.is_used(in_background=True)
    assert not known.is_used(in_background=False)
    known.note([cost(1.0, 0.3, 0.01)])
    assert known.is_used(in_background=False)
    known.note([])  # all of it was shared
    assert known.is_used(in_background=False)
    known.note([cost(4.0, 0.3, 0.01)])
    assert known.is_used(in_background=True)
    assert not known.is_used(in_background=False)
