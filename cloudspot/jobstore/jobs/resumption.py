"""Resume a job: put everything that it needs, and last the journal record that resumes it.

Since the record has the next number of the journal, only one of several concurrent resumptions wins, and a
driver that decided on earlier records can write nothing more. A resumption that is interrupted before the
record leaves objects that nothing reads; the next attempt finds them or overwrites them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from cloudspot import __version__
from cloudspot.errors import CloudspotError, JobNotFound, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobfile.spec import JobSpec, spec_to_json
from cloudspot.jobstore.access.creation import create
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.store_clock import clock_of, store_time
from cloudspot.jobstore.access.stored_records import find_meta
from cloudspot.jobstore.code.bundle import OpenProgress, no_progress
from cloudspot.jobstore.jobs.job_lists import mark_live, resumed_writer, unmark_live
from cloudspot.jobstore.jobs.submission import (
    agent_key,
    check_secrets,
    code_key,
    delete_secrets,
    hash_of,
    put_agent,
    put_secrets,
    staged,
)
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Moved, Resumed, Seat, Submission, new_nonce
from cloudspot.jobstore.nodes.keeping import kept_now, kept_text

if TYPE_CHECKING:
    from cloudspot.boot.agentarchive import AgentArchive

CHANGED = "job {!r} has changed in the meantime; check it and try again"
"""The message to the loser of a race."""


def check_resumable(store: ObjectStore, history: History) -> None:
    """Check that no machine of the job runs, that it has not succeeded, and that it may continue here.

    Raises:
        CloudspotError: the job has succeeded or was moved to another store, or one of its machines may still
            run or is kept for inspection.
    """
    job_id = history.submission.job_id
    if history.moved_to not in {None, store.canonical_url}:
        raise CloudspotError(
            f"job {job_id!r} was moved to {history.moved_to}, and can only be resumed there: "
            f"cloudspot resume {job_id} --store {history.moved_to}"
        )
    if history.finished is not None and history.finished.outcome == "succeeded":
        raise CloudspotError(
            f"job {job_id!r} has succeeded, so there is nothing to resume; start a new job from one of its "
            f"checkpoints with: cloudspot fork {job_id} --store {store.url}"
        )
    if history.submission.bakes:
        raise CloudspotError(
            f"job {job_id!r} was submitted by `cloudspot image bake`: run that again instead"
        )
    # Use the store's clock, because this computer's own clock may be wrong.
    kept = None if history.kept is None else kept_now(history, store_time(store))
    if kept is not None:
        raise CloudspotError(
            f"job {job_id!r}: {kept_text(kept)}, and is billed; end it first with: cloudspot stop {job_id} "
            f"--store {store.url}"
        )
    if history.live_launches:
        launch = history.live_launches[0]
        node = Seat(launch.number, launch.live_ranks[0])
        if history.finished is None:
            raise CloudspotError(f"node {node} of job {job_id!r} may still run: stop the job first")
        raise CloudspotError(
            f"job {job_id!r} has ended, but its node {node} may still run; "
            "let `cloudspot reconcile` end it first"
        )


def resume(
    store: ObjectStore,
    history: History,
    *,
    spec: JobSpec,
    provider: str,
    environ: Mapping[str, str],
    agent: AgentArchive | None = None,
    adopt: Callable[[Submission, str], None] = lambda _submission, _sha256: None,
    open_progress: OpenProgress = no_progress,
) -> Submission:
    """Resume the job with this job file, on this provider; return the submission that counts from now on.

    ``history`` is the basis of the caller's decision: if the journal has grown since, nothing is resumed. The
    submitted code is used again. The other arguments are those of ``submit``; ``adopt`` is called before the
    job is resumed, and again afterwards.

    Raises:
        CloudspotError: as in ``check_resumable``, or because the job has changed in the meantime.
        SpecError: a secret is not set in ``environ``.
        TransientError: the store failed; the job's records show whether the job was resumed.
    """
    check_resumable(store, history)
    check_secrets(spec.secret_names, environ)
    store = with_retries(store)
    store_id = store.establish()
    clock = clock_of(store)
    clock.compare(store)
    submission = _next_submission(history, spec, provider, agent, store_id=store_id, at=clock.now())
    job_id, number = submission.job_id, history.num_records + 1
    _check_existence(store, job_id)
    try:
        store.head(code_key(submission))
    except ObjectMissing:
        raise CloudspotError(f"the code of job {job_id!r} is no longer in {store.url}") from None
    try:
        if agent is not None and submission.agent is not None:
            put_agent(store, agent_key(submission, submission.agent), agent, open_progress=open_progress)
        data = codec.encode(submission)
        sha256 = hash_of(data)
        # An object from an earlier attempt may exist; it differs at most in its time.
        standing = create(store, keys.submission(job_id, sha256), data)
        submission = codec.decode(standing or data, Submission)
        put_secrets(store, submission, environ)
        adopt(submission, sha256)
        _check_existence(store, job_id)  # uploads and people take time
        # As in a first submission, the mark comes just before the record, so that drivers of live jobs find
        # it.
        mark_live(store, job_id, submission.writer)
    except BaseException:  # Ctrl-C too.
        with suppress(CloudspotError):
            _take_back(store, submission)
        raise
    record = Resumed(
        resumption=submission.resumption,
        submission_sha256=sha256,
        at=clock_of(store).now(),
        writer=new_nonce(),
    )
    if not Journal(store, job_id).append(record, number):
        with suppress(CloudspotError):
            _take_back(store, submission)
        raise CloudspotError(CHANGED.format(job_id))
    try:
        _check_existence(store, job_id)
    except JobNotFound:
        store.delete(keys.journal(job_id, number))
        _take_back(store, submission)
        raise
    # Repeat both steps, in case the loser of a race has removed the secrets, or a driver that had not seen
    # the record has noted the job's end.
    put_secrets(store, submission, environ)
    adopt(submission, sha256)
    return submission


def _check_existence(store: ObjectStore, job_id: str) -> None:
    """Raise JobNotFound if the job was removed after it was read: nobody would find the new objects."""
    if find_meta(store, keys.spec(job_id)) is None:
        raise JobNotFound(f"job {job_id!r} is no longer in {store.url}")


def _take_back(store: ObjectStore, submission: Submission) -> None:
    """Delete the secrets and the mark, which would stay forever, unless another try made this resumption."""
    number, job_id = submission.resumption, submission.job_id
    journal = Journal(store, job_id).read()
    if not any(isinstance(record, Resumed) and record.resumption == number for record in journal):
        delete_secrets(store, job_id, resumption=number)
        unmark_live(store, job_id, submission.writer)


def move_away(store: ObjectStore, history: History, to: ObjectStore) -> bool:
    """Allow the ended job to be resumed only in the store ``to`` from now on; return False on a lost race.

    The caller must copy the job there after this. If an earlier call named the same store, nothing happens.

    Raises:
        CloudspotError: as in ``check_resumable``.
    """
    if history.moved_to == to.canonical_url:
        return True
    check_resumable(store, history)
    assert history.finished is not None, "only an ended job can be moved"
    record = Moved(to=to.canonical_url, at=clock_of(store).now(), writer=new_nonce())
    return Journal(store, history.submission.job_id).append(record, history.num_records + 1)


def _next_submission(
    history: History,
    spec: JobSpec,
    provider: str,
    agent: AgentArchive | None,
    *,
    store_id: str | None,
    at: datetime,
) -> Submission:
    first = history.first_submission
    return Submission(
        job_id=first.job_id,
        provider=provider,
        spec=spec_to_json(spec),
        code_sha256=first.code_sha256,
        code_bytes=first.code_bytes,
        secret_names=spec.secret_names,
        version=__version__,
        agent=staged(agent),
        has_own_code=first.has_own_code,
        forked_from=first.forked_from,
        store_id=store_id,
        num_launches_before=len(history.launches),
        resumption=history.submission.resumption + 1,
        at=at,
        writer=resumed_writer(first.writer, history.submission.resumption + 1),
    )
