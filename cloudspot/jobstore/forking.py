"""Give a new job a checkpoint of another, as its generation 0: what it resumes from before its first own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import datetime, timezone

import msgspec

from cloudspot.errors import CorruptData
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import keys
from cloudspot.jobstore.bundle import Bundle
from cloudspot.jobstore.chunks import StoredChunk, read_chunk, stored_chunks
from cloudspot.jobstore.integrity import check_commit
from cloudspot.jobstore.parallel import each
from cloudspot.jobstore.parts import NUM_THREADS
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.records import CheckpointId, Commit, Origin, Part, Submission, new_nonce
from cloudspot.jobstore.seals import read_seal
from cloudspot.jobstore.stored_records import create_record
from cloudspot.jobstore.submission import code_key


def code_of(store: ObjectStore, submission: Submission) -> Bundle:
    """Return the code of a job, as it was submitted.

    Raises:
        CorruptData: it is not what the submission names.
        ObjectMissing: it is gone.
    """
    data = patient(store).get(code_key(submission))
    if hashlib.sha256(data).hexdigest() != submission.code_sha256:
        raise CorruptData(f"{store.url}: {code_key(submission)} is not the code it is named after")
    return Bundle(data=data, sha256=submission.code_sha256, files=(), skipped=())


def bring_checkpoint(
    store: ObjectStore,
    origin: Origin,
    commit: Commit,
    job_id: str,
    *,
    progress: Callable[[int], None] = lambda _count: None,
) -> CheckpointId:
    """Copy the committed checkpoint ``origin`` to the job; return what it is called there.

    Each chunk is compared with its checksum on its way. Nobody else may write to the job meanwhile: its id is
    reserved, and it does not exist yet. ``progress`` is told the bytes.

    Raises:
        CorruptData: the checkpoint does not verify.
    """
    check_commit(commit)
    store = patient(store)
    copy = _renumbered(commit)

    def carry(pair: tuple[StoredChunk, StoredChunk]) -> None:
        source, target = pair
        with read_chunk(store, source, bytearray(source.chunk.size + 1)) as data:
            store.put(target.key, data)
        progress(source.chunk.size)

    pairs = zip(stored_chunks(origin.job_id, commit), stored_chunks(job_id, copy), strict=True)
    each(carry, tuple(pairs), num_threads=NUM_THREADS)
    create_record(store, keys.commit(job_id, copy.generation, copy.step), copy)
    return copy.id


def _renumbered(commit: Commit) -> Commit:
    """Return the manifest as that of a generation 0 and of no round, which no training of the new job has."""
    copy = msgspec.structs.replace(
        commit,
        generation=0,
        round=0,
        parts=tuple(_of_generation_0(part) for part in commit.parts),
        at=datetime.now(timezone.utc),
        writer=new_nonce(),
    )
    check_commit(copy)
    return copy


def _of_generation_0(part: Part) -> Part:
    # By Python's own writer, as the trainer: the state may hold infinity.
    seal = None if part.seal is None else json.dumps({**read_seal(part).raw, "generation": 0, "round": 0})
    return msgspec.structs.replace(part, generation=0, round=0, seal=seal)
