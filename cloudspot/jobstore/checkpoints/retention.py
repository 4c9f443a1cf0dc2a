"""Keep the newest checkpoints of the lineage, and delete the others, each manifest first."""

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
"""Chunks without a manifest are kept for this long after the commit that made them useless, by the store's
clock, because a commit of their save that is still under way must not name deleted chunks.
"""


@dataclass(frozen=True)
class StandingCheckpoints:
    """The journal's checkpoints that have not been deleted."""

    sound: tuple[CheckpointId, ...]
    """The checkpoints without known damage, the best to resume from first."""
    damaged: tuple[CheckpointId, ...]
    """The checkpoints in which a node found a damaged chunk, in the same order. A resume tries these last."""


def look_for_checkpoints(
    store: ObjectStore, job_id: str, journal: Sequence[JournalRecord]
) -> StandingCheckpoints:
    """Return the journal's checkpoints that have not been deleted.

    The journal must have been read before this call, so that each of its checkpoints had a manifest by then.
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
    """Return the journal's checkpoints that have not been deleted, the best to resume from first."""
    found = look_for_checkpoints(store, job_id, journal)
    return found.sound + found.damaged


def note_damage(store: ObjectStore, job_id: str, checkpoint: CheckpointId, reason: str) -> None:
    """Record that a chunk fails verification, so that every node tries this checkpoint last."""
    damage = Damage(reason=reason, at=clock_of(store).now(), writer=new_nonce())
    create_record(with_retries(store), keys.damage(job_id, checkpoint), damage)


