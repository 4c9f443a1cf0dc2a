"""Submit a job: store everything that it needs, and last the record that makes the job exist."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cloudspot import __version__
from cloudspot.decoding import decode
from cloudspot.errors import CloudspotError, CorruptData, JobExists, JobNotFound, SpecError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobfile.spec import MAX_STRING_BYTES, JobSpec, spec_to_json
from cloudspot.jobstore.access.creation import create
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.store_clock import clock_of, utc_now
from cloudspot.jobstore.access.store_probe import probe
from cloudspot.jobstore.access.stored_records import create_record, find_bytes, find_meta, find_record
from cloudspot.jobstore.code.bundle import (
    Bundle,
    OpenProgress,
    make_bundle,
    no_progress,
    put_bundle,
)
from cloudspot.jobstore.jobs.job_lists import forget_recent, mark_live, note_recent, unmark_live
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import (
    FORMAT,
    Origin,
    StagedAgent,
    StopReason,
    StopRequest,
    Submission,
    new_nonce,
)

if TYPE_CHECKING:
    # Every command that reads a job imports this module; agentarchive is slow to import.
    from cloudspot.boot.agentarchive import AgentArchive

MAX_SECRET_BYTES = 512 << 10
"""The limit for the total size of a job's secrets; see ``MAX_START_BYTES`` of the job file."""


class _Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """``jobs/<id>/secrets``: the only object that ever holds the secrets' values."""

    values: dict[str, str]

    def __repr__(self) -> str:
        return f"_Secrets({', '.join(self.values)})"


