"""Write large runs of bytes to a local disk past the kernel's cache.

The way through the cache costs three times the processor time, and at a low priority, or where the machine's
host is slow to give memory, it takes longer than the disk does.
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
_FILE_SYSTEMS = ("ext4", "xfs")
"""Where it was tried. Those of a network have a cache of their own, and may be slower for it."""


def write_past_cache(descriptor: int, data: memoryview) -> int:
    """Write the data from its beginning, as far as it can be done; return how many bytes were written.

    There are fewer than ``data`` has at the end of the last whole block, and none on other systems and file
    systems, or where the file's position is within a block. The caller writes the rest as usual, and syncs
    the file.

    Raises:
        OSError: the disk is full or fails.
    """
    size = len(data) - len(data) % _BLOCK_BYTES
    flag = getattr(os, "O_DIRECT", 0)
    if not (flag and size) or os.lseek(descriptor, 0, os.SEEK_CUR) % _BLOCK_BYTES:
        return 0
    if _file_system(os.fstat(descriptor).st_dev) not in _FILE_SYSTEMS:
        return 0
    import fcntl

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    written = 0
    # Memory of its own, since O_DIRECT needs it to begin at a block.
    with mmap.mmap(-1, min(size, _PIECE_BYTES)) as memory, memoryview(memory) as piece:
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag)
            while written < size:
                with piece[: min(size - written, len(piece))] as aligned:
                    aligned[:] = data[written : written + len(aligned)]
                    count = os.write(descriptor, aligned)
                written += count
                if count % _BLOCK_BYTES:  # cut short, as by a disk that is full
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
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return ""
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2:3] == [number]:
            return source.split()[0]
    return ""
