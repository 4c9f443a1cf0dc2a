"""What drivers that only pass by leave for each other, read together with the store's time."""

from __future__ import annotations

from datetime import datetime

from cloudspot.errors import CorruptData, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import find_meta, read_record
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Suspicions


def read_suspicions(store: ObjectStore, job_id: str) -> tuple[Suspicions, datetime] | None:
    """Return what was left, and a moment of the store's clock; None: nothing.

    The moment lies between the write of what is returned and the return of this call. A malformed object
    counts as nothing: it is only advice, and the next write replaces it.
    """
    store, key = with_retries(store), keys.suspicions(job_id)
    try:
        # In this order: if another version comes between the two calls, its time is later, and what was seen
        # before the first write was seen before the second. The other way round, the time would be older
        # than what is counted from it.
        left = read_record(store, key, Suspicions)
        return left, store.head(key).modified_at
    except (ObjectMissing, CorruptData):
        return None


def write_suspicions(store: ObjectStore, job_id: str, suspicions: Suspicions) -> None:
    """Replace what was left."""
    with_retries(store).put(keys.suspicions(job_id), codec.encode(suspicions))


def last_written(store: ObjectStore, job_id: str) -> datetime | None:
    """Return when something was left last, by the store's clock; None: nothing stands."""
    meta = find_meta(with_retries(store), keys.suspicions(job_id))
    return None if meta is None else meta.modified_at


def delete_suspicions(store: ObjectStore, job_id: str) -> None:
    """Leave nothing."""
    with_retries(store).delete(keys.suspicions(job_id))
