"""Repeats requests that failed in passing, so that one hiccup does not undo a whole pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from cloudspot.interfaces import Data, ObjectStore, Upload
from cloudspot.model import ObjectMeta, ObjectPage
from cloudspot.retrying import retry

Result = TypeVar("Result")


def patient(store: ObjectStore, *, sleep: Callable[[float], None] = time.sleep) -> PatientStore:
    """Return the store, patient; one that is so already as it is."""
    return store if isinstance(store, PatientStore) else PatientStore(store, sleep=sleep)


class PatientStore(ObjectStore):
    """Wraps a store: requests that are safe to repeat are tried up to five times within 1.5 seconds.

    A longer outage still raises TransientError, and is the caller's to wait out. A create-only put
    is made once (see :func:`cloudspot.jobstore.creation.create`, which settles its outcome), and so
    is an upload.
    """

    def __init__(self, inner: ObjectStore, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.url = inner.url
        self._inner = inner
        self._sleep = sleep

    @property
    def canonical_url(self) -> str:
        """Return the store's own; see ObjectStore."""
        return self._inner.canonical_url

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Put, again after a failure unless ``if_absent``; see ObjectStore."""
        if if_absent:
            self._inner.put(key, data, if_absent=True)
        else:
            self._retry(lambda: self._inner.put(key, data))

    def get(self, key: str) -> bytes:
        """Return the whole object; see ObjectStore."""
        return self._retry(lambda: self._inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return some of the object's bytes; see ObjectStore."""
        return self._retry(lambda: self._inner.get_range(key, start, length))

    def get_range_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        """Read some of the object's bytes into the buffer; see ObjectStore."""
        return self._retry(lambda: self._inner.get_range_into(key, start, buffer))

    def head(self, key: str) -> ObjectMeta:
        """Return what is known of the object; see ObjectStore."""
        return self._retry(lambda: self._inner.head(key))

    def list_page(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ObjectPage:
        """Return a page of objects; see ObjectStore."""
        return self._retry(lambda: self._inner.list_page(prefix, after=after, limit=limit))

    def delete(self, key: str) -> None:
        """Remove the object; see ObjectStore."""
        self._retry(lambda: self._inner.delete(key))

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        """Start a streamed put; see ObjectStore."""
        return self._inner.open_upload(key, if_absent=if_absent)

    def presign_get(self, key: str, *, seconds: float) -> str:
        """Return a URL that reads the object; see ObjectStore."""
        return self._inner.presign_get(key, seconds=seconds)

    def _retry(self, call: Callable[[], Result]) -> Result:
        return retry(call, sleep=self._sleep)
