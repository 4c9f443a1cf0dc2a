"""Checkpoints in the bucket: a manifest lists the parts; a commit in the journal makes them count."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from datetime import datetime

from cloudspot.errors import CloudspotError, CorruptData, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.store_clock import clock_of
from cloudspot.jobstore.access.stored_records import create_record, find_meta, read_record
from cloudspot.jobstore.checkpoints.integrity import check_manifest
from cloudspot.jobstore.checkpoints.retention import stored_saves
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import counts, head, may_follow, newest_generation
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import (
    CheckpointId,
    Commit,
    JournalRecord,
    Manifest,
    Part,
    SaveId,
    new_nonce,
)


class Superseded(CloudspotError):
    """The checkpoint's generation no longer counts: another generation follows it, or the job is over."""


def read_manifest(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> Manifest:
    """Return the manifest of a checkpoint, checked: its paths, sizes and tables are safe to follow.

    Raises:
        CorruptData: the manifest is malformed, contradicts itself or belongs to another checkpoint; the
            message names the key.
        ObjectMissing: no such checkpoint exists, or it has been deleted.
    """
    key = keys.manifest(job_id, checkpoint.generation, checkpoint.step)
    manifest = read_record(with_retries(store), key, Manifest)
    if manifest.id != checkpoint:
        raise CorruptData(f"{key} holds the manifest of another checkpoint: {manifest.id}")
    try:
        check_manifest(manifest)
    except CorruptData as error:
        raise CorruptData(f"{key}: {error}") from error
    return manifest


@contextmanager
def while_it_exists(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> Iterator[None]:
    """Distinguish damage from deletion, because a running job may delete an old checkpoint during a read.

    Raises:
        ObjectMissing: the block found an object of the checkpoint missing or corrupt, and the checkpoint has
            been deleted.
    """
    try:
        yield
    except CorruptData as error:
        if not exists(store, job_id, checkpoint):
            raise ObjectMissing(f"checkpoint {checkpoint} was deleted while it was being read") from error
        raise


def exists(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> bool:
    """Return whether the checkpoint still exists."""
    key = keys.manifest(job_id, checkpoint.generation, checkpoint.step)
    return find_meta(with_retries(store), key) is not None


def try_commit(
    store: ObjectStore,
    journal: Journal,
    job_id: str,
    save: SaveId,
    *,
    known: MutableMapping[str, Part] | None = None,
    writer: str | None = None,
) -> Commit | None:
    """Commit the save if all its parts exist; return the commit, or None if a part is missing.

    If the newest checkpoint that counts excludes this save, return that checkpoint's commit instead. Any node
    that sees every part may commit; all of them return the same record. For ``known``, see
    ``write_manifest``. ``writer`` is a new nonce by which the caller recognises its own record in the
    journal.

    Raises:
        CorruptData: the parts do not form one checkpoint, or one of them contradicts itself.
        Superseded: the save's generation is no longer the newest one, or the job is over.
    """
    record: Commit | None = None
    while True:
        # Append only a decision based on all records before its number, so that no commit comes between a
        # node's choice of a checkpoint and the generation that resumes from it.
        records = journal.read()
        standing = _standing(records, save)
        if standing is not None:
            return standing
        if record is None:
            manifest = write_manifest(store, job_id, save, known=known)
            if manifest is None:
                return None
            record = commit_of(manifest, at=clock_of(store).now(), writer=writer)
        if journal.append(record, len(records) + 1):
            return record


def commit_of(manifest: Manifest, *, at: datetime, writer: str | None = None) -> Commit:
    """Return a new commit record for the manifest's checkpoint, to be appended to the journal."""
    return Commit(
        generation=manifest.generation,
        step=manifest.step,
        round=manifest.round,
        kind=manifest.kind,
        size=manifest.size,
        shared=manifest.shared,
        evidence="; ".join(dict.fromkeys(part.evidence for part in manifest.parts if part.evidence)) or None,
        rescue=manifest.parts[0].rescue,
        is_last=all(part.seal is not None and part.parsed_seal.kind != "interval" for part in manifest.parts),
        sealed_at=min(part.sealed_at for part in manifest.parts),
        at=at,
        writer=writer or new_nonce(),
    )


def _standing(journal: Sequence[JournalRecord], save: SaveId) -> Commit | None:
    """Return the commit of the newest checkpoint that counts if that excludes this save, otherwise None.

    Raises:
        Superseded: the save can no longer count.
    """
    if not counts(journal, save.generation):
        raise Superseded(
            f"checkpoint {save.checkpoint} is too late: the job has ended or begun a newer generation"
        )
    base = head(journal)
    if base is None or may_follow(save, base):
        return None
    return next(one for one in reversed(journal) if isinstance(one, Commit) and one.id == base)


def write_manifest(
    store: ObjectStore,
    job_id: str,
    save: SaveId,
    *,
    known: MutableMapping[str, Part] | None = None,
) -> Manifest | None:
    """Write the manifest if all parts of the save exist; return the stored one, or None if parts are missing.

    If another save of the same step and generation was complete before, the stored manifest belongs to that
    save. A listing shows whether all parts exist; only then are their records read. ``known`` maps keys to
    records that were read or put earlier; newly read records are added. Records never change.

    Raises:
        CorruptData: the parts do not form one checkpoint, or one of them contradicts itself.
    """
    store = with_retries(store)
    known = {} if known is None else known
    names = [keys.part(job_id, save, rank) for rank in stored_ranks(store, job_id, save)]
    records = {name: known[name] for name in names if name in known}
    try:
        if not records:
            records = _read_parts(store, names[:1])
        if not records or len(names) < next(iter(records.values())).num_parts:
            return None
        records.update(_read_parts(store, [name for name in names if name not in records]))
    except ObjectMissing:
        return None  # The parts were deleted in the meantime, because a newer checkpoint counts.
    known.update(records)
    for key, part in records.items():
        if key != keys.part(job_id, part.save, part.rank):
            raise CorruptData(f"{key} holds the record of another part: part {part.rank} of {part.save}")
    parts = [records[name] for name in names]
    if len({part.num_parts for part in parts}) > 1:
        raise CorruptData(f"checkpoint {save.checkpoint}: its parts disagree about how many parts there are")
    manifest = Manifest(
        generation=save.generation,
        step=save.step,
        round=save.round,
        kind=parts[0].kind,
        size=sum(part.size for part in parts),
        parts=tuple(sorted(parts, key=lambda part: part.rank)),
        at=clock_of(store).now(),
        writer=new_nonce(),
    )
    check_manifest(manifest)
    return create_record(store, keys.manifest(job_id, save.generation, save.step), manifest)


def commit_whole(
    store: ObjectStore,
    journal: Journal,
    job_id: str,
    checkpoint: CheckpointId,
    *,
    is_of_the_end: bool = False,
    known: MutableMapping[str, Part] | None = None,
) -> Commit | None:
    """Commit the checkpoint if one of its saves is complete; return the commit as ``try_commit`` does.

    The newest save is tried first; a drain's save, if there is one, is the newest. ``is_of_the_end`` states
    that one of the saves was made at the end of the loop.

    Raises:
        CorruptData: the parts of a save do not form one checkpoint, and no other save is complete.
        Superseded: see ``try_commit``.
    """
    wanted = SaveId(checkpoint.generation, checkpoint.step, 0 if is_of_the_end else 1)
    standing = _standing(journal.read(), wanted)
    if standing is not None:
        return standing
    corrupt: CorruptData | None = None
    for save in sorted(stored_saves(store, job_id, checkpoint), reverse=True):
        try:
            commit = try_commit(store, journal, job_id, save, known=known)
        except CorruptData as error:
            corrupt = error
            continue
        if commit is not None:
            return commit
    if corrupt is not None:
        raise corrupt
    return None


def complete(store: ObjectStore, journal: Journal, job_id: str) -> tuple[CheckpointId, ...]:
    """Commit the newest generation's saves that are complete but not committed; return their checkpoints.

    The node that brought the last part may have been lost before it could commit the save. Saves whose parts
    do not form one checkpoint are skipped.
    """
    store = with_retries(store)
    newest = newest_generation(journal.read())
    before = len(journal.known)
    if newest is None:
        return ()
    for save in stored_saves(store, job_id):
        if save.generation == newest.number:
            try:
                try_commit(store, journal, job_id, save)
            except CorruptData:
                continue
            except Superseded:
                break
    return tuple(one.id for one in journal.known[before:] if isinstance(one, Commit))


def missing_ranks(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> frozenset[int] | None:
    """Return the ranks that lack a part in the checkpoint's newest save, or None if no rank has one.

    A relieved rank brings no part.
    """
    save = max(stored_saves(with_retries(store), job_id, checkpoint), default=None)
    ranks = [] if save is None else stored_ranks(store, job_id, save)
    if save is None or not ranks:
        return None
    part = read_record(with_retries(store), keys.part(job_id, save, ranks[0]), Part)
    return frozenset(part.ranks).difference(ranks)


def stored_ranks(store: ObjectStore, job_id: str, save: SaveId) -> list[int]:
    """Return the ranks whose part records exist, in ascending order."""
    prefix = keys.parts_prefix(job_id, save)
    listed = [keys.part.match(meta.key) for meta in with_retries(store).list_objects(prefix)]
    return [match[2] for match in listed if match is not None]


def _read_parts(store: ObjectStore, names: Sequence[str]) -> dict[str, Part]:
    parts = map_parallel(lambda key: read_record(store, key, Part), names)
    return dict(zip(names, parts, strict=True))
