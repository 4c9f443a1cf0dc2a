"""The size of a heartbeat encodes news, so that a listing shows which nodes are alive and which have changed.

If each of N nodes read the heartbeats of all others, a pass would take N x N requests. A single listing shows
all heartbeats, but only their sizes and the times of their puts, which some stores round to seconds. So
spaces are added to each heartbeat until its size, modulo ``MODULUS``, encodes the numbers of beats and
changes. Drivers use the same listing.
"""

from __future__ import annotations

_NUM_BEATS = 16
_NUM_CHANGES = 64
MODULUS = _NUM_BEATS * _NUM_CHANGES
"""The modulus in bytes; on average, half as many spaces are added to a heartbeat."""


def fill_up(data: bytes, *, num_beats: int, num_changes: int) -> bytes:
    """Return the JSON text with spaces appended, so that its size encodes beats and changes."""
    count = num_changes % _NUM_CHANGES * _NUM_BEATS + num_beats % _NUM_BEATS
    return data + b" " * ((count - len(data)) % MODULUS)


def change_count(size: int) -> int:
    """Return the number of changes, modulo 64, that the size of a heartbeat encodes."""
    return size % MODULUS // _NUM_BEATS
