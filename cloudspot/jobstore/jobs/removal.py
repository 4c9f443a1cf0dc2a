"""Delete a job's data, in an order by which an interrupted removal does no harm and can be finished.

First, a note of the removal replaces the job's entry in the index, which reserves the id until the end. Then
the submission is deleted: from then on, every reader reports that no such job exists, and no controller
mistakes the rest of the journal for that of a new job. Then all other objects are deleted, the code and the
staged agent if no other job has them, the journal, and last the index entry itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from cloudspot.errors import CorruptData, JobNotFound
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.jobs.index_entry import read_entry
from cloudspot.jobstore.jobs.job_lists import forget_job
from cloudspot.jobstore.jobs.shared_objects import delete_unneeded, needed_until_removed
from cloudspot.jobstore.jobs.submission import read_first_submission, shared_keys
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Removal
from cloudspot.model import ObjectMeta

NUM_THREADS = 8
DELETED_AT_ONCE = 100
"""The most objects that a thread deletes at once, which takes one request if the store supports that."""


def measure(store: ObjectStore, job_id: str) -> tuple[int, int]:
    """Return the number of the job's objects and their total bytes, without code that jobs may share."""
    num_objects = num_bytes = 0
    for meta in with_retries(store).list_objects(keys.job_prefix(job_id)):
        num_objects += 1
        num_bytes += meta.size
    return num_objects, num_bytes


def remove_job(
    store: ObjectStore,
    job_id: str,
    *,
    progress: Callable[[int], None] = lambda _count: None,
    num_threads: int = NUM_THREADS,
) -> None:
    """Delete all objects that belong to the job; after an interruption, call it again.

    The caller has ensured that the job is finished and its machines are gone. The code and the staged agent
    are kept while another job has them, or may have them because its submission is under way. ``progress`` is
    called with the bytes deleted, counted as in ``measure``.

    Raises:
        JobNotFound: there is no such job.
    """
    store = with_retries(store)
    removal = _begin(store, job_id)
    store.delete(keys.summary(job_id))
    store.delete(keys.spec(job_id))
    journal = keys.journal_prefix(job_id)

    def delete(metas: Sequence[ObjectMeta]) -> None:
        store.delete_many([one.key for one in metas])
        for one in metas:
            progress(one.size)

    def delete_all(found: Iterable[ObjectMeta]) -> None:
        metas = tuple(found)
        parts = [metas[start : start + DELETED_AT_ONCE] for start in range(0, len(metas), DELETED_AT_ONCE)]
        map_parallel(delete, parts, num_threads=num_threads)

    for page in store.list_pages(keys.job_prefix(job_id)):
        delete_all(meta for meta in page.objects if not meta.key.startswith(journal))
    delete_unneeded(store, removal.shared, by=job_id, need=needed_until_removed, but=frozenset({job_id}))
    # Repeat the deletion for objects that a controller wrote in the middle of its pass, such as a summary.
    for page in store.list_pages(keys.job_prefix(job_id)):
        delete_all(page.objects)
    forget_job(store, job_id)
    store.delete(keys.index(job_id))


def _begin(store: ObjectStore, job_id: str) -> Removal:
    """Note the removal, with the details that are needed once the submission is gone; return the note."""
    begun: Removal | None = None
    with suppress(CorruptData):
        begun = read_entry(store, job_id).removal
    if begun is not None:
        return begun
    try:
        shared = tuple(sorted(shared_keys(read_first_submission(store, job_id)[0])))
    except (JobNotFound, CorruptData):
        shared = ()  # The submission was interrupted or is malformed: keep any objects that it may share.
    removal = Removal(shared=shared)
    store.put(keys.index(job_id), codec.encode(removal))
    return removal
