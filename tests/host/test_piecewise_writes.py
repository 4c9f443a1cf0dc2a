"""Files that are written piece by piece: whole, where they belong, and without a view that is kept."""

import errno
import os

import pytest

from cloudspot.host import piecewise_writes
from cloudspot.host.piecewise_writes import PIECE_BYTES, write_at


@pytest.fixture
def descriptor(tmp_path):
    found = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield found
    os.close(found)


@pytest.fixture
def calls(monkeypatch):
    """The lengths that were given to the system, which writes no more than ``most`` of each."""
    found, most, write = [], [PIECE_BYTES], os.pwrite

    def pwrite(descriptor, data, offset):
        found.append(len(data))
        with data[: most[0]] as part:
            return write(descriptor, part, offset)

    monkeypatch.setattr(piecewise_writes.os, "pwrite", pwrite)
    return found, most


@pytest.mark.parametrize("most", [PIECE_BYTES, PIECE_BYTES - 1000, PIECE_BYTES // 2])
def test_all_is_written_where_it_belongs_however_little_the_system_takes(descriptor, calls, most):
    data = os.urandom(2 * PIECE_BYTES + 123)
    lengths, at_most = calls
    at_most[0] = most
    write_at(descriptor, data, 77)
    assert os.pread(descriptor, len(data) + 1000, 0) == bytes(77) + data
    assert max(lengths) == PIECE_BYTES


def test_after_an_error_nothing_holds_the_data(descriptor, monkeypatch):
    def full(_descriptor, _data, _offset):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(piecewise_writes.os, "pwrite", full)
    data = bytearray(PIECE_BYTES + 1)
    with pytest.raises(OSError, match="No space") as raised:
        write_at(descriptor, data, 0)
    data.append(0)  # refused while a view is held
    assert raised.value.errno == errno.ENOSPC
