"""A job's entry in the index: it reserves the id, and holds the note of a removal that has begun."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cloudspot.errors import JobNotFound, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Removal

_NOTE = b"{"
"""How the note of a removal begins; a submission writes a nonce in hex."""


@dataclass(frozen=True)
class Entry:
    """A job's entry in the index."""

    since: datetime
    """When it was written, by the store's clock."""
    removal: Removal | None
    """Somebody has begun to remove the job."""


def read_entry(store: ObjectStore, job_id: str) -> Entry:
    """Return the job's entry in the index.

    Raises:
        JobNotFound: there is none.
    """
    store = with_retries(store)
    key = keys.index(job_id)
    try:
        since, data = store.head(key).modified_at, store.get(key)
    except ObjectMissing:
        raise JobNotFound(f"no job {job_id!r} in {store.url}") from None
    return Entry(since, codec.decode(data, Removal, key=key) if data.startswith(_NOTE) else None)
