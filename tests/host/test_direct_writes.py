from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from cloudspot.host import direct_writes
from cloudspot.host.direct_writes import write_past_cache

fcntl = pytest.importorskip("fcntl")

PIECE = 1 << 20
DATA = bytes(range(251)) * (3 * PIECE // 251 + 1)


@pytest.fixture
def descriptor(tmp_path: Path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.mark.usefixtures("on_ext4")
@pytest.mark.parametrize("size", [4096, PIECE, PIECE + 4096, 2 * PIECE + 4095, 3 * PIECE])
@pytest.mark.parametrize("start", [0, 1])
def test_whole_blocks_are_written_from_memory_that_begins_anywhere(descriptor, size, start):
    data = memoryview(DATA)[start : start + size]
    assert write_past_cache(descriptor, data) == size - size % 4096
    assert os.write(descriptor, b"the rest") == 8  # which need not be whole blocks: the flag is gone
    assert os.pread(descriptor, 4 * PIECE, 0) == bytes(data[: size - size % 4096]) + b"the rest"


@pytest.mark.usefixtures("on_ext4")
@pytest.mark.parametrize("size", [4096, 3 * PIECE + 4095])
def test_memory_that_begins_at_a_page_is_not_copied(descriptor, monkeypatch, tmp_path, size):
    (tmp_path / "slot").write_bytes(DATA)
    with (tmp_path / "slot").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    monkeypatch.setattr(direct_writes, "_write_copies", None)
    with memoryview(mapped)[:size] as data:
        assert write_past_cache(descriptor, data) == size - size % 4096
    mapped.close()  # no view of it is kept
    assert os.pread(descriptor, 4 * PIECE, 0) == DATA[: size - size % 4096]


@pytest.mark.usefixtures("on_ext4")
def test_nothing_of_it_is_in_the_kernels_cache(descriptor):
    write_past_cache(descriptor, memoryview(DATA)[:PIECE])
    with pytest.raises(BlockingIOError):
        os.preadv(descriptor, [bytearray(4096)], 0, os.RWF_NOWAIT)
    os.pwrite(descriptor, bytes(4096), 0)
    assert os.preadv(descriptor, [bytearray(4096)], 0, os.RWF_NOWAIT) == 4096


@pytest.mark.usefixtures("on_ext4")
def test_what_goes_on_within_a_block_is_left_to_the_caller(descriptor):
    assert write_past_cache(descriptor, memoryview(DATA)[:4095]) == 0
    os.write(descriptor, b"x")
    assert write_past_cache(descriptor, memoryview(DATA)[:4096]) == 0
    assert os.pread(descriptor, PIECE, 0) == b"x"


def test_other_file_systems_are_left_to_the_caller(descriptor, monkeypatch):
    monkeypatch.setattr(direct_writes, "_FILE_SYSTEMS", ("nfs4",))
    assert write_past_cache(descriptor, memoryview(DATA)) == 0
    assert os.fstat(descriptor).st_size == 0


@pytest.mark.usefixtures("on_ext4")
@pytest.mark.parametrize(
    ("second", "told"),
    [(errno.EINVAL, PIECE), (100, PIECE + 100), (0, PIECE), (errno.ENOSPC, None)],
    ids=str,
)
def test_a_disk_that_refuses_or_is_full(descriptor, monkeypatch, second, told):
    write, answers = (
        os.write,
        iter((errno.EINVAL, PIECE, second)),
    )  # at first it refuses memory that begins anywhere

    def answer(descriptor, data):
        asked = next(answers)
        if asked in (errno.EINVAL, errno.ENOSPC):
            raise OSError(asked, os.strerror(asked))
        return write(descriptor, data) if asked == len(data) else asked

    monkeypatch.setattr(os, "write", answer)
    before = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if told is None:
        with pytest.raises(OSError, match="No space left"):
            write_past_cache(descriptor, memoryview(DATA))
    else:
        assert write_past_cache(descriptor, memoryview(DATA)) == told
    assert fcntl.fcntl(descriptor, fcntl.F_GETFL) == before
