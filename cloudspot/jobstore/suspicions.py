"""What drivers that only pass by leave for each other, read together with the store's time."""

from __future__ import annotations

from datetime import datetime

from cloudspot.errors import CorruptData, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.records import Suspicions


def read_suspicions(store: ObjectStore, job_id: str) -> tuple[Suspicions, datetime] | None:
    """Return what was left, and a moment of the store's clock; None: nothing.

    The moment lies between the write of what is returned and the return of this call. A malformed object
    counts as nothing: it is only advice, and the next write replaces it.
    """
    store, key = patient(store), keys.suspicions(job_id)
    try:
        # In this order: if another version comes between the two calls, its time is later, and what was seen
        # before the first write was seen before the second. The other way round, the time would be older
        # than what is counted from it.
        left = codec.decode(store.get(key), Suspicions, key=key)
        return left, store.head(key).modified_at
    except (ObjectMissing, CorruptData):
        return None


def write_suspicions(store: ObjectStore, job_id: str, suspicions: Suspicions) -> None:
    """Replace what was left."""
    patient(store).put(keys.suspicions(job_id), codec.encode(suspicions))


def last_written(store: ObjectStore, job_id: str) -> datetime | None:
    """Return when something was left last, by the store's clock; None: nothing stands."""
    try:
        return patient(store).head(keys.suspicions(job_id)).modified_at
    except ObjectMissing:
        return None


def delete_suspicions(store: ObjectStore, job_id: str) -> None:
    """Leave nothing."""
    patient(store).delete(keys.suspicions(job_id))
