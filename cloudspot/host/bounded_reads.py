"""Read files of any size, such as logs and the files of a training, in bounded memory."""

from __future__ import annotations

import os
from pathlib import Path

_MOST_CONTINUING = 3
"""The maximum number of bytes that follow the first byte of a UTF-8 character."""


def read_at_most(path: Path, most: int) -> bytes:
    """Return the whole file, which must not be written to during the call.

    Raises:
        ValueError: the file has more than ``most`` bytes.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(min(os.fstat(file.fileno()).st_size, most) + 1)
    if len(data) > most:
        raise ValueError(f"it is longer than {most} bytes")
    return data


def read_end(path: Path, num_bytes: int) -> bytes:
    """Return the last ``num_bytes`` of the file, or all of it; growth during the call is ignored.

    If the file is text in UTF-8, the result begins with a whole character.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        begin = file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
        data = file.read(num_bytes)
    cut = 0
    while begin > 0 and cut < _MOST_CONTINUING and data[cut : cut + 1] and data[cut] & 0xC0 == 0x80:
        cut += 1
    return data[cut:]