class _Stated(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a submission of any format has."""

    version: str = ""
    format: int = 1


def submit(
    store: ObjectStore,
    *,
    spec: JobSpec,
    provider: str,
    workdir: Path,
    environ: Mapping[str, str],
    job_id: str,
    agent: AgentArchive | None = None,
    adopt: Callable[[Submission, str], None] = lambda _submission, _sha256: None,
    open_progress: OpenProgress = no_progress,
    bakes: bool = False,
) -> Submission:
    """Submit the job under ``job_id`` and return its record.

    Bundle the code in ``workdir`` and submit it with ``submit_bundle``, which describes the other arguments.

    Raises:
        BundleError: the code cannot be bundled.
    """
    check_secrets(spec.secret_names, environ)
    bundle = make_bundle(workdir, entrypoint=spec.run.entrypoint, open_progress=open_progress)
    submission = new_submission(
        spec, provider=provider, bundle=bundle, job_id=job_id, agent=agent, bakes=bakes
    )
    return submit_bundle(
        store,
        submission,
        bundle=bundle,
        environ=environ,
        agent=agent,
        adopt=adopt,
        open_progress=open_progress,
    )


def submit_bundle(
    store: ObjectStore,
    submission: Submission,
    *,
    bundle: Bundle,
    environ: Mapping[str, str],
    agent: AgentArchive | None,
    adopt: Callable[[Submission, str], None] = lambda _submission, _sha256: None,
    open_progress: OpenProgress = no_progress,
    bring: Callable[[], None] = lambda: None,
) -> Submission:
    """Put everything that a new submission needs, and last the submission itself; return the stored record.

    Local errors are found before anything is stored. The job exists once its record does; an interrupted
    submission leaves only the reserved id and possibly objects that nothing reads. ``submission`` is a result
    of ``new_submission``. ``environ`` contains the secrets. ``agent`` is staged for machines whose image
    lacks cloudspot. ``adopt`` is called with the submission and its hash before the submission is put.
    ``open_progress`` shows the progress of bundling and uploading. ``bring`` puts other objects that the job
    needs, once its id is reserved.

    Raises:
        SpecError: the id is not a DNS label, or a secret is not set in ``environ``.
        StoreRefused: the store breaks a promise of object stores.
        JobExists: the id is already in use.
        TransientError: the store failed. The job was not submitted, unless the message says that this is
            unknown.
    """
    job_id = submission.job_id
    if keys.JOB_ID.fullmatch(job_id) is None:
        raise SpecError(
            "a job id must be 1 to 63 lower-case letters, digits and hyphens (not at either end): got "
            f"{job_id!r}"
        )
    check_secrets(submission.secret_names, environ)
    store = with_retries(store)
    submission = msgspec.structs.replace(submission, store_id=store.establish())
    probe(store)
    clock_of(store).compare(store)
    submission = msgspec.structs.replace(submission, at=clock_of(store).now())
    # If the answer to the put is lost, the content distinguishes our reservation from other reservations.
    if create(store, keys.index(job_id), submission.writer.encode()) is not None:
        raise JobExists(f"job {job_id!r} already exists in {store.url}; choose another name")
    try:
        # The id is reserved, so a removal that looks for shared objects from now on finds this job.
        has_own_code = any(
            store.list_page(keys.removals_prefix(key), limit=1).objects for key in shared_keys(submission)
        )
        submission = msgspec.structs.replace(submission, has_own_code=has_own_code)
        put_bundle(store, code_key(submission), bundle, open_progress=open_progress)
        if agent is not None and submission.agent is not None:
            put_agent(store, agent_key(submission, submission.agent), agent, open_progress=open_progress)
        bring()
        put_secrets(store, submission, environ)
        data = codec.encode(submission)
        adopt(submission, hash_of(data))
        note_recent(store, submission)
        # Put the mark just before the submission itself: from then on, drivers of live jobs find the job.
        mark_live(store, submission.job_id, submission.writer)
    except BaseException:  # Ctrl-C too.
        # Without a record, the job does not exist, and its id may be used again.
        with suppress(CloudspotError):
            unmark_live(store, submission.job_id, submission.writer)
            forget_recent(store, submission)
            for meta in list(store.list_objects(keys.job_prefix(job_id))):
                store.delete(meta.key)
            store.delete(keys.index(job_id))
        raise
    if create(store, keys.spec(job_id), data) is not None:
        raise JobExists(f"job {job_id!r} already exists in {store.url}; choose another name")
    return codec.decode(data, Submission)  # Return the record as readers get it: JSON has no tuples.


def hash_of(data: bytes) -> str:
    """Return a hash, in hex, of everything in a submission except its time, its writer and its store.

    Drivers and nodes identify the submission by this hash. A dry run gives the same hash as the actual
    submission.
    """
    return hashlib.sha256(msgspec.json.encode(content_of(data), order="deterministic")).hexdigest()


def content_of(data: bytes) -> dict[str, Any]:
    """Return the values that ``hash_of`` covers, by the names of the record's fields."""
    fields: dict[str, Any] = decode(data, dict[str, Any])
    return {name: value for name, value in fields.items() if name not in {"at", "writer", "store_id"}}


def read_first_submission(store: ObjectStore, job_id: str) -> tuple[Submission, str]:
    """Return the job's first submission, with its ``hash_of`` as stored.

    ``HistoryReader.read_job`` returns the newest submission and also checks its job file.

    Raises:
        CorruptData: the submission is malformed, belongs to another job, or has another format.
        JobNotFound: there is no such job, or its submission was interrupted.
    """
    data = find_bytes(with_retries(store), keys.spec(job_id))
    if data is None:
        raise JobNotFound(f"no job {job_id!r} in {store.url}")
    return _decode(data, job_id, keys.spec(job_id)), hash_of(data)


def read_submission_of(store: ObjectStore, job_id: str, sha256: str) -> Submission:
    """Return the job's submission with this hash: its first submission, or one that resumed it.

    Raises:
        CorruptData: the submission is malformed, belongs to another job, has another format, or does not
            match the hash.
        JobNotFound: there is no such job.
    """
    first, first_sha256 = read_first_submission(store, job_id)
    if first_sha256 == sha256:
        return first
    key = keys.submission(job_id, sha256)
    data = find_bytes(with_retries(store), key)
    if data is None:
        raise CorruptData(f"neither {keys.spec(job_id)} nor {key} is the requested submission")
    if hash_of(data) != sha256:
        raise CorruptData(f"{key} does not match the hash in its name")
    return _decode(data, job_id, key)


def _decode(data: bytes, job_id: str, key: str) -> Submission:
    stated = codec.decode(data, _Stated, key=key)
    if stated.format != FORMAT:
        age = "an older" if stated.format < FORMAT else "a newer"
        raise CorruptData(
            f"job {job_id!r} was submitted by {age} cloudspot (format {stated.format}), and this version "
            f"cannot drive it; finish or remove it with cloudspot {stated.version}"
        )
    submission = codec.decode(data, Submission, key=key)
    if submission.job_id != job_id:
        raise CorruptData(f"{key} holds the submission of another job: {submission.job_id!r}")
    if (submission.resumption == 0) != (key == keys.spec(job_id)):
        raise CorruptData(f"{key} has an impossible resumption: {submission.resumption}")
    return submission


def submission_key(submission: Submission) -> str:
    """Return the key under which the submission is stored."""
    if submission.resumption == 0:
        return keys.spec(submission.job_id)
    return keys.submission(submission.job_id, hash_of(codec.encode(submission)))


def new_submission(
    spec: JobSpec,
    *,
    provider: str,
    bundle: Bundle,
    job_id: str,
    agent: AgentArchive | None = None,
    forked_from: Origin | None = None,
    bakes: bool = False,
) -> Submission:
    """Return the record that ``submit`` puts for this code; pure except for the time and the nonce."""
    return Submission(
        job_id=job_id,
        provider=provider,
        spec=spec_to_json(spec),
        code_sha256=bundle.sha256,
        code_bytes=bundle.size,
        secret_names=spec.secret_names,
        version=__version__,
        at=utc_now(),
        writer=new_nonce(),
        agent=staged(agent),
        forked_from=forked_from,
        bakes=bakes,
    )


def staged(agent: AgentArchive | None) -> StagedAgent | None:
    """Return the description of the staged archive for the submission."""
    if agent is None:
        return None
    return StagedAgent(sha256=agent.sha256, digest=agent.digest, requirements=agent.requirements)


def code_key(submission: Submission) -> str:
    """Return the key of the job's code."""
    return keys.own_code(submission.job_id) if submission.has_own_code else keys.code(submission.code_sha256)


def agent_key(submission: Submission, agent: StagedAgent) -> str:
    """Return the key of the staged agent; an agent staged for a resumption belongs to that job alone."""
    is_own = submission.has_own_code or submission.resumption > 0
    return keys.own_agent(submission.job_id, agent.sha256) if is_own else keys.agent(agent.sha256)


def shared_keys(submission: Submission) -> frozenset[str]:
    """Return the keys of the objects that the job shares, or may share, with other jobs."""
    if submission.has_own_code:
        return frozenset()
    agent = submission.agent
    return frozenset(
        {code_key(submission)} if agent is None else {code_key(submission), agent_key(submission, agent)}
    )


def put_secrets(store: ObjectStore, submission: Submission, environ: Mapping[str, str]) -> None:
    """Put the submission's secrets, with their values from ``environ``."""
    if submission.secret_names:
        secrets = _Secrets(values={name: environ[name] for name in submission.secret_names})
        store.put(keys.secrets(submission.job_id, submission.resumption), codec.encode(secrets))


def put_agent(store: ObjectStore, key: str, agent: AgentArchive, *, open_progress: OpenProgress) -> None:
    """Put the archive unless it exists already; nodes verify its bytes."""
    meta = find_meta(store, key)
    if meta is None or meta.size != len(agent.data):
        with open_progress("uploading the agent", None):  # a single request has no progress
            create(store, key, agent.data)


def read_secrets(
    store: ObjectStore, job_id: str, names: Collection[str], *, resumption: int
) -> dict[str, str]:
    """Return the job's secrets with these names; empty if the job has no secrets or has ended.

    Other values in the object are ignored, because they would set variables of the training, such as
    LD_PRELOAD.

    Raises:
        CorruptData: the object is malformed; the message does not quote it.
    """
    secrets = find_record(with_retries(store), keys.secrets(job_id, resumption), _Secrets)
    return {} if secrets is None else {k: v for k, v in secrets.values.items() if k in names}


def delete_secrets(store: ObjectStore, job_id: str, *, resumption: int) -> None:
    """Delete the secrets of the resumption (0: the first submission) and of earlier ones; safe to repeat."""
    for number in range(resumption + 1):
        with_retries(store).delete(keys.secrets(job_id, number))


def request_stop(
    store: ObjectStore, job_id: str, reason: StopReason, *, resumption: int, detail: str = ""
) -> StopRequest:
    """Ask the job to save a checkpoint and end; return the first request since the newest resumption."""
    request = StopRequest(reason=reason, detail=detail, at=clock_of(store).now(), writer=new_nonce())
    return create_record(store, keys.stop(job_id, resumption), request)


def check_secrets(names: Collection[str], environ: Mapping[str, str]) -> None:
    """Check that the secrets with these names are set in the environment and are short enough for variables.

    Raises:
        SpecError: the message names the secrets that are not set, or one that is too long for a variable.
    """
    missing = [name for name in names if name not in environ]
    if missing:
        raise SpecError(f"secrets: {', '.join(missing)} is not set in the environment; export it first")
    sizes = {name: len(f"{name}={environ[name]}".encode(errors="surrogateescape")) for name in names}
    for name, num_bytes in sizes.items():
        if num_bytes > MAX_STRING_BYTES:
            raise SpecError(
                f"secrets: {name} has {num_bytes} bytes, but Linux allows no variable of more than "
                f"{MAX_STRING_BYTES}"
            )
    if sum(sizes.values()) > MAX_SECRET_BYTES:
        raise SpecError(
            f"secrets: they have {sum(sizes.values())} bytes in total; the limit is {MAX_SECRET_BYTES}"
        )
