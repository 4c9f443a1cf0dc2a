"""Suspicions that drivers with short passes leave for later drivers, with the store's time."""

from __future__ import annotations

from datetime import datetime

from cloudspot.errors import CorruptData, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import find_meta, read_record
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Suspicions


def read_suspicions(store: ObjectStore, job_id: str) -> tuple[Suspicions, datetime] | None:
    """Return the suspicions and a moment of the store's clock, or None if no suspicions are stored.

    The moment is between the write of these suspicions and the return of this call. A malformed object counts
    as missing, because it is only advice, and the next write replaces it.
    """
    store, key = with_retries(store), keys.suspicions(job_id)
    try:
        # The order matters: if another write comes between the two calls, the time read is that of the other
        # write, and the first write's observations were made even earlier. In the other order, the time could
        # be too early for the durations that are counted from it.
        left = read_record(store, key, Suspicions)
        return left, store.head(key).modified_at
    except (ObjectMissing, CorruptData):
        return None


def write_suspicions(store: ObjectStore, job_id: str, suspicions: Suspicions) -> None:
    """Replace the job's suspicions."""
    with_retries(store).put(keys.suspicions(job_id), codec.encode(suspicions))


def last_written(store: ObjectStore, job_id: str) -> datetime | None:
    """Return when the suspicions were last written, by the store's clock, or None if none are stored."""
    meta = find_meta(with_retries(store), keys.suspicions(job_id))
    return None if meta is None else meta.modified_at


def delete_suspicions(store: ObjectStore, job_id: str) -> None:
    """Delete the job's suspicions."""
    with_retries(store).delete(keys.suspicions(job_id))
