"""A store that counts the transferred bytes, which cost money if the bucket is in another region."""

from __future__ import annotations

import threading

from cloudspot.interfaces import Data, ObjectStore, Upload
from cloudspot.jobstore.access.wrapped_store import WrappedStore


class MeteredStore(WrappedStore):
    """Counts the bytes sent and received by successful calls.

    Failed requests, headers, listings and the requests of plugins, for example for log lines, are not
    counted, because they are small compared with checkpoints.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._moved_bytes = 0

    @property
    def moved_bytes(self) -> int:
        """The number of bytes transferred in both directions."""
        return self._moved_bytes

    def count(self, num_bytes: int) -> None:
        """Add transferred bytes."""
        with self._lock:
            self._moved_bytes += num_bytes

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        super().put(key, data, if_absent=if_absent)
        self.count(memoryview(data).nbytes)

    def get(self, key: str) -> bytes:
        data = super().get(key)
        self.count(len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = super().get_range(key, start, length)
        self.count(len(data))
        return data

    def get_range_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        num_bytes = super().get_range_into(key, start, buffer)
        self.count(num_bytes)
        return num_bytes

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        return _MeteredUpload(self, super().open_upload(key, if_absent=if_absent))


class _MeteredUpload(Upload):
    def __init__(self, store: MeteredStore, inner: Upload) -> None:
        self._store = store
        self._inner = inner

    def write(self, data: Data) -> None:
        self._inner.write(data)
        self._store.count(memoryview(data).nbytes)

    def commit(self) -> None:
        self._inner.commit()

    def abort(self) -> None:
        self._inner.abort()
