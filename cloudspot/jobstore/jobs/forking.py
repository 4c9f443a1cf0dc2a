"""Give a new job the checkpoint of another one, as its generation 0: its journal starts with the commit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import datetime

import msgspec

from cloudspot.errors import CorruptData
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.store_clock import clock_of
from cloudspot.jobstore.checkpoints.chunks import StoredChunk, read_stored, stored_chunks
from cloudspot.jobstore.checkpoints.integrity import check_manifest
from cloudspot.jobstore.checkpoints.manifests import commit_of
from cloudspot.jobstore.checkpoints.parts import NUM_THREADS
from cloudspot.jobstore.code.bundle import Bundle
from cloudspot.jobstore.jobs.submission import code_key
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import CheckpointId, Manifest, Origin, Part, Submission, new_nonce


def code_of(store: ObjectStore, submission: Submission) -> Bundle:
    """Return the submitted code of a job.

    Raises:
        CorruptData: the code does not match the hash in the submission.
        ObjectMissing: the code no longer exists.
    """
    data = with_retries(store).get(code_key(submission))
    if hashlib.sha256(data).hexdigest() != submission.code_sha256:
        raise CorruptData(f"{store.url}: {code_key(submission)} does not match the hash in its name")
    return Bundle(data=data, sha256=submission.code_sha256, files=(), skipped=())


def bring_checkpoint(
    store: ObjectStore,
    origin: Origin,
    manifest: Manifest,
    job_id: str,
    *,
    progress: Callable[[int], None] = lambda _count: None,
) -> CheckpointId:
    """Copy the committed checkpoint ``origin`` to the job; return the checkpoint's id there.

    Each chunk is verified during the copy. No other process writes to the job in the meantime, because its id
    is reserved and it does not exist yet. ``progress`` is called with the bytes copied.

    Raises:
        CorruptData: the checkpoint fails verification.
    """
    check_manifest(manifest)
    store = with_retries(store)
    copy = _renumbered(manifest, at=clock_of(store).now())

    def carry(pair: tuple[StoredChunk, StoredChunk]) -> None:
        source, target = pair
        data = bytearray()
        for block in read_stored(store, source):
            data += block
        store.put(target.key, data)
        progress(source.chunk.size)

    pairs = zip(stored_chunks(origin.job_id, manifest), stored_chunks(job_id, copy), strict=True)
    map_parallel(carry, tuple(pairs), num_threads=NUM_THREADS)
    record = commit_of(copy, at=copy.at)
    # Put rather than create, because an earlier submission with this id may have been interrupted later on.
    store.put(keys.manifest(job_id, copy.generation, copy.step), codec.encode(copy))
    store.put(keys.journal(job_id, 1), codec.encode(record))
    return copy.id


def _renumbered(manifest: Manifest, *, at: datetime) -> Manifest:
    """Return the manifest with generation 0 and no round, a pair that no training of the new job uses."""
    copy = msgspec.structs.replace(
        manifest,
        generation=0,
        round=0,
        parts=tuple(_of_generation_0(part) for part in manifest.parts),
        at=at,
        writer=new_nonce(),
    )
    check_manifest(copy)
    return copy


def _of_generation_0(part: Part) -> Part:
    # Use Python's JSON encoder, as the trainer does, because the state may contain infinity.
    seal = None if part.seal is None else json.dumps({**json.loads(part.seal), "generation": 0, "round": 0})
    chunks = tuple(msgspec.structs.replace(chunk, home=None) for chunk in part.chunks)
    return msgspec.structs.replace(part, generation=0, round=0, seal=seal, chunks=chunks)
