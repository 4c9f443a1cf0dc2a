"""File locks between the processes of this host; the kernel releases a lock when its holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Wait for an exclusive lock on the file, and hold the lock until the end of the block."""
    with _opened(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Yield whether the lock was free; if it was, hold it until the end of the block."""
    with _opened(path) as descriptor:
        yield lock_now(descriptor)


def lock_now(descriptor: int) -> bool:
    """Lock an open file until it is closed; return False if the lock is held elsewhere."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
