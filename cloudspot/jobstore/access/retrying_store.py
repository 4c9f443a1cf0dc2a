"""Retry requests after transient errors, so that a single error does not end a whole pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cloudspot.calls.retrying import retry
from cloudspot.errors import OverdueError, TransientError
from cloudspot.interfaces import Data, ObjectStore
from cloudspot.jobstore.access.wrapped_store import T, WrappedStore


def with_retries(store: ObjectStore, *, sleep: Callable[[float], None] = time.sleep) -> RetryingStore:
    """Return the store with retries added; a RetryingStore is returned unchanged."""
    return store if isinstance(store, RetryingStore) else RetryingStore(store, sleep=sleep)


class RetryingStore(WrappedStore):
    """Tries requests that are safe to repeat up to five times within 1.5 seconds.

    A longer outage still raises TransientError. Uploads and create-only puts are made once; for the latter,
    :func:`cloudspot.jobstore.access.creation.create` determines the outcome.
    """

    def __init__(self, inner: ObjectStore, *, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(inner)
        self.sleep = sleep

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        if if_absent:
            self.inner.put(key, data, if_absent=True)
        else:
            super().put(key, data)

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete all keys in one call; after a transient error, delete each key separately, with retries."""
        try:
            self.inner.delete_many(keys)
        except OverdueError:
            raise
        except TransientError:
            for key in keys:
                self.delete(key)

    def _call(self, method: str, key: str, request: Callable[[], T]) -> T:
        return request() if method == "open_upload" else retry(request, sleep=self.sleep)
