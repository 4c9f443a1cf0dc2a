"""Records of the spot market as ended jobs saw it, for later jobs: one small object per job.

The records are advice and outlive their jobs, which they do not name. So a broken record loses only its own
advice, and a store without any records works as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloudspot.errors import CorruptData, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import read_record
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import MarketSeen, Submission
from cloudspot.model import ObjectMeta

MAX_READ = 50
"""The number of a provider's newest records that are read."""
MAX_KEPT = 200
"""The next writer deletes the oldest records beyond this number."""
MAX_BYTES = 1 << 18
"""Cloudspot writes no longer records, so longer objects are not read."""


@dataclass(frozen=True)
class MarketRecords:
    """The newest records of a provider."""

    found: tuple[MarketSeen, ...]
    unreadable: tuple[str, ...]
    """The keys of the malformed records."""


def write_market_seen(store: ObjectStore, submission: Submission, provider: str, seen: MarketSeen) -> None:
    """Put or replace a job's observations of a provider, and delete the oldest records beyond ``MAX_KEPT``.

    ``submission`` is the job's first submission, so that a resumed job still has only one record.
    """
    store = with_retries(store)
    key = keys.market_seen(provider, submission.milliseconds, submission.writer)
    store.put(key, codec.encode(seen))
    for meta in _list(store, provider)[MAX_KEPT:]:
        store.delete(meta.key)


def read_market_seen(store: ObjectStore, provider: str) -> MarketRecords:
    """Return a provider's newest records, at most ``MAX_READ``; takes a request, and one more per record."""
    store = with_retries(store)

    def read(meta: ObjectMeta) -> MarketSeen | str | None:
        try:
            return meta.key if meta.size > MAX_BYTES else read_record(store, meta.key, MarketSeen)
        except CorruptData:
            return meta.key
        except ObjectMissing:  # A later writer has deleted it as one of the oldest.
            return None

    read_ones = map_parallel(read, _list(store, provider)[:MAX_READ])
    return MarketRecords(
        tuple(one for one in read_ones if isinstance(one, MarketSeen)),
        tuple(one for one in read_ones if isinstance(one, str)),
    )


def _list(store: ObjectStore, provider: str) -> list[ObjectMeta]:
    """Return the newest records, newest first, up to the number that a single request lists."""
    listed = store.list_page(keys.market_prefix(provider)).objects
    return [meta for meta in listed if keys.market_seen.match(meta.key) is not None]
