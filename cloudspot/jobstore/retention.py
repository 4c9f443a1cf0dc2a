"""Which checkpoints stay: the newest of the lineage. The rest are deleted, manifest first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import keys
from cloudspot.jobstore.delivering import may_resume
from cloudspot.jobstore.generations import lineage, read_generations
from cloudspot.jobstore.parallel import each
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.records import CheckpointId, Heartbeat
from cloudspot.jobstore.stored_records import find_record
from cloudspot.model import ObjectMeta

ORPHAN_GRACE_SECONDS = 600.0
"""Chunks without a commit outlive the commit that made them useless by this much, by the store's clock: a
commit of theirs that is on its way must not name what is gone."""
_CHECKPOINT = re.compile(r"(\d{6}|[1-9]\d{6,8})-(\d{12}|[1-9]\d{12,17})", re.ASCII)


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
        _delete_contents(store, job_id, checkpoint)
    useless_before = commits[newest].modified_at - timedelta(seconds=orphan_grace_seconds)
    orphans = []
    for checkpoint in stored_checkpoints(store, job_id):
        if checkpoint in commits or not checkpoint < newest:
            continue
        prefix = keys.checkpoint_prefix(job_id, checkpoint.generation, checkpoint.step)
        if all(meta.modified_at < useless_before for meta in store.list_objects(prefix)):
            orphans.append(checkpoint)
            _delete_contents(store, job_id, checkpoint)
    return tuple(sorted((*doomed, *orphans)))


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


def stored_checkpoints(store: ObjectStore, job_id: str) -> Iterator[CheckpointId]:
    """Yield the checkpoints that have parts or chunks, with one request for each."""
    prefix = keys.checkpoints_prefix(job_id)
    after: str | None = None
    while True:
        page = store.list_page(prefix, after=after, limit=1)
        if not page.objects:
            return
        name = page.objects[0].key.removeprefix(prefix).partition("/")[0]
        after = f"{prefix}{name}/~"  # Sorts after all that our keys have there.
        match = _CHECKPOINT.fullmatch(name)
        if match is not None:
            yield CheckpointId(int(match[1]), int(match[2]))


def _delete_contents(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> None:
    """Delete part records, then chunks: a part record never stands without its chunks."""
    generation, step = checkpoint.generation, checkpoint.step
    for prefix in (
        keys.parts_prefix(job_id, generation, step),
        keys.checkpoint_prefix(job_id, generation, step),
    ):
        for meta in store.list_objects(prefix):
            store.delete(meta.key)
