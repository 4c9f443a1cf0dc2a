"""Write large runs of bytes to a local disk past the kernel's cache.

The way through the cache costs up to three times the processor time, and at a low priority, or where the
machine's host is slow to give memory, it takes longer than the disk does.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
from pathlib import Path

_BLOCK_BYTES = 4096
"""A multiple of the logical block of all usual disks: what O_DIRECT asks of memory, offset and length."""
_PIECE_BYTES = 1 << 20
"""Small enough that the copy of a piece stays in the processor's cache until it is written."""
_FILE_SYSTEMS = ("ext4",)
"""Where it was tried. Those of a network have a cache of their own, and may be slower for it."""


def write_past_cache(descriptor: int, data: memoryview) -> int:
    """Write the data from its beginning, as far as it can be done; return how many bytes were written.

    There are fewer than ``data`` has at the end of the last whole block, and none on other systems and file
    systems, or where the file's position is within a block. The caller writes the rest as usual, and syncs
    the file. Other threads run meanwhile.

    Raises:
        OSError: the disk is full or fails.
    """
    size = len(data) - len(data) % _BLOCK_BYTES
    flag = getattr(os, "O_DIRECT", 0)
    if not (flag and size) or os.lseek(descriptor, 0, os.SEEK_CUR) % _BLOCK_BYTES:
        return 0
    try:
        if _file_system(os.fstat(descriptor).st_dev) not in _FILE_SYSTEMS:
            return 0
        # Memory of its own, since O_DIRECT needs it to begin at a block; a file, since a write to it lets
        # other threads run, as a copy in memory does not.
        copy = os.memfd_create("direct-write", os.MFD_CLOEXEC)
    except OSError:
        return 0
    try:
        return _write(descriptor, data, size, flag, copy)
    finally:
        os.close(copy)


def _write(descriptor: int, data: memoryview, size: int, flag: int, copy: int) -> int:
    import fcntl

    os.ftruncate(copy, min(size, _PIECE_BYTES))
    flags, written = fcntl.fcntl(descriptor, fcntl.F_GETFL), 0
    with mmap.mmap(copy, 0) as memory, memoryview(memory) as piece:
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag)
            while written < size:
                with data[written : min(written + len(piece), size)] as given:
                    length = os.pwrite(copy, given, 0)
                with piece[:length] as aligned:
                    count = os.write(descriptor, aligned)
                written += count
                if count == 0 or count % _BLOCK_BYTES:  # cut short, as by a disk that is full
                    break
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return written


@functools.lru_cache(maxsize=64)
def _file_system(device: int) -> str:
    """Return the type of the file system with this ``st_dev``; empty: not known."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2:3] == [number]:
            return source.split()[0]
    return ""
