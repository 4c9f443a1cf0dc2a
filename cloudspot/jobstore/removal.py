"""Deletes a job's data, so that an interrupted removal harms nobody and can be finished.

The order ensures that. First a note of the removal replaces the job's entry in the index; it keeps the id
taken to the end. Then the submission goes: from then on every reader says that there is no such job, and no
controller takes what is left of the journal for that of a job that has not begun. Then go the rest, the code
and the staged agent if no other job has them, the journal, and last the entry itself.

Before a removal looks for others that have the code, it puts a mark beside it, which stays until the code is
deleted or spared. A submission that stands in the index looks for such marks, and where it finds one it
brings a copy of its own. So either the submission sees the mark, or the removal, which looks later, sees the
submission. A removal that is cut short leaves its mark; that costs others a copy, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from cloudspot.errors import CorruptData, JobNotFound, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.job_lists import forget_job, list_jobs
from cloudspot.jobstore.parallel import each
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.records import Removal
from cloudspot.jobstore.submission import read_first_submission, shared_keys
from cloudspot.model import ObjectMeta

NUM_THREADS = 8
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
    store = patient(store)
    key = keys.index(job_id)
    try:
        since, data = store.head(key).modified_at, store.get(key)
    except ObjectMissing:
        raise JobNotFound(f"no job {job_id!r} in {store.url}") from None
    return Entry(since, codec.decode(data, Removal, key=key) if data.startswith(_NOTE) else None)


def measure(store: ObjectStore, job_id: str) -> tuple[int, int]:
    """Return how many objects the job has, and their bytes, without the code that jobs may share."""
    sizes = [meta.size for meta in patient(store).list_objects(keys.job_prefix(job_id))]
    return len(sizes), sum(sizes)


def remove_job(
    store: ObjectStore,
    job_id: str,
    *,
    progress: Callable[[int], None] = lambda _count: None,
    num_threads: int = NUM_THREADS,
) -> None:
    """Delete everything that belongs to the job; after an interruption, call it again.

    The caller has made sure that the job is finished and its machines are gone. The code and the staged agent
    stay while another job has them, or may have them since its submission is under way. ``progress`` is
    called with the bytes of what was deleted, as ``measure`` counts them.

    Raises:
        JobNotFound: there is no such job.
    """
    store = patient(store)
    removal = _begin(store, job_id)
    store.delete(keys.summary(job_id))
    store.delete(keys.spec(job_id))
    journal = keys.journal_prefix(job_id)

    def delete(meta: ObjectMeta) -> None:
        store.delete(meta.key)
        progress(meta.size)

    def delete_all(found: Iterable[ObjectMeta]) -> None:
        each(delete, tuple(found), num_threads=num_threads)

    for page in _pages(store, keys.job_prefix(job_id)):
        delete_all(meta for meta in page if not meta.key.startswith(journal))
    for key in removal.shared:
        store.put(keys.removal(key, job_id), b"")
    for key in sorted(_not_shared(store, frozenset(removal.shared), job_id)):
        store.delete(key)
    for key in removal.shared:
        store.delete(keys.removal(key, job_id))
    # Again, for what a controller wrote in the middle of its pass: a summary.
    for page in _pages(store, keys.job_prefix(job_id)):
        delete_all(page)
    forget_job(store, job_id)
    store.delete(keys.index(job_id))


def _begin(store: ObjectStore, job_id: str) -> Removal:
    """Note the removal, with what has to be known when the submission is gone; return the note."""
    begun: Removal | None = None
    with suppress(CorruptData):
        begun = read_entry(store, job_id).removal
    if begun is not None:
        return begun
    try:
        shared = tuple(sorted(shared_keys(read_first_submission(store, job_id)[0])))
    except (JobNotFound, CorruptData):
        shared = ()  # It was cut short, or is malformed: what it may share stays.
    removal = Removal(shared=shared)
    store.put(keys.index(job_id), codec.encode(removal))
    return removal


def _pages(store: ObjectStore, prefix: str) -> Iterable[tuple[ObjectMeta, ...]]:
    after: str | None = None
    while True:
        page = store.list_page(prefix, after=after)
        yield page.objects
        after = page.next_after
        if after is None:
            return


def _not_shared(store: ObjectStore, shared: frozenset[str], job_id: str) -> frozenset[str]:
    """Return those of the keys that no other job needs, or may need."""
    left, seen = shared, {job_id}
    # Listed again before anything goes: a job may have been submitted meanwhile.
    while left and (new := sorted(set(list_jobs(store)) - seen)):
        needed = each(lambda other: _may_need(store, other, shared), new, num_threads=NUM_THREADS)
        left = left.difference(*needed)
        seen.update(new)
    return left


def _may_need(store: ObjectStore, job_id: str, shared: frozenset[str]) -> frozenset[str]:
    """Return those of the keys that a job needs, or may need."""
    try:
        try:
            return shared_keys(read_first_submission(store, job_id)[0])
        except JobNotFound:
            # Under way, cut short, or half removed; the last has no use for them.
            return shared if read_entry(store, job_id).removal is None else frozenset()
    except JobNotFound:
        return frozenset()
    except CorruptData:
        return shared
