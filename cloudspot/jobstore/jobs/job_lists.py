"""The lists of jobs: all jobs, the jobs that may be live, and the most recent jobs.

Each list is a prefix of small objects, so that one listing returns it and no job has to be read. A job is
*marked live* from before its submission exists until a driver has found it settled: finished, cleaned up, and
without machines. The mark is put first, deleted last, and put again before each intent of a launch. So a
crash may leave an unneeded mark, which costs a few requests, but a needed mark is never missing. The mark
also names the submission: a driver that was suspended while its job was removed cannot delete the mark of
another job with the same id.
"""

from __future__ import annotations

from datetime import datetime

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.creation import create
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import find_meta
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Submission

MAX_RECENT = 1000
"""The maximum number of jobs that one request lists."""


def list_jobs(store: ObjectStore) -> tuple[str, ...]:
    """Return the ids of all jobs in the store, sorted.

    A job whose submission was interrupted is also listed; reading that job raises JobNotFound.
    """
    found = (keys.index.match(meta.key) for meta in with_retries(store).list_objects(keys.index_prefix()))
    return tuple(match[0] for match in found if match is not None)


def resumed_writer(first: str, resumption: int) -> str:
    """Return the writer of a resumed submission: no nonce, so that every driver can compute all marks."""
    return f"{first}-{resumption}"


def mark_live(store: ObjectStore, job_id: str, writer: str) -> None:
    """Mark the job live for the submission of ``writer``; safe to repeat: the first mark stays."""
    create(store, keys.live(job_id, writer), b"")


def unmark_live(store: ObjectStore, job_id: str, writer: str) -> None:
    """Remove the mark, because the job is settled; safe to repeat."""
    with_retries(store).delete(keys.live(job_id, writer))


def list_live(store: ObjectStore) -> dict[str, datetime]:
    """Return the ids of the jobs marked live, sorted, with the time of the mark by the store's clock."""
    live: dict[str, datetime] = {}
    for meta in with_retries(store).list_objects(keys.live_prefix()):
        match = keys.live.match(meta.key)
        if match is not None:
            live[match[0]] = max(meta.modified_at, live.get(match[0], meta.modified_at))
    return live


def is_marked_live(store: ObjectStore, job_id: str) -> bool:
    """Return whether the job is marked live; takes one request."""
    return bool(with_retries(store).list_page(keys.live_marks_prefix(job_id), limit=1).objects)


def note_recent(store: ObjectStore, submission: Submission) -> None:
    """Add the job to the list that ``list_recent`` reads; safe to repeat."""
    with_retries(store).put(_recent_key(submission), b"")


def forget_recent(store: ObjectStore, submission: Submission) -> None:
    """Remove the job from the list that ``list_recent`` reads."""
    with_retries(store).delete(_recent_key(submission))


def list_recent(store: ObjectStore) -> tuple[tuple[str, ...], bool]:
    """Return the ids of the most recent jobs, newest first, and whether the list has all jobs.

    The call takes one request. The order follows the times that the submitters stated.
    """
    page = with_retries(store).list_page(keys.recent_prefix(), limit=MAX_RECENT)
    found = [keys.recent.match(meta.key) for meta in page.objects]
    return tuple(match[1] for match in found if match is not None), page.next_after is None


def forget_job(store: ObjectStore, job_id: str) -> None:
    """Delete all marks of a job without a submission, and its entries in the list of recent jobs."""
    store = with_retries(store)
    for meta in list(store.list_objects(keys.live_marks_prefix(job_id))):
        store.delete(meta.key)
    for meta in list(store.list_objects(keys.recent_prefix())):
        match = keys.recent.match(meta.key)
        if match is not None and match[1] == job_id:
            store.delete(meta.key)


def drop_marks_of_missing_job(store: ObjectStore, job_id: str) -> None:
    """Delete the marks of a job that is not in the store, unless a submission has reserved its id."""
    store = with_retries(store)
    marks = [meta.key for meta in store.list_objects(keys.live_marks_prefix(job_id))]
    # The order matters: a submission reserves its id before it puts its mark, so these marks have no job.
    if find_meta(store, keys.index(job_id)) is None:
        for key in marks:
            store.delete(key)


def _recent_key(submission: Submission) -> str:
    return keys.recent(submission.milliseconds, submission.job_id)
