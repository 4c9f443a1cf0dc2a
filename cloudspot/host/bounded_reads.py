"""Reads files of any size, such as logs and the files of a training, in bounded memory."""

from __future__ import annotations

import os
from pathlib import Path


def read_at_most(path: Path, most: int) -> bytes:
    """Return the whole file, which nobody writes to meanwhile.

    Raises:
        ValueError: it has more than ``most`` bytes.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(min(os.fstat(file.fileno()).st_size, most) + 1)
    if len(data) > most:
        raise ValueError(f"it is longer than {most} bytes")
    return data


def read_end(path: Path, num_bytes: int) -> bytes:
    """Return the last bytes of the file, or all that it has; a file that grows meanwhile is read no further.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
        return file.read(num_bytes)
