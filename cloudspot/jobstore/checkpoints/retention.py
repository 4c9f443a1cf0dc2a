"""Which checkpoints stay: the newest of the lineage. The rest are deleted, manifest first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from cloudspot.errors import CorruptData
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.store_clock import clock_of
from cloudspot.jobstore.access.stored_records import create_record, find_meta, find_record, first_names
from cloudspot.jobstore.checkpoints.chunks import stored_chunks
from cloudspot.jobstore.checkpoints.shared_chunks import committed_manifest
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import lineage, newest_generation
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import (
    CheckpointId,
    Commit,
    Damage,
    Heartbeat,
    JournalRecord,
    Manifest,
    SaveId,
    new_nonce,
)
from cloudspot.jobstore.nodes.delivering import BEATING_SECONDS, may_resume
from cloudspot.model import ObjectMeta

ORPHAN_GRACE_SECONDS = 600.0
"""Chunks without a manifest outlive the commit that made them useless by this much, by the store's clock: a
commit of theirs that is on its way must not name what is gone."""


@dataclass(frozen=True)
class StandingCheckpoints:
    """The journal's checkpoints that have not been deleted."""

    sound: tuple[CheckpointId, ...]
    """Those of which nothing bad is known, the best to resume from first."""
    damaged: tuple[CheckpointId, ...]
    """Those in which a node has found a damaged chunk, in the same order: to be tried last."""


def look_for_checkpoints(
    store: ObjectStore, job_id: str, journal: Sequence[JournalRecord]
) -> StandingCheckpoints:
    """Return those of the journal's checkpoints that have not been deleted.

    The journal is read before this lists the manifests, so each of its checkpoints had one.
    """
    there, damaged, _ = _list_manifests(with_retries(store), job_id)
    found = [checkpoint for checkpoint in lineage(journal) if checkpoint in there]
    return StandingCheckpoints(
        sound=tuple(one for one in found if one not in damaged),
        damaged=tuple(one for one in found if one in damaged),
    )


def standing_checkpoints(
    store: ObjectStore, job_id: str, journal: Sequence[JournalRecord]
) -> tuple[CheckpointId, ...]:
    """Return those of the journal's checkpoints that have not been deleted, best to resume from first."""
    found = look_for_checkpoints(store, job_id, journal)
    return found.sound + found.damaged


def note_damage(store: ObjectStore, job_id: str, checkpoint: CheckpointId, reason: str) -> None:
    """Let every node know that a chunk of a checkpoint does not verify: they try it last."""
    damage = Damage(reason=reason, at=clock_of(store).now(), writer=new_nonce())
    create_record(with_retries(store), keys.damage(job_id, checkpoint), damage)


