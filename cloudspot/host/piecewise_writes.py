"""Write files through the kernel's cache in pieces of an efficient size."""

from __future__ import annotations

import os
from typing import Final

PIECE_BYTES: Final = 32 << 10
"""The number of bytes written by one call, which is also the largest block of memory that Linux allocates
without a search. With 2 MiB or more, writes take up to nine times as long (Linux 6.18, ext4, measured
2026-11). With 256 KiB, 1 GiB takes 0.15 s instead of 0.25, but 6 GiB takes 4.8 s instead of 3.4."""


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all the data to a file, starting at ``offset``; no view of it is kept, even after an error."""
    done = 0
    with memoryview(data) as view:
        while done < len(view):
            with view[done : done + PIECE_BYTES] as piece:
                done += os.pwrite(descriptor, piece, offset + done)
