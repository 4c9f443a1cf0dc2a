"""Which checkpoints stay: the newest of the lineage. The rest are deleted, manifest first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import keys
from cloudspot.jobstore.delivering import may_resume
from cloudspot.jobstore.generations import lineage, read_generations
from cloudspot.jobstore.parallel import each
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.records import CheckpointId, Commit, Heartbeat, SaveId
from cloudspot.jobstore.stored_records import find_record
from cloudspot.model import ObjectMeta

ORPHAN_GRACE_SECONDS = 600.0
"""Chunks without a commit outlive the commit that made them useless by this much, by the store's clock: a
commit of theirs that is on its way must not name what is gone."""
_CHECKPOINT = re.compile(r"(\d{6}|[1-9]\d{6,8})-(\d{12}|[1-9]\d{12,17})", re.ASCII)
_SAVE = re.compile(rf"{_CHECKPOINT.pattern}-(\d{{6}}|[1-9]\d{{6,8}})", re.ASCII)


def read_commits(store: ObjectStore, job_id: str) -> tuple[CheckpointId, ...]:
    """Return the ids of all committed checkpoints, ascending by generation and step."""
    found = [checkpoint for checkpoint, _ in _list_commits(patient(store), job_id)]
    return tuple(sorted(found))


def collect(
    store: ObjectStore, job_id: str, keep: int, *, orphan_grace_seconds: float = ORPHAN_GRACE_SECONDS
) -> tuple[CheckpointId, ...]:
    """Delete the checkpoints that no resume will want; return their ids, ascending.

    The ``keep`` newest of the lineage stay (at least one), and so does the one from which the newest
    generation was restored. Others go when they are older than the lineage's newest: commits, and
    what was uploaded and never committed. Nothing is deleted while the lineage has no commit, or while
    a node may be about to resume: what it has chosen may be among the others.

    A checkpoint loses its commit first, then its part records, then its chunks, so that whatever
    interrupts this, no commit lacks a chunk; the next call finishes the work. Safe to run anywhere,
    any number of times at once.
    """
    if keep < 1:
        raise ValueError(f"keep must be >= 1: got {keep}")
    store = patient(store)
    # Commits before generations: then every commit's generation is known, and what comes meanwhile is
    # newer than all that is judged here.
    commits = dict(_list_commits(store, job_id))
    generations = read_generations(store, job_id)
    candidates = lineage(generations, tuple(commits))
    if not candidates:
        return ()
    newest = candidates[0]
    kept = set(candidates[:keep])
    restored = generations[-1].restore_from
    if restored is not None:
        kept.add(restored)
    doomed = [checkpoint for checkpoint in commits if checkpoint not in kept and checkpoint < newest]
    if doomed and _somebody_may_resume(store, job_id, generations[-1].launch, commits[newest].modified_at):
        return ()
    for checkpoint in doomed:
        store.delete(keys.commit(job_id, checkpoint.generation, checkpoint.step))
    for checkpoint in doomed:
        for save in stored_saves(store, job_id, checkpoint):
            _delete_contents(store, job_id, save)
    useless_before = commits[newest].modified_at - timedelta(seconds=orphan_grace_seconds)
    stored = tuple(stored_saves(store, job_id))
    num_saves = Counter(save.checkpoint for save in stored)
    orphans = []
    for save in stored:
        checkpoint = save.checkpoint
        # Of several saves of a step, the one that was whole first is committed.
        may_go = num_saves[checkpoint] > 1 if checkpoint in commits else checkpoint < newest
        if not may_go:
            continue
        objects = store.list_objects(keys.save_prefix(job_id, save))
        if any(meta.modified_at >= useless_before for meta in objects):
            continue
        if checkpoint not in commits:
            orphans.append(checkpoint)
        elif not _is_superseded(store, job_id, save):
            continue
        _delete_contents(store, job_id, save)
    return tuple(sorted({*doomed, *orphans}))


def _is_superseded(store: ObjectStore, job_id: str, save: SaveId) -> bool:
    """Return whether another save of its step is the one that was committed."""
    commit = find_record(store, keys.commit(job_id, save.generation, save.step), Commit)
    return commit is not None and commit.save != save


def _somebody_may_resume(store: ObjectStore, job_id: str, launch: int, moment: datetime) -> bool:
    """Return whether a node may have chosen its checkpoint before ``moment``, of the store's clock.

    ``launch`` is the newest generation's. The nodes of a newer one have a generation yet to form. They claim
    their slots before they look for a checkpoint: whoever claims after this listing finds the newest commit.
    """
    newer = store.list_page(
        keys.launches_prefix(job_id), after=f"{keys.slots_prefix(job_id, launch)}~", limit=1
    )
    if newer.objects:
        return True

    def may(meta: ObjectMeta) -> bool:
        beat = find_record(store, meta.key, Heartbeat)
        silent_seconds = (moment - meta.modified_at).total_seconds()
        return beat is not None and may_resume(beat, silent_seconds=silent_seconds)

    nodes = store.list_objects(f"{keys.nodes_prefix(job_id)}{launch:06d}/")
    return any(each(may, [meta for meta in nodes if meta.key.endswith("/heartbeat")]))


def _list_commits(store: ObjectStore, job_id: str) -> Iterator[tuple[CheckpointId, ObjectMeta]]:
    prefix = keys.commits_prefix(job_id)
    for meta in store.list_objects(prefix):
        match = _CHECKPOINT.fullmatch(meta.key.removeprefix(prefix))
        if match is not None:
            yield CheckpointId(int(match[1]), int(match[2])), meta


def stored_saves(store: ObjectStore, job_id: str, checkpoint: CheckpointId | None = None) -> Iterator[SaveId]:
    """Yield the saves (of one checkpoint) that have parts or chunks, ascending, with one request for each."""
    head = "" if checkpoint is None else f"{checkpoint.generation:06d}-{checkpoint.step:012d}-"
    prefix = keys.checkpoints_prefix(job_id) + head
    after: str | None = None
    while True:
        page = store.list_page(prefix, after=after, limit=1)
        if not page.objects:
            return
        name = page.objects[0].key.removeprefix(prefix).partition("/")[0]
        after = f"{prefix}{name}/~"  # Sorts after all that our keys have there.
        match = _SAVE.fullmatch(f"{head}{name}")
        if match is not None:
            yield SaveId(int(match[1]), int(match[2]), int(match[3]))


def _delete_contents(store: ObjectStore, job_id: str, save: SaveId) -> None:
    """Delete part records, then chunks: a part record never stands without its chunks."""
    for prefix in (keys.parts_prefix(job_id, save), keys.save_prefix(job_id, save)):
        for meta in store.list_objects(prefix):
            store.delete(meta.key)
