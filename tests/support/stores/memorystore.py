"""An object store in memory: for tests that need thousands of stores, and no disk."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from types import MappingProxyType

from cloudspot.errors import CloudspotError, CorruptData, ObjectExists, ObjectMissing
from cloudspot.interfaces import MAX_GET_BYTES, Data, ObjectStore, Upload, check_key
from cloudspot.model import ObjectMeta, ObjectPage

NOT_SHARED = MappingProxyType(
    {
        "test_another_who_opens_the_same_url_sees_the_same": "what is in memory has no URL that opens it",
        "test_of_many_processes_that_create_a_key_exactly_one_wins": "no other process sees this memory",
    }
)
"""The deviations of such a store from the kit's promises."""


class InMemoryStore(ObjectStore):
    """Keeps every promise of ObjectStore but durability. Thread-safe.

    ``now`` is its clock, by which objects are stamped (None: this computer's).
    """

    def __init__(self, url: str = "memory://test", *, now: Callable[[], datetime] | None = None) -> None:
        self.url = url
        self._now = now or (lambda: datetime.now(timezone.utc))
        self._objects: dict[str, tuple[bytes, datetime, str]] = {}
        self._num_puts = 0
        self._keys: list[str] = []
        self._lock = threading.Lock()

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Store the bytes; see ObjectStore."""
        check_key(key)
        with self._lock:
            if key not in self._objects:
                bisect.insort(self._keys, key)
            elif if_absent:
                raise ObjectExists(f"{key} already exists")
            self._num_puts += 1
            self._objects[key] = (bytes(data), self._now(), str(self._num_puts))

    def get(self, key: str) -> bytes:
        """Return the object; see ObjectStore."""
        data = self._find(key)[0]
        if len(data) > MAX_GET_BYTES:
            raise CorruptData(f"{key} is longer than {MAX_GET_BYTES} bytes")
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of the object; see ObjectStore."""
        if start < 0 or length < 0:
            raise ValueError(f"start and length must be >= 0: got {start}, {length}")
        return self._find(key)[0][start : start + length]

    def head(self, key: str) -> ObjectMeta:
        """Return what is known of the object; see ObjectStore."""
        data, modified_at, etag = self._find(key)
        return ObjectMeta(key=key, size=len(data), modified_at=modified_at, etag=etag)

    def list_page(
        self, prefix: str, *, after: str | None = None, limit: int = 1000, cursor: str = ""
    ) -> ObjectPage:
        """Return a page of the listing; see ObjectStore."""
        if limit < 1:
            raise ValueError(f"limit must be >= 1: got {limit}")
        with self._lock:
            first = bisect.bisect_left(self._keys, prefix)
            if after is not None:
                first = max(first, bisect.bisect_right(self._keys, after))
            found: list[ObjectMeta] = []
            for key in self._keys[first : first + limit + 1]:
                if not key.startswith(prefix):
                    break
                data, modified_at, etag = self._objects[key]
                found.append(ObjectMeta(key=key, size=len(data), modified_at=modified_at, etag=etag))
        page = tuple(found[:limit])
        return ObjectPage(objects=page, next_after=page[-1].key if len(found) > limit else None)

    def delete(self, key: str) -> None:
        """Remove the object; see ObjectStore."""
        check_key(key)
        with self._lock:
            if self._objects.pop(key, None) is not None:
                self._keys.remove(key)

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        """Start a streamed put; see ObjectStore."""
        check_key(key)
        return _MemoryUpload(self, key, if_absent=if_absent)

    def presign_get(self, key: str, *, seconds: float) -> str:
        """Refuse: memory has no address."""
        raise CloudspotError(f"{self.url} cannot presign: nobody else can read memory")

    def _find(self, key: str) -> tuple[bytes, datetime, str]:
        check_key(key)
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectMissing(f"no object {key}") from None


class _MemoryUpload(Upload):
    def __init__(self, store: InMemoryStore, key: str, *, if_absent: bool) -> None:
        self._store = store
        self._key = key
        self._if_absent = if_absent
        self._parts: list[bytes] | None = []

    def write(self, data: Data) -> None:
        self._open_parts().append(bytes(data))

    def commit(self) -> None:
        data = b"".join(self._open_parts())
        self._parts = None
        self._store.put(self._key, data, if_absent=self._if_absent)

    def abort(self) -> None:
        self._parts = None

    def _open_parts(self) -> list[bytes]:
        if self._parts is None:
            raise ValueError(f"the upload of {self._key} was committed or aborted")
        return self._parts