def note_begun(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> None:
    """Let the other nodes know that this one uploads its part of the checkpoint."""
    with_retries(store).put(keys.begun(job_id, checkpoint), b"")


def begun_steps(store: ObjectStore, job_id: str, generation: int) -> tuple[int, ...]:
    """Return the steps of a generation whose checkpoints a node has begun to upload, ascending."""
    begun = _list_manifests(with_retries(store), job_id)[2]
    return tuple(sorted(one.step for one in begun if one.generation == generation))


def read_damage(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> str:
    """Return what was noted of a damaged checkpoint; empty: the note is gone, or malformed."""
    try:
        found = find_record(with_retries(store), keys.damage(job_id, checkpoint), Damage)
    except CorruptData:
        return ""
    return "" if found is None else found.reason


def collect(
    store: ObjectStore,
    journal: Journal,
    job_id: str,
    keep: int,
    *,
    with_orphans: bool = True,
    orphan_grace_seconds: float = ORPHAN_GRACE_SECONDS,
) -> tuple[CheckpointId, ...]:
    """Delete the checkpoints that no resume will want; return their ids, ascending.

    The ``keep`` newest of the lineage stay (at least one), and so does the one from which the newest
    generation was restored. Others go when they are older than the lineage's newest: those that were
    committed, and what was uploaded and never committed. Nothing is deleted while the lineage has no commit,
    or while a node may be about to resume: what it has chosen may be among the others.

    It costs two listings, and if anything goes, one more of what is newer than the newest commit, and for
    each thing that goes another and the deletions. Manifests are read of the checkpoints that stay if they
    share chunks. ``with_orphans``: look also for what has no manifest, which costs a listing for each save.

    A checkpoint loses its manifest first, then its part records, then its chunks, so that whatever
    interrupts this, no manifest lacks a chunk; the next call finishes the work. Chunks that a checkpoint that
    stays shares are kept, and those that a save may name that may still be committed; where these are not
    known, no chunk is deleted. Safe to run anywhere, any number of times at once.
    """
    if keep < 1:
        raise ValueError(f"keep must be >= 1: got {keep}")
    store = with_retries(store)
    # Before the journal: then every checkpoint is judged with the generations that resumed from it, and what
    # comes meanwhile is newer.
    num_known = len(journal.known or journal.read())
    manifests, damaged, begun = _list_manifests(store, job_id)
    records = journal.read()
    candidates = [one for one in lineage(records) if one in manifests]
    newest_started = newest_generation(records)
    if not candidates or newest_started is None:
        return ()
    newest = candidates[0]
    # What was saved after a failure may lead to it again: it takes the place of no checkpoint from before.
    rescues = {one.id: one.rescue for one in records if isinstance(one, Commit) and one.rescue is not None}
    healthy = [one for one in candidates if one not in rescues or rescues[one].cause == "lost"]
    kept = {*candidates[:keep], *healthy[:1]}
    # Of several commits at once, the manifest of an earlier step may have come after the listing.
    late = {one.id for one in records[num_known:] if isinstance(one, Commit) and one.id < newest}
    if any(_stands(store, job_id, one) for one in sorted(late.difference(manifests))):
        return ()
    if newest_started.restore_from in manifests:
        kept.add(newest_started.restore_from)
    doomed = [checkpoint for checkpoint in manifests if checkpoint not in kept and checkpoint < newest]
    if doomed and _somebody_may_resume(store, job_id, manifests[newest].modified_at):
        return ()
    commits = {one.id: one for one in records if isinstance(one, Commit)}
    # A node that is a save ahead may name chunks of the commit before. Where more than one is kept, that one
    # stays, and this listing is saved.
    ahead = sorted(_marked(store, job_id, newest).intersection(doomed, commits)) if keep == 1 else ()
    lent = [
        manifest
        for manifest in map_parallel(
            partial(committed_manifest, store, job_id), [commits[one] for one in ahead]
        )
        if manifest is not None
    ]
    for checkpoint in doomed:
        store.delete(keys.manifest(job_id, checkpoint.generation, checkpoint.step))
    for checkpoint in damaged:
        if checkpoint in doomed or checkpoint not in manifests:
            store.delete(keys.damage(job_id, checkpoint))
    map_parallel(
        store.delete, [keys.begun(job_id, checkpoint) for checkpoint in begun if checkpoint < newest]
    )
    contents = {keys.saves_prefix(job_id, checkpoint): checkpoint for checkpoint in doomed}
    if with_orphans:
        useless_before = manifests[newest].modified_at - timedelta(seconds=orphan_grace_seconds)
        contents |= _orphans(store, job_id, manifests, commits, newest, useless_before)
    if not contents:
        return ()
    # After the journal was read: a save that has put its mark by then is listed here, and one that puts it
    # later reads of the newest commit, and names no chunk of what goes.
    is_named = not _marked(store, job_id, newest) <= kept.union(manifest.id for manifest in lent)
    staying = [commits[one] for one in sorted(kept.intersection(commits))]
    spared = None if is_named else _shared(store, job_id, staying)
    if spared is None:
        return tuple(sorted(doomed))
    spared |= _chunk_keys(job_id, lent)
    gone = {one for prefix, one in contents.items() if _delete_contents(store, prefix, spared)}
    return tuple(sorted(gone.difference(manifests).union(doomed)))


def _orphans(
    store: ObjectStore,
    job_id: str,
    manifests: Collection[CheckpointId],
    commits: Mapping[CheckpointId, Commit],
    newest: CheckpointId,
    useless_before: datetime,
) -> dict[str, CheckpointId]:
    """Return the saves, by their prefix, that no commit will name any more, and whose they are."""
    found = {}
    for save in stored_saves(store, job_id):
        checkpoint, prefix = save.checkpoint, keys.save_prefix(job_id, save)
        # Of several saves of a step, one was committed.
        commit = commits.get(checkpoint)
        may_go = checkpoint < newest
        if checkpoint in manifests:
            may_go = commit is not None and commit.save != save
        if not may_go:
            continue
        if commit is not None and commit.save == save:
            # Its manifest came before its commit: if it is not there, it was deleted, and what is left was
            # spared then, since another checkpoint shared it.
            is_useless = not _stands(store, job_id, checkpoint)
        else:
            is_useless = all(meta.modified_at < useless_before for meta in store.list_objects(prefix))
        if is_useless:
            found[prefix] = checkpoint
    return found


def _stands(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> bool:
    return find_meta(store, keys.manifest(job_id, checkpoint.generation, checkpoint.step)) is not None


def _marked(store: ObjectStore, job_id: str, newest: CheckpointId) -> set[CheckpointId]:
    """Return the checkpoints of which saves may name chunks that are newer than ``newest``.

    Older ones are not committed any more: their marks mean nothing.
    """
    after = keys.saves_prefix(job_id, newest) + "~"
    listed = store.list_objects(keys.checkpoints_prefix(job_id), after=after)
    matches = (keys.base_mark.match(meta.key) for meta in listed)
    return {match[3] for match in matches if match is not None}


def _shared(store: ObjectStore, job_id: str, kept: Sequence[Commit]) -> frozenset[str] | None:
    """Return the keys of the chunks that those of these checkpoints name that share any.

    None: one of them is gone. Newer checkpoints have taken its place meanwhile, and may name its chunks.
    """
    sharing = [one for one in kept if one.shared > 0]
    found = map_parallel(partial(committed_manifest, store, job_id), sharing)
    standing = [manifest for manifest in found if manifest is not None]
    if len(standing) < len(found):
        return None
    return _chunk_keys(job_id, standing)


def _chunk_keys(job_id: str, manifests: Iterable[Manifest]) -> frozenset[str]:
    return frozenset(stored.key for manifest in manifests for stored in stored_chunks(job_id, manifest))


def _somebody_may_resume(store: ObjectStore, job_id: str, moment: datetime) -> bool:
    """Return whether a node may have chosen its checkpoint before ``moment``, of the store's clock.

    A node puts its first heartbeat before it looks for a checkpoint: whoever is not in this listing finds the
    newest commit.
    """

    def may(meta: ObjectMeta) -> bool:
        beat = find_record(store, meta.key, Heartbeat)
        silent_seconds = (moment - meta.modified_at).total_seconds()
        return beat is not None and may_resume(beat, silent_seconds=silent_seconds)

    beats = [
        meta
        for meta in store.list_objects(keys.nodes_prefix(job_id))
        if keys.heartbeat.match(meta.key) is not None
        and (moment - meta.modified_at).total_seconds() < BEATING_SECONDS
    ]
    return any(map_parallel(may, beats))


def _list_manifests(
    store: ObjectStore, job_id: str
) -> tuple[dict[CheckpointId, ObjectMeta], set[CheckpointId], set[CheckpointId]]:
    """Return the manifests that stand, and of which checkpoints damage or the beginning was noted."""
    manifests, damaged, begun = {}, set(), set()
    for meta in store.list_objects(keys.manifests_prefix(job_id)):
        if (match := keys.manifest.match(meta.key)) is not None:
            manifests[CheckpointId(*match[1:])] = meta
        elif (match := keys.damage.match(meta.key)) is not None:
            damaged.add(match[1])
        elif (match := keys.begun.match(meta.key)) is not None:
            begun.add(match[1])
    return manifests, damaged, begun


def stored_saves(store: ObjectStore, job_id: str, checkpoint: CheckpointId | None = None) -> Iterator[SaveId]:
    """Yield the saves (of one checkpoint) that have parts or chunks, ascending, with one request for each."""
    prefix = keys.checkpoints_prefix(job_id)
    if checkpoint is not None:
        prefix = keys.saves_prefix(job_id, checkpoint)
    for name in first_names(store, prefix):
        match = keys.save_prefix.match(prefix + name)
        if match is not None:
            yield match[1]


def _delete_contents(store: ObjectStore, prefix: str, spared: Collection[str]) -> bool:
    """Delete part records, then chunks: a part record never stands without its chunks.

    Return whether there was anything that is not spared.
    """
    found = [meta.key for meta in store.list_objects(prefix) if meta.key not in spared]
    for is_part in (True, False):
        map_parallel(store.delete, [key for key in found if (keys.part.match(key) is not None) is is_part])
    return bool(found)
