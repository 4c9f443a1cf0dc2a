"""A store that counts what each process asks of it, so that the count outlives a process that is killed."""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cloudspot.interfaces import Data, ObjectStore
from cloudspot.jobstore.access.wrapped_store import T, WrappedStore

_FORM = struct.Struct("<4q")
_READS = frozenset({"get", "get_range", "head"})
_FREE = frozenset({"delete", "delete_many"})


@dataclass(frozen=True)
class Asked:
    """What some processes have asked of a store."""

    reads: int = 0
    writes: int = 0
    """Puts and listings, which cost the same on S3."""
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: Asked) -> Asked:
        return Asked(
            self.reads + other.reads,
            self.writes + other.writes,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )

    @property
    def usd(self) -> float:
        """Their cost at S3's prices in us-east-1."""
        # https://aws.amazon.com/s3/pricing/, S3 Standard: for 1,000 GETs, and for 1,000 PUTs or LISTs.
        return (self.reads * 0.0004 + self.writes * 0.005) / 1000


class MeteredStore(WrappedStore):
    """Counts in a file that is named after the machine and the process."""

    def __init__(self, inner: ObjectStore, directory: Path) -> None:
        super().__init__(inner)
        machine = Path(os.environ.get("CLOUDSPOT_NODE_DIR", "/-/-")).parent.name
        path = directory / f"{machine}.{os.getpid()}.{id(self)}"
        path.write_bytes(bytes(_FORM.size))
        with path.open("r+b") as file:
            self._counts = mmap.mmap(file.fileno(), _FORM.size)
        self._lock = threading.Lock()

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Put, and count the bytes."""
        self._add(Asked(bytes_written=len(data)))
        super().put(key, data, if_absent=if_absent)

    def get(self, key: str) -> bytes:
        """Get, and count the bytes."""
        data = super().get(key)
        self._add(Asked(bytes_read=len(data)))
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Get a part, and count the bytes."""
        data = super().get_range(key, start, length)
        self._add(Asked(bytes_read=len(data)))
        return data

    def get_range_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        """Get a part, and count the bytes."""
        count = super().get_range_into(key, start, buffer)
        self._add(Asked(bytes_read=count))
        return count

    def _call(self, method: str, key: str, request: Callable[[], T]) -> T:
        if method in _READS:
            self._add(Asked(reads=1))
        elif method not in _FREE:
            self._add(Asked(writes=1))
        return request()

    def _add(self, asked: Asked) -> None:
        with self._lock:
            sums = Asked(*_FORM.unpack_from(self._counts)) + asked
            counts = (sums.reads, sums.writes, sums.bytes_read, sums.bytes_written)
            _FORM.pack_into(self._counts, 0, *counts)


def asked_by(directory: Path) -> dict[str, Asked]:
    """Return what was asked, by machine; ``-`` is what no machine has asked."""
    found: dict[str, Asked] = {}
    for path in directory.iterdir():
        machine = path.name.partition(".")[0]
        found[machine] = found.get(machine, Asked()) + Asked(*_FORM.unpack(path.read_bytes()))
    return found
