"""Write large blocks of data to a local disk, bypassing the kernel's page cache.

Writing through the cache costs up to three times the processor time. At a low priority, or if the host is
slow to give the machine memory, it takes longer than the disk itself does.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
from pathlib import Path

_BLOCK_BYTES = 4096
"""A multiple of the logical block size of all usual disks; O_DIRECT requires that memory address, offset and
length are multiples of it."""
_PIECE_BYTES = 1 << 20
"""The size of one piece; its copy stays in the processor's cache until it is written."""
_IN_PLACE_BYTES = 8 << 20
"""How many bytes one call writes directly from memory that the disk accepts, without copying them."""
_FILE_SYSTEMS = ("ext4",)
"""The file systems on which this was tested. Network file systems have a cache of their own, and may be
slower."""


def write_past_cache(descriptor: int, data: memoryview) -> int:
    """Write the data up to its last whole block; return the number of bytes written.

    Nothing is written on other systems and file systems, or if the file's position is not at a block
    boundary. The caller writes the rest in the usual way and syncs the file. Other threads can run during the
    call.

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
    except OSError:
        return 0
    import fcntl

    flags, written = fcntl.fcntl(descriptor, fcntl.F_GETFL), 0
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag)
        with data[:size] as blocks:
            # Arena slots and their chunks begin at a page boundary. Other data is first copied to such
            # memory.
            written = _write_in_place(descriptor, blocks)
            if written == 0:
                written = _write_copies(descriptor, blocks)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return written


def _write_in_place(descriptor: int, data: memoryview) -> int:
    """Write without copying; return the number of bytes written: 0 if the disk refuses the memory."""
    written = 0
    try:
        while written < len(data):
            with data[written : written + _IN_PLACE_BYTES] as given:
                count = os.write(descriptor, given)
            written += count
            if count == 0 or count % _BLOCK_BYTES:  # incomplete, for example because the disk is full
                break
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return written


def _write_copies(descriptor: int, data: memoryview) -> int:
    """Write from memory that begins at a block boundary; return the number of bytes written."""
    try:
        # The copy goes into a file, because writing to a file lets other threads run, and copying in memory
        # does not.
        copy = os.memfd_create("direct-write", os.MFD_CLOEXEC)
    except OSError:
        return 0
    written = 0
    try:
        os.ftruncate(copy, min(len(data), _PIECE_BYTES))
        with mmap.mmap(copy, 0) as memory, memoryview(memory) as piece:
            while written < len(data):
                with data[written : written + len(piece)] as given:
                    length = os.pwrite(copy, given, 0)
                with piece[:length] as aligned:
                    count = _write_in_place(descriptor, aligned)
                written += count
                if count < length:
                    break
    finally:
        os.close(copy)
    return written


@functools.lru_cache(maxsize=64)
def _file_system(device: int) -> str:
    """Return the type of the file system with this ``st_dev``, or an empty string if it is unknown."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2:3] == [number]:
            return source.split()[0]
    return ""
