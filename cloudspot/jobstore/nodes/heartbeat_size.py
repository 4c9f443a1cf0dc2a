"""What the size of a heartbeat tells: a listing of all nodes' heartbeats shows who lives and who has changed.

If each node read the heartbeats of all others, that would cost N x N requests a pass. One listing shows all
of them, but only their sizes and when they were put, in some stores by whole seconds. So each heartbeat is
filled up with spaces until its size counts: modulo ``MODULUS`` it tells the number of beats and of changes.
Drivers read the same listing.
"""

from __future__ import annotations

_NUM_BEATS = 16
_NUM_CHANGES = 64
MODULUS = _NUM_BEATS * _NUM_CHANGES
"""Bytes; on average half of it is added to a heartbeat."""


def fill_up(data: bytes, *, num_beats: int, num_changes: int) -> bytes:
    """Return the JSON text with spaces behind it, so that its size counts beats and changes."""
    count = num_changes % _NUM_CHANGES * _NUM_BEATS + num_beats % _NUM_BEATS
    return data + b" " * ((count - len(data)) % MODULUS)


def change_count(size: int) -> int:
    """Return the number of changes, modulo 64, that a heartbeat of this size has counted."""
    return size % MODULUS // _NUM_BEATS
