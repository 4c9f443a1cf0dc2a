"""Write large runs of bytes to a local disk past the kernel's cache.

Writing through the cache costs up to three times the processor time. At a low priority, or if the machine's
host is slow to give memory, it takes longer than the disk does.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
from pathlib import Path

_BLOCK_BYTES = 4096
"""A multiple of all usual disks' logical block; O_DIRECT requires it of memory, offset and length."""
_PIECE_BYTES = 1 << 20
"""The size of a piece, whose copy stays in the processor's cache until it is written."""
_FILE_SYSTEMS = ("ext4",)
"""The file systems where this was tested. Network file systems have their own cache, and may be slower."""


def write_past_cache(descriptor: int, data: memoryview) -> int:
    """Write the data up to its last whole block; return how many bytes were written.

    Nothing is written on other systems and file systems, or if the file's position is within a block. The
    caller writes the rest as usual, and syncs the file. Other threads run meanwhile.

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
        # O_DIRECT needs memory that begins at a block, so the data is copied. The copy goes into a file,
        # because a write to a file lets other threads run, and a copy in memory does not.
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
                if count == 0 or count % _BLOCK_BYTES:  # cut short, for example by a full disk
                    break
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return written


@functools.lru_cache(maxsize=64)
def _file_system(device: int) -> str:
    """Return the type of the file system with this ``st_dev``, or an empty string if it is not known."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2:3] == [number]:
            return source.split()[0]
    return ""
