"""A job's entry in the index, which reserves the id and records a removal that has begun."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cloudspot.errors import JobNotFound, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Removal

_NOTE = b"{"
"""The first byte of a removal's note; a submission's entry is a nonce in hex instead."""


@dataclass(frozen=True)
class Entry:
    """A job's entry in the index."""

    since: datetime
    """The time at which the entry was written, by the store's clock."""
    removal: Removal | None
    """The removal of the job, if one has begun."""


def read_entry(store: ObjectStore, job_id: str) -> Entry:
    """Return the job's entry in the index.

    Raises:
        JobNotFound: the index has no such entry.
    """
    store = with_retries(store)
    key = keys.index(job_id)
    try:
        since, data = store.head(key).modified_at, store.get(key)
    except ObjectMissing:
        raise JobNotFound(f"no job {job_id!r} in {store.url}") from None
    return Entry(since, codec.decode(data, Removal, key=key) if data.startswith(_NOTE) else None)