def note_begun(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> None:
    """Tell the other nodes, by an empty object, that this node is uploading its part of the checkpoint."""
    with_retries(store).put(keys.begun(job_id, checkpoint), b"")


def begun_steps(store: ObjectStore, job_id: str, generation: int) -> tuple[int, ...]:
    """Return the steps of a generation's checkpoints whose upload has begun, in ascending order."""
    begun = _list_manifests(with_retries(store), job_id)[2]
    return tuple(sorted(one.step for one in begun if one.generation == generation))


def read_damage(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> str:
    """Return the recorded damage of a checkpoint; empty if the record is gone or malformed."""
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
    """Delete the checkpoints that no resume needs; return their ids in ascending order.

    The ``keep`` newest checkpoints of the lineage (at least one) are kept, as is the checkpoint from which
    the newest generation was restored. Other checkpoints, committed or not, are deleted if they are older
    than the newest one of the lineage. Nothing is deleted while the lineage has no commit, or while a node
    may be about to resume from a checkpoint that it has chosen.

    A call takes two listings. Any deletion takes one more listing, of the keys after the newest commit, and
    for each deleted checkpoint another listing and the deletions. The manifests of kept checkpoints are read
    if these share chunks. ``with_orphans`` also looks for saves without a manifest, with one listing per
    save.

    A checkpoint loses its manifest first, then its part records, then its chunks, so that no interruption
    leaves a manifest whose chunks are gone; the next call finishes the work. A chunk is kept if a kept
    checkpoint shares it, or if a save that may still be committed may name it; if such saves exist but are
    not known, no chunk is deleted. The call is safe anywhere, several times at once.
    """
    if keep < 1:
        raise ValueError(f"keep must be >= 1: got {keep}")
    store = with_retries(store)
    # Count the records before the listing: then each listed checkpoint is judged with the generations that
    # resumed from it, and later checkpoints are newer.
    num_known = len(journal.known or journal.read())
    manifests, damaged, begun = _list_manifests(store, job_id)
    records = journal.read()
    candidates = [one for one in lineage(records) if one in manifests]
    newest_started = newest_generation(records)
    if not candidates or newest_started is None:
        return ()
    newest = candidates[0]
    # A checkpoint saved after a failure may lead to the same failure again, so keep an earlier checkpoint as
    # well.
    rescues = {one.id: one.rescue for one in records if isinstance(one, Commit) and one.rescue is not None}
    healthy = [one for one in candidates if one not in rescues or rescues[one].cause == "lost"]
    kept = {*candidates[:keep], *healthy[:1]}
    # With several concurrent commits, the manifest of an earlier step may have appeared after the listing.
    late = {one.id for one in records[num_known:] if isinstance(one, Commit) and one.id < newest}
    if any(_exists(store, job_id, one) for one in sorted(late.difference(manifests))):
        return ()
    if newest_started.restore_from in manifests:
        kept.add(newest_started.restore_from)
    doomed = [checkpoint for checkpoint in manifests if checkpoint not in kept and checkpoint < newest]
    if doomed and _somebody_may_resume(store, job_id, manifests[newest].modified_at):
        return ()
    commits = {one.id: one for one in records if isinstance(one, Commit)}
    # A node that is one save ahead may name chunks of the second-newest commit. If more than one checkpoint
    # is kept, that commit stays, and this listing is not needed.
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
    # Look for marks only after reading the journal: a save with an earlier mark is listed here, and a save
    # with a later mark finds the newest commit and names no deleted chunk.
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
    """Return, by prefix, the saves that no commit will name, each with its checkpoint."""
    orphans = {}
    for save in stored_saves(store, job_id):
        checkpoint, prefix = save.checkpoint, keys.save_prefix(job_id, save)
        # Of several saves of a step, at most one was committed.
        commit = commits.get(checkpoint)
        may_go = checkpoint < newest
        if checkpoint in manifests:
            may_go = commit is not None and commit.save != save
        if not may_go:
            continue
        if commit is not None and commit.save == save:
            # The manifest was written before this commit. If the manifest is missing, it has been deleted,
            # and the remaining chunks were kept because another checkpoint shared them.
            is_useless = not _exists(store, job_id, checkpoint)
        else:
            is_useless = all(meta.modified_at < useless_before for meta in store.list_objects(prefix))
        if is_useless:
            orphans[prefix] = checkpoint
    return orphans


def _exists(store: ObjectStore, job_id: str, checkpoint: CheckpointId) -> bool:
    return find_meta(store, keys.manifest(job_id, checkpoint.generation, checkpoint.step)) is not None


def _marked(store: ObjectStore, job_id: str, newest: CheckpointId) -> set[CheckpointId]:
    """Return the checkpoints whose chunks may be named by saves newer than ``newest``.

    Older saves can no longer be committed, so their marks mean nothing.
    """
    after = keys.saves_prefix(job_id, newest) + "~"
    listed = store.list_objects(keys.checkpoints_prefix(job_id), after=after)
    matches = (keys.base_mark.match(meta.key) for meta in listed)
    return {match[3] for match in matches if match is not None}


def _shared(store: ObjectStore, job_id: str, kept: Sequence[Commit]) -> frozenset[str] | None:
    """Return the keys of all chunks of the given checkpoints that share chunks.

    Return None if one of these was deleted: newer checkpoints have then replaced it, and may name its chunks.
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
    """Return whether a node may have chosen its checkpoint before ``moment``, by the store's clock.

    A node puts its first heartbeat before it looks for a checkpoint, so a node that is missing from this
    listing will find the newest commit.
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
    """Return the existing manifests, the checkpoints with recorded damage, and those with a begun upload."""
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
    """Yield the saves (of one checkpoint) that have parts or chunks, in order; each save takes a request."""
    prefix = keys.checkpoints_prefix(job_id)
    if checkpoint is not None:
        prefix = keys.saves_prefix(job_id, checkpoint)
    for name in first_names(store, prefix):
        match = keys.save_prefix.match(prefix + name)
        if match is not None:
            yield match[1]


def _delete_contents(store: ObjectStore, prefix: str, spared: Collection[str]) -> bool:
    """Delete part records first, then chunks, so that no part record remains without its chunks.

    Return whether any object was deleted.
    """
    found = [meta.key for meta in store.list_objects(prefix) if meta.key not in spared]
    for is_part in (True, False):
        map_parallel(store.delete, [key for key in found if (keys.part.match(key) is not None) is is_part])
    return bool(found)
