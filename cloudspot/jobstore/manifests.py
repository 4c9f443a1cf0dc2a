"""Checkpoints in the bucket: one exists when its commit does, which names every chunk (protocol P5)."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone

from cloudspot.errors import CorruptData, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import keys
from cloudspot.jobstore.integrity import check_commit
from cloudspot.jobstore.parallel import each
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.records import CheckpointId, Commit, Part, SaveId, new_nonce
from cloudspot.jobstore.retention import read_commits, stored_saves
from cloudspot.jobstore.stored_records import create_record, find_meta, read_record

_RANK = re.compile(r"\d{4}", re.ASCII)


def read_commit(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> Commit:
    """Return the manifest of a checkpoint, checked: its paths, sizes and tables are safe to follow.

    Raises:
        CorruptData: it is malformed, contradicts itself, or is another checkpoint's; the message names the
            key.
        ObjectMissing: there is no such checkpoint (any more).
    """
    key = keys.commit(job_id, checkpoint.generation, checkpoint.step)
    commit = read_record(patient(store), key, Commit)
    if commit.id != checkpoint:
        raise CorruptData(f"{key} holds the manifest of checkpoint {commit.id}")
    try:
        check_commit(commit)
    except CorruptData as error:
        raise CorruptData(f"{key}: {error}") from error
    return commit


@contextmanager
def while_it_stands(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> Iterator[None]:
    """Tell damage from deletion: a running job deletes old checkpoints, also one that is just being read.

    Raises:
        ObjectMissing: the block found something of the checkpoint missing or corrupt, and it was deleted.
    """
    try:
        yield
    except CorruptData as error:
        if not stands(store, job_id, checkpoint):
            raise ObjectMissing(f"checkpoint {checkpoint} was deleted meanwhile") from error
        raise


def stands(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> bool:
    """Return whether the checkpoint has not been deleted."""
    key = keys.commit(job_id, checkpoint.generation, checkpoint.step)
    return find_meta(patient(store), key) is not None


def try_commit(
    store: ObjectStore,
    job_id: str,
    save: SaveId,
    *,
    known: MutableMapping[str, Part] | None = None,
) -> Commit | None:
    """Commit the save if all its parts are there; return the manifest that stands.

    That is another's if one of the same step in the generation was committed before.
    None: a part is missing. Whoever sees every part may commit; all who do get the same manifest.
    A listing tells whether all are there; only then are their records read. ``known`` holds records by key
    that were read or put before, and takes in those that are read now: they never change.

    Raises:
        CorruptData: the parts do not make one checkpoint, or one contradicts itself.
    """
    store = patient(store)
    known = {} if known is None else known
    names = _list_parts(store, job_id, save)
    found = {name: known[name] for name in names if name in known}
    try:
        if not found:
            found = _read_parts(store, names[:1])
        if not found or len(names) < next(iter(found.values())).num_parts:
            return None
        found.update(_read_parts(store, [name for name in names if name not in found]))
    except ObjectMissing:
        return None  # Collected meanwhile, as older than the lineage's newest: it is nobody's any more.
    known.update(found)
    for key, part in found.items():
        if key != keys.part(job_id, part.save, part.rank):
            raise CorruptData(f"{key} holds the record of part {part.rank} of {part.save}")
    parts = [found[name] for name in names]
    if len({part.num_parts for part in parts}) > 1:
        raise CorruptData(f"checkpoint {save.checkpoint}: its parts disagree on how many they are")
    commit = Commit(
        generation=save.generation,
        step=save.step,
        round=save.round,
        kind=parts[0].kind,
        size=sum(part.size for part in parts),
        parts=tuple(sorted(parts, key=lambda part: part.rank)),
        at=datetime.now(timezone.utc),
        writer=new_nonce(),
    )
    check_commit(commit)
    return create_record(store, keys.commit(job_id, save.generation, save.step), commit)


def commit_whole(
    store: ObjectStore,
    job_id: str,
    checkpoint: CheckpointId,
    *,
    known: MutableMapping[str, Part] | None = None,
) -> Commit | None:
    """Commit the checkpoint if one of its saves is whole; return the manifest that stands, as ``try_commit``.

    The newest save goes first: it is a drain's if there is one.

    Raises:
        CorruptData: the parts of a save do not make one checkpoint, and no other save is whole.
    """
    corrupt: CorruptData | None = None
    for save in sorted(stored_saves(store, job_id, checkpoint), reverse=True):
        try:
            commit = try_commit(store, job_id, save, known=known)
        except CorruptData as error:
            corrupt = error
            continue
        if commit is not None:
            return commit
    if corrupt is not None:
        raise corrupt
    return None


def complete(store: ObjectStore, job_id: str, generation: int) -> tuple[CheckpointId, ...]:
    """Commit what a generation has uploaded whole after its newest commit; return what stands then.

    The node that brought the last part may have been lost before it could commit. What does not make one
    checkpoint is passed over.
    """
    store = patient(store)
    newest = max((one for one in read_commits(store, job_id) if one.generation == generation), default=None)
    found = []
    for save in stored_saves(store, job_id):
        if save.generation == generation and (newest is None or save.checkpoint > newest):
            try:
                commit = try_commit(store, job_id, save)
            except CorruptData:
                continue
            if commit is not None:
                found.append(commit.id)
    return tuple(dict.fromkeys(found))


def missing_ranks(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> frozenset[int] | None:
    """Return the ranks that have yet to bring a part of the checkpoint's newest save; None: it has no parts.

    A rank that was relieved brings none.
    """
    save = max(stored_saves(patient(store), job_id, checkpoint), default=None)
    names = [] if save is None else _list_parts(patient(store), job_id, save)
    if not names:
        return None
    (part,) = _read_parts(patient(store), names[:1]).values()
    return frozenset(part.ranks) - {int(name.rpartition("/")[2]) for name in names}


def _list_parts(store: ObjectStore, job_id: str, save: SaveId) -> list[str]:
    prefix = keys.parts_prefix(job_id, save)
    listed = [meta.key for meta in store.list_objects(prefix)]
    return [key for key in listed if _RANK.fullmatch(key.removeprefix(prefix))]


def _read_parts(store: ObjectStore, names: Sequence[str]) -> dict[str, Part]:
    parts = each(lambda key: read_record(store, key, Part), names)
    return dict(zip(names, parts, strict=True))
