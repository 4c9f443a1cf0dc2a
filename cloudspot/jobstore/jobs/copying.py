"""Copy a job to another store: its history, and everything that it needs to continue there.

All objects below a job's prefix are copied unchanged, except its secrets, its agents (a resumption stages new
ones), records that drivers compute anew (the summary, the suspicions, copies of the journal and of settled
launches), and its checkpoints, of which only the best one is copied. Objects are created, never replaced.
After an interruption, the next copy compares the existing objects by content and copies the rest. The
submission is copied last; until then, the target has no such job. The copy is not marked live, because no
part of it runs until it is resumed.

A job may return to a store that it has left: the journal there is then the beginning of the present one. In
that case the first missing record is written last, because readers take a gap for the end of the journal.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cloudspot.calls.retrying import retry
from cloudspot.errors import (
    CloudspotError,
    CorruptData,
    JobExists,
    ObjectExists,
    ObjectMissing,
    TransientError,
)
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.creation import WAITS, create
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import RetryingStore, with_retries
from cloudspot.jobstore.access.store_probe import probe
from cloudspot.jobstore.access.stored_records import find_bytes, find_meta
from cloudspot.jobstore.checkpoints.chunks import (
    BLOCK_BYTES,
    StoredChunk,
    check_sizes,
    read_stored,
    stored_chunks,
)
from cloudspot.jobstore.checkpoints.manifests import read_manifest
from cloudspot.jobstore.checkpoints.retention import standing_checkpoints
from cloudspot.jobstore.jobs.job_lists import note_recent, resumed_writer
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.submission import code_key
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, JournalRecord, Manifest, Skipped, Submission
from cloudspot.plugin.multipart import PART_BYTES

NUM_THREADS = 4
"""The upload of a large object takes 80 MiB of memory per thread."""


class DamagedCheckpoint(CorruptData):
    """A chunk of the checkpoint is missing or changed: make a new plan without this checkpoint."""

    def __init__(self, checkpoint: CheckpointId, problem: str) -> None:
        super().__init__(f"checkpoint {checkpoint}: {problem}")
        self.checkpoint = checkpoint


class _Differs(CloudspotError):
    """The target has an object of the same key with different content."""


@dataclass(frozen=True)
class CopiedObject:
    """An object to copy; its key stays the same."""

    key: str
    size: int
    sha256: str | None = None
    """The SHA-256 of the content, if the key or the submission states it."""
    chunk: StoredChunk | None = None
    """The checkpoint chunk that the object holds, if any, as listed in the manifest."""
    is_artifact: bool = False
    """Whether the object is an artifact, which may have been overwritten since an earlier copy."""


@dataclass(frozen=True)
class CopyPlan:
    """The objects of which a copy of a job consists."""

    submission: Submission
    """The job's first submission."""
    spec: CopiedObject
    """The object that holds the first submission."""
    objects: tuple[CopiedObject, ...]
    """Code, records, logs and artifacts: all objects outside the journal and the checkpoints."""
    journal: tuple[CopiedObject, ...]
    """The journal's records, in order."""
    checkpoint: CheckpointId | None
    """The checkpoint to copy, or None if no checkpoint of the job is whole."""
    chunks: tuple[CopiedObject, ...]
    """The checkpoint's chunks."""
    manifests: tuple[CopiedObject, ...]
    """The checkpoint's manifest, if there is a checkpoint."""
    skipped: tuple[Skipped, ...]
    """Better checkpoints that are not whole, best first."""

    @property
    def everything(self) -> tuple[CopiedObject, ...]:
        """All objects, in an order in which they may be written."""
        return (*self.objects, *self.chunks, *self.manifests, *self.journal, self.spec)

    @property
    def num_bytes(self) -> int:
        """The number of bytes to read from the source and write to the target."""
        return sum(one.size for one in self.everything)

    @property
    def num_reads(self) -> int:
        """The approximate number of requests that read the objects."""
        return sum(max(1, -(-one.size // BLOCK_BYTES)) for one in self.everything)

    @property
    def num_writes(self) -> int:
        """The approximate number of requests that write the objects; a large object is uploaded in parts."""
        return sum(1 if one.size <= PART_BYTES else -(-one.size // PART_BYTES) + 2 for one in self.everything)


def plan_copy(
    source: ObjectStore,
    job_id: str,
    *,
    damaged: Collection[CheckpointId] = (),
    is_estimate: bool = False,
) -> CopyPlan:
    """Return the plan of a copy of the job to another store, without the checkpoints in ``damaged``.

    With ``is_estimate``, the copy is planned as of this moment even if the job has not ended; such a plan
    must not be executed.

    The plan has the best checkpoint of the lineage whose manifest is sound and whose chunks exist. The
    chunks' bytes are only verified by the copy itself.

    Raises:
        CloudspotError: the job is neither finished nor suspended, or some of its resources are not released.
        CorruptData: a record is malformed, or the job's code is gone.
        JobNotFound: there is no such job.
    """
    source = with_retries(source)
    reader = HistoryReader(source, job_id)
    history = reader.read()
    if not is_estimate:
        _check_over(source, job_id, history)
    submission = history.first_submission
    best, skipped = _best_checkpoint(source, job_id, reader.journal.known, damaged)
    sizes = {meta.key: meta.size for meta in source.list_objects(keys.job_prefix(job_id))}
    code = code_key(submission)
    meta = find_meta(source, code)
    if meta is None:
        raise CorruptData(f"{source.url}: {code}, which job {job_id!r} needs, is missing")
    sizes[code] = meta.size
    copies = keys.journal_copies_prefix(job_id)
    checkpoints = (keys.manifests_prefix(job_id), keys.checkpoints_prefix(job_id))
    elsewhere = (*checkpoints, keys.own_agents_prefix(job_id), copies)
    left_out = {keys.summary(job_id), keys.suspicions(job_id), keys.settled_launches(job_id)}
    artifacts = keys.artifacts_prefix(job_id), keys.outputs_prefix(job_id)
    copied = {
        key: CopiedObject(
            key,
            size,
            submission.code_sha256 if key == code else None,
            is_artifact=key.startswith(artifacts),
        )
        for key, size in sorted(sizes.items())
        if keys.secrets.match(key) is None and key not in left_out and not key.startswith(elsewhere)
    }
    spec = copied.pop(keys.spec(job_id))
    journal = [key for key in copied if key.startswith(keys.journal_prefix(job_id))]
    manifests = [] if best is None else [keys.manifest(job_id, best.generation, best.step)]
    chunks = [] if best is None else stored_chunks(job_id, best)
    return CopyPlan(
        submission=submission,
        spec=spec,
        journal=tuple(copied.pop(key) for key in journal),
        objects=tuple(copied.values()),
        checkpoint=None if best is None else best.id,
        chunks=tuple(
            {
                # A compressed chunk may have another size than its record states.
                one.key: CopiedObject(one.key, sizes.get(one.key, one.chunk.size), chunk=one)
                for one in chunks
            }.values()
        ),
        manifests=tuple(CopiedObject(key, sizes[key]) for key in manifests),
        skipped=skipped,
    )


def describe_copy(plan: CopyPlan) -> str:
    """Return a line with the size of the copy, from which its price follows."""
    what = "without a checkpoint" if plan.checkpoint is None else f"with checkpoint {plan.checkpoint}"
    return (
        f"{len(plan.everything):,} objects, {plan.num_bytes / 2**20:,.1f} MiB, {what}: about "
        f"{plan.num_reads:,} requests read them and {plan.num_writes:,} write them"
    )


def copy(
    plan: CopyPlan,
    source: ObjectStore,
    target: ObjectStore,
    *,
    progress: Callable[[int], None] = lambda _count: None,
    num_threads: int = NUM_THREADS,
) -> None:
    """Copy the job to the target, verified; after an interruption, call it again.

    Before planning, the caller must ensure that nobody can resume the job in the source. If the
    target already has the planned job, nothing is written, even if the job has continued there. ``progress``
    is called with the bytes read, ``plan.num_bytes`` in total; these include objects that exist already.

    Raises:
        CloudspotError: an object in the target has different content (the message names its key), or shared
            code that the job needs may be about to be deleted there.
        CorruptData: an object in the source has changed since the plan was made, or does not match the hash
            in its name.
        DamagedCheckpoint: a chunk does not match its checksum.
        JobExists: the target has another job with that id.
        StoreRefused: the target breaks a promise of object stores.
        TransientError: a store failed.
    """
    source, target = with_retries(source), with_retries(target)
    job_id = plan.submission.job_id
    reserve(plan, source, target)
    standing = {meta.key: meta.size for meta in target.list_objects(keys.job_prefix(job_id))}
    copier = _ObjectCopier(source, target, standing, progress)
    if all(one.key in standing for one in (*plan.journal, plan.spec)):
        # Each writer of the journal knew all earlier records, so if the last records are equal, all records
        # are.
        copier.copy_object(plan.journal[-1])
        progress(plan.num_bytes - plan.journal[-1].size)
        return
    _check_not_removed(target, plan)
    code = code_key(plan.submission)
    meta = find_meta(target, code)
    if meta is not None:
        standing[code] = meta.size
    _check_no_others(target, plan, standing)
    missing = [one for one in plan.journal if one.key not in standing]
    # Copy a checkpoint's manifest after its chunks, so that every manifest in the target is whole.
    compared = [one for one in plan.journal if one.key in standing]
    for batch in (*plan.objects, *plan.chunks, *compared), plan.manifests, missing[1:]:
        map_parallel(copier.copy_object, batch, num_threads=num_threads)
    _check_whole(target, plan, standing, {*(one.key for one in missing[:1]), plan.spec.key})
    for one in missing[:1]:
        copier.copy_object(one)
    note_recent(target, plan.submission)
    copier.copy_object(plan.spec)


def reserve(plan: CopyPlan, source: ObjectStore, target: ObjectStore) -> None:
    """Reserve the job's id in the target, and check that the target keeps a store's promises; safe to repeat.

    Raises:
        JobExists: the target has another job with that id.
        StoreRefused: the target breaks a promise of object stores.
        TransientError: a store failed.
    """
    source, target = with_retries(source), with_retries(target)
    job_id = plan.submission.job_id
    if source.canonical_url == target.canonical_url:
        raise JobExists(f"job {job_id!r} is already in {target.url}, which is also the source")
    taken = JobExists(f"{target.url} has another job {job_id!r}; remove that one or copy to another store")
    if find_bytes(target, plan.spec.key) not in {None, source.get(plan.spec.key)}:
        raise taken
    probe(target)
    # From here on, the id is ours. As in a submission, the content distinguishes our reservation from other
    # reservations.
    if create(target, keys.index(job_id), plan.submission.writer.encode()) is not None:
        raise taken


class _ObjectCopier:
    """Copies objects from store to store. Thread-safe."""

    def __init__(
        self,
        source: RetryingStore,
        target: RetryingStore,
        standing: dict[str, int],
        progress: Callable[[int], None],
    ) -> None:
        self._source = source
        self._target = target
        self._standing = standing
        self._progress = progress
        self._lock = threading.Lock()

    def copy_object(self, copied: CopiedObject) -> None:
        """Create the object in the target, or compare it with the existing object; errors as in ``copy``."""
        try:
            self._copy_object(copied)
        except DamagedCheckpoint:
            self._copy_object(copied)  # the bytes may have been damaged in transit

    def _copy_object(self, copied: CopiedObject) -> None:
        if copied.key in self._standing:
            try:
                self._compare(copied, self._standing[copied.key], _ObjectProgress(copied, self._add_progress))
            except _Differs:
                if not copied.is_artifact:
                    raise
                # The job was in this store before, and has rewritten the file since.
                self._target.delete(copied.key)
                del self._standing[copied.key]
                self._copy_object(copied)
        elif copied.size <= BLOCK_BYTES:
            data = b"".join(self._blocks(copied))
            if create(self._target, copied.key, data) is not None:
                raise self._differs(copied)
            self._add_progress(len(data))
        else:
            self._stream(copied)

    def _stream(self, copied: CopiedObject) -> None:
        progress = _ObjectProgress(copied, self._add_progress)
        num_tries = 0

        def attempt() -> None:
            nonlocal num_tries
            num_tries += 1
            # An earlier attempt may have succeeded although its answer was lost.
            meta = find_meta(self._target, copied.key) if num_tries > 1 else None
            if meta is not None:
                self._compare(copied, meta.size, progress)
                return
            try:
                with self._target.open_upload(copied.key, if_absent=True) as upload:
                    for start, block in _with_offsets(self._blocks(copied)):
                        upload.write(block)
                        progress.reached(start + len(block))
                    upload.commit()
            except ObjectExists as error:
                raise TransientError(f"{self._target.url}: it is unknown who wrote {copied.key}") from error

        retry(attempt, waits=WAITS, sleep=self._target.sleep)

    def _compare(self, copied: CopiedObject, size: int, progress: _ObjectProgress) -> None:
        """Compare an existing object with its known checksum or, without one, with the source."""
        # Versions of zstd compress the same bytes differently; a chunk's checksum covers the raw bytes.
        if size != copied.size and not (copied.chunk is not None and copied.chunk.is_compressed):
            raise self._differs(copied)
        if copied.chunk is None and copied.sha256 is None:
            for start, block in _with_offsets(self._blocks(copied)):
                if self._target.get_range(copied.key, start, len(block)) != block:
                    raise self._differs(copied)
                progress.reached(start + len(block))
            return
        try:
            for start, block in _with_offsets(_blocks(self._target, copied)):
                progress.reached(start + len(block))
        except CorruptData as error:
            raise self._differs(copied) from error
        progress.reached(copied.size)  # the existing object may be shorter

    def _blocks(self, copied: CopiedObject) -> Iterator[bytes]:
        """Yield the bytes of the source object; they are verified at the end."""
        try:
            yield from _blocks(self._source, copied)
        except CorruptData as error:
            if copied.chunk is None:
                raise
            part = copied.chunk.part
            raise DamagedCheckpoint(CheckpointId(part.generation, part.step), str(error)) from error

    def _differs(self, copied: CopiedObject) -> _Differs:
        return _Differs(
            f"{self._target.url}: {copied.key} differs from the object in {self._source.url}; nothing was "
            "overwritten. Remove the job from the target, or copy to another store"
        )

    def _add_progress(self, num_bytes: int) -> None:
        with self._lock:
            self._progress(num_bytes)


class _ObjectProgress:
    """Reports each byte of an object once, however often the object is read."""

    def __init__(self, copied: CopiedObject, add: Callable[[int], None]) -> None:
        self._size = copied.size
        self._add_progress = add
        self._done = 0

    def reached(self, position: int) -> None:
        position = min(position, self._size)  # the existing object may be longer
        if position > self._done:
            self._add_progress(position - self._done)
            self._done = position


def _blocks(store: ObjectStore, copied: CopiedObject) -> Iterator[bytes]:
    """Yield an object's bytes in blocks; they are verified at the end.

    Raises:
        CorruptData: the object is missing, its size differs from the plan, or its content does not match the
            known hash.
    """
    if copied.chunk is not None:
        yield from read_stored(store, copied.chunk)
        return
    digest = hashlib.sha256()
    for start in range(0, max(copied.size, 1), BLOCK_BYTES):
        length = min(BLOCK_BYTES, copied.size - start)
        try:
            # The extra byte at the end reveals that an object has grown.
            block = store.get_range(copied.key, start, length + (start + length == copied.size))
        except ObjectMissing as error:
            raise CorruptData(f"{store.url}: {copied.key} was deleted after the copy was planned") from error
        if len(block) != length:
            raise CorruptData(f"{store.url}: {copied.key} changed after the copy was planned")
        digest.update(block)
        yield block
    if copied.sha256 not in {None, digest.hexdigest()}:
        raise CorruptData(f"{store.url}: {copied.key} does not have the SHA-256 {copied.sha256}")


def _with_offsets(blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    start = 0
    for block in blocks:
        yield start, block
        start += len(block)


def _check_over(source: ObjectStore, job_id: str, history: History) -> None:
    if history.live_launches or (history.finished is None and history.suspended is None):
        raise CloudspotError(f"job {job_id!r} in {source.url} has not ended; stop it first")
    # Drivers remove the marks last, when no machine of the job is left that could write. A suspended job
    # keeps its marks; the mark of an abandoned resumption means nothing.
    first, count = history.first_submission.writer, history.submission.resumption
    writers = [first, *(resumed_writer(first, number) for number in range(1, count + 1))]
    marks = {keys.live(job_id, writer) for writer in writers}
    listed = {meta.key for meta in source.list_objects(keys.live_marks_prefix(job_id))}
    if history.finished is not None and marks & listed:
        raise CloudspotError(
            f"job {job_id!r} in {source.url} has ended, but some of its resources are not released yet; run "
            "`cloudspot reconcile` until they are"
        )


def _best_checkpoint(
    source: ObjectStore, job_id: str, journal: Sequence[JournalRecord], damaged: Collection[CheckpointId]
) -> tuple[Manifest | None, tuple[Skipped, ...]]:
    """Return the manifest of the best checkpoint that looks whole, and the better checkpoints that do not."""
    skipped: list[Skipped] = []
    for checkpoint in standing_checkpoints(source, job_id, journal):
        try:
            if checkpoint in damaged:
                raise CorruptData("its content does not match its checksums")
            manifest = read_manifest(source, job_id, checkpoint)
            check_sizes(source, job_id, manifest, stored_chunks(job_id, manifest))
        except (CorruptData, ObjectMissing) as error:
            skipped.append(Skipped(checkpoint=checkpoint, reason=str(error)))
        else:
            return manifest, tuple(skipped)
    return None, tuple(skipped)


def _check_not_removed(target: ObjectStore, plan: CopyPlan) -> None:
    """Check that nobody is deleting the code that the job will share with other jobs in the target.

    If a removal looks for jobs only after this, it finds our reservation and keeps the code.
    """
    key = code_key(plan.submission)
    prefix = keys.removals_prefix(key)
    for meta in target.list_page(prefix, limit=1).objects:
        by = meta.key.removeprefix(prefix)
        remover, again = f"the removal of job {by!r}", "repeat it"
        if by.startswith(keys.REAPER):
            remover, again = "`cloudspot reap`", "run it again an hour later"
        raise CloudspotError(
            f"{target.url}: {remover} might delete {key}, which job {plan.submission.job_id!r} needs; wait "
            f"until {remover} has ended, or {again} if it was interrupted"
        )


def _check_no_others(target: ObjectStore, plan: CopyPlan, standing: Collection[str]) -> None:
    """Check that the target has no record that would change the history in the source's records."""
    job_id = plan.submission.job_id
    planned = {one.key for one in plan.everything}
    of_history = (
        keys.journal_prefix(job_id),
        keys.launches_prefix(job_id),
        keys.nodes_prefix(job_id),
    )
    for key in sorted(set(standing) - planned):
        if key.startswith(of_history):
            raise CloudspotError(
                f"{target.url}: {key} is not in the source of job {job_id!r}; remove the job from "
                f"{target.url}, or copy it to another store"
            )


def _check_whole(
    target: ObjectStore, plan: CopyPlan, standing: Mapping[str, int], later: Collection[str]
) -> None:
    """Check by a listing that all objects but ``later`` exist; those in ``standing`` are compared already."""
    prefix = keys.job_prefix(plan.submission.job_id)
    listed = {meta.key: meta.size for meta in target.list_objects(prefix)}
    wrong: Sequence[str] = [
        one.key
        for one in plan.everything
        if one.key not in later
        and one.key.startswith(prefix)
        and listed.get(one.key) != standing.get(one.key, one.size)
    ]
    if wrong:
        raise TransientError(
            f"{target.url}: {wrong[0]} is missing or differs from what was written; copy again"
        )
