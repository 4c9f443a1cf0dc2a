"""Restore the lineage's newest checkpoint that passes verification to this node's disk."""

from __future__ import annotations

import logging
import os
import posixpath
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cloudspot.agent.delivery.checkpoint_files import MAX_POINTER_BYTES, is_pointer, may_replace, root_of
from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.node_context import NodeContext
from cloudspot.errors import CloudspotError, CorruptData, ObjectMissing
from cloudspot.host.capacity import free_memory_bytes
from cloudspot.host.names import find_symlink, printable
from cloudspot.jobstore.access.wrapped_store import T, WrappedStore
from cloudspot.jobstore.checkpoints import fetching, manifests, retention
from cloudspot.jobstore.checkpoints.chunks import check_sizes, stored_chunks
from cloudspot.jobstore.checkpoints.shared_chunks import ChunkContent, contents
from cloudspot.jobstore.journal.lineage import generations_of, head
from cloudspot.jobstore.layout.records import CheckpointId, JournalRecord, Manifest, Skipped

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored:
    """The restored checkpoint and its files."""

    checkpoint: CheckpointId | None
    """None if there is no checkpoint, so the job starts at step 0."""
    directory: Path | None = None
    """For a session's checkpoint: the directory that CLOUDSPOT_RESTORE names."""
    directory_name: str | None = None
    """For a script's own checkpoint: its directory or its first file, relative to the working directory."""
    files: frozenset[str] = frozenset()
    """The paths of the checkpoint's files, relative to the working directory."""
    skipped: tuple[Skipped, ...] = ()
    contents: frozenset[ChunkContent] = frozenset()
    """The contents of the checkpoint's chunks."""
    on_demand: Manifest | None = None
    """The manifest, if this node's share is fetched later. For a session's checkpoint, only empty files were
    created, and ``OnDemandFetch`` fetches the ranges that the ranks ask for. For a checkpoint that scripts
    saved on several nodes, ``restore_own`` fetches the share."""


def restore_newest(context: NodeContext, *, check: Callable[[], None] | None = None) -> Restored:
    """Fetch the best candidate of the lineage; skip and log candidates that fail verification.

    If a candidate is deleted during the restore, a newer one has replaced it and is tried instead. ``check``
    is called repeatedly and raises to end the restore; by default, it raises after an order to leave.

    Raises:
        LeavingError: checkpoints exist, but all fail verification: starting from step 0 would throw the work
            away without asking.
    """
    node, check = context.node, check or context.obey
    for late in context.retry_until(lambda: manifests.complete(context.store, context.journal, node.job_id)):
        _log.info("checkpoint %s was complete but not committed yet; it is committed now", late)
    journal = context.retry_until(context.journal.read)
    standing = context.retry_until(
        lambda: retention.look_for_checkpoints(context.store, node.job_id, journal)
    )
    notes = {one: _damaged(context, one) for one in standing.damaged}
    skipped: list[Skipped] = []
    for candidate in (*standing.sound, *standing.damaged):
        check()
        try:
            manifest = context.retry_until(
                lambda c=candidate: manifests.read_manifest(context.store, node.job_id, c)  # type: ignore[misc]
            )
            is_damaged = candidate in notes
            newer = [] if is_damaged else [note for one, note in notes.items() if one > candidate]
            return _fetch(context, manifest, (*skipped, *newer), check, may_come_later=not is_damaged)
        except (CorruptData, ObjectMissing) as error:
            if not context.retry_until(lambda c=candidate: manifests.exists(context.store, node.job_id, c)):  # type: ignore[misc]
                _log.info("checkpoint %s was deleted in the meantime; looking for a newer one", candidate)
                return restore_newest(context, check=check)
            _log.error("checkpoint %s does not verify, taking the one before: %s", candidate, error)
            skipped.append(Skipped(checkpoint=candidate, reason=str(error)))
    if skipped:
        detail = (
            f"none of the {len(skipped)} checkpoints verifies; nothing was deleted; "
            f"the newest: {skipped[0].reason}"
        )
        raise LeavingError(Leaving("failed", detail, exit_code=1, permanent=True))
    expected = head(journal)
    if expected is not None:
        detail = f"checkpoint {expected}, from which the job was to resume, is gone, and no other is left"
        raise LeavingError(Leaving("failed", detail, exit_code=1, permanent=True))
    return Restored(checkpoint=None)


def _damaged(context: NodeContext, checkpoint: CheckpointId) -> Skipped:
    reason = context.retry_until(
        lambda: retention.read_damage(context.store, context.node.job_id, checkpoint)
    )
    return Skipped(checkpoint=checkpoint, reason=reason)


def newest_candidate(
    context: NodeContext, journal: Sequence[JournalRecord], skipped: Sequence[Skipped]
) -> CheckpointId | None:
    """Return the checkpoint that ``restore_newest`` would try first if it ignored ``skipped``."""
    found = context.retry_until(
        lambda: retention.standing_checkpoints(context.store, context.node.job_id, journal)
    )
    bad = {one.checkpoint for one in skipped}
    return next((one for one in found if one not in bad), None)


def restore_this(
    context: NodeContext, checkpoint: CheckpointId | None, restored: Restored | None
) -> Restored | None:
    """Fetch the checkpoint that another node has chosen, unless it is already restored here.

    Return None if the checkpoint was deleted: the generation that was to resume from it cannot start here.

    Raises:
        LeavingError: the checkpoint fails verification here.
    """
    if restored is not None and restored.checkpoint == checkpoint:
        return restored
    if checkpoint is None:
        return Restored(checkpoint=None)
    try:
        manifest = context.retry_until(
            lambda: manifests.read_manifest(context.store, context.node.job_id, checkpoint)
        )
        return _fetch(context, manifest, (), context.obey, may_come_later=True)
    except (CorruptData, ObjectMissing) as error:
        if not context.retry_until(lambda: manifests.exists(context.store, context.node.job_id, checkpoint)):
            return None
        detail = f"checkpoint {checkpoint}, which another node has verified, does not verify here: {error}"
        raise LeavingError(Leaving("failed", detail, exit_code=1)) from error


def _fetch(
    context: NodeContext,
    manifest: Manifest,
    skipped: tuple[Skipped, ...],
    check: Callable[[], None],
    *,
    may_come_later: bool,
) -> Restored:
    node = context.node
    held = contents([chunk for part in manifest.parts for chunk in part.chunks])
    restored = Restored(manifest.id, skipped=skipped, contents=held)
    if manifest.kind == "directory":
        paths, _, roots = _paths_of(context, manifest)
        restored = replace(restored, directory_name=min(roots), files=frozenset(paths))
        if len(manifest.parts) > 1:  # this node's parts depend on its place, not yet known
            chunks = stored_chunks(node.job_id, manifest)
            context.retry_until(lambda: check_sizes(context.store, node.job_id, manifest, chunks))
            return replace(restored, on_demand=manifest)
        is_there = all(os.path.lexists(node.work / path) for path in paths)
        if is_there and _is_of_this_node(context, manifest):
            return restored
        _bring_files(context, manifest, check, nodes=(0,))
        return restored
    target, present = _place_for(context, manifest)
    if may_come_later and _is_read_in_part(context, manifest):
        context.retry_until(
            lambda: fetching.lay_out(context.store, node.job_id, manifest, target, present=present)
        )
        return replace(restored, directory=target, on_demand=manifest)
    try:
        _bring(context, manifest, target, check, present)
    except CloudspotError as error:
        if target == node.restore or not isinstance(error.__cause__, OSError):
            raise
        _log.warning("there is no room left in memory; restoring to the disk: %s", error)
        shutil.rmtree(target, ignore_errors=True)
        target = node.restore
        _bring(context, manifest, target, check)
    return replace(restored, directory=target)


def restore_own(context: NodeContext, restored: Restored, *, place: int, num_nodes: int) -> Restored:
    """Fetch this node's share of a checkpoint that scripts on several nodes saved.

    If the number of nodes is the same as at the save, the share is the part of the node with the same place,
    otherwise all parts. Call this once the generation is known; any other kind of checkpoint has been
    restored by then.

    Raises:
        CorruptData: a chunk fails verification, which was reported to all nodes, or the checkpoint was
            deleted.
    """
    manifest = restored.on_demand
    if manifest is None or manifest.kind != "directory":
        return restored
    num_parts, work = len(manifest.parts), context.node.work
    if num_parts == num_nodes and fetching.holds_files(manifest, place, work):
        return replace(restored, on_demand=None)
    own = [place] if place < num_parts else []
    nodes = own if num_parts == num_nodes else [*own, *(rank for rank in range(num_parts) if rank != place)]
    if num_parts != num_nodes:
        _log.info(
            "checkpoint %s was saved by %d nodes, but %d train: this node gets the files of all, and where "
            "paths are the same, those of node %d", manifest.id, num_parts, num_nodes, nodes[0],
        )  # fmt: skip
    try:
        _bring_files(context, manifest, context.obey, nodes=nodes)
    except CorruptData as error:
        reason = str(error)
        if context.retry_until(lambda: manifests.exists(context.store, context.job_id, manifest.id)):
            context.retry_until(
                lambda: retention.note_damage(context.store, context.job_id, manifest.id, reason)
            )
        raise
    return replace(restored, on_demand=None)


def _bring_files(
    context: NodeContext, manifest: Manifest, check: Callable[[], None], *, nodes: Sequence[int]
) -> None:
    """Fetch the files that scripts saved on these nodes, replacing existing files."""
    work, patterns = context.node.work, context.job.spec.checkpoint.patterns
    _, pointers, roots = _paths_of(context, manifest)
    for root in sorted({*roots} - {"."}):
        target = work / root
        if target.is_dir() and find_symlink(work, root) is None:  # else the fetch refuses it
            _log.info("%s came with the code or holds an older state: it is fetched anew", printable(root))
            shutil.rmtree(target)

    def accept(staging: Path) -> None:
        for path in filter(lambda path: os.path.lexists(staging / path), pointers):
            if not is_pointer(staging, path, roots) or not may_replace(work, path, patterns):
                raise CorruptData(
                    f"checkpoint {manifest.id} holds {path!r}, which is not part of a checkpoint"
                )

    _bring(context, manifest, work, check, nodes=nodes, accept=accept)


def _is_of_this_node(context: NodeContext, manifest: Manifest) -> bool:
    """Return whether the files at the paths of a script's checkpoint are that checkpoint or a newer one.

    They are if this node's last generation wrote the checkpoint on rank 0 or resumed from it: any files that
    this generation left incomplete have been set aside.
    """
    memory = context.memory
    if memory.generation == 0:
        return False  # no training has run here, and a fork's checkpoint has generation 0 too
    if memory.generation == manifest.generation:
        return memory.first_rank == 0
    generations = generations_of(context.journal.known)
    return any(one.number == memory.generation and one.restore_from == manifest.id for one in generations)


def _is_read_in_part(context: NodeContext, manifest: Manifest) -> bool:
    """Return whether each node reads only a part of the checkpoint, because its state is sharded over nodes.

    Only the ranks know which part, after they have built the model: each rank asks for the ranges that it
    reads.
    """
    if context.job.spec.nodes.max == 1:
        return False
    sizes: Counter[str] = Counter()
    num_shards: Counter[str] = Counter()
    for part in manifest.parts:
        for item in part.parsed_seal.items:
            if item.is_shard:
                sizes[item.name] += item.nbytes
                num_shards[item.name] += 1
    over_nodes = [name for name, count in num_shards.items() if count > context.job.spec.procs_per_node]
    return 2 * sum(sizes[name] for name in over_nodes) > manifest.size


def _place_for(context: NodeContext, manifest: Manifest) -> tuple[Path, frozenset[int]]:
    """Return where to restore a session's checkpoint, and the ranks whose parts may already exist there.

    Such parts were restored before, or are arena slots that were uploaded as parts of this checkpoint. No
    process of the training is alive any more, so a verified part no longer changes.
    """
    node = context.node
    places = node.restore_in_memory, node.restore
    # A training run that ended before its loop began may have been short of memory.
    may_use_memory = context.memory.generation == 0 or context.memory.training_began_at > 0.0
    allowed = places if may_use_memory else places[1:]
    kept = next((place for place in allowed if fetching.is_restored(place, manifest)), None)
    for place in places:
        if place != kept:
            shutil.rmtree(place, ignore_errors=True)
    uploaded = {} if kept else context.uploaded_slots
    slots: dict[int, Path] = {}
    for slot in node.arena_slots():
        save, rank = uploaded.get(slot, (None, -1))
        if save == manifest.save:
            slots[rank] = slot
        else:
            slot.unlink(missing_ok=True)
    context.uploaded_slots.clear()
    if kept:
        return kept, frozenset(part.rank for part in manifest.parts)
    in_memory = {rank for rank, slot in slots.items() if slot.parent == node.arena}
    missing = sum(part.size for part in manifest.parts if part.rank not in in_memory)
    goes_to_memory = may_use_memory and _has_memory(context, manifest.size, missing)
    target = node.restore_in_memory if goes_to_memory else node.restore
    moved = set()
    sizes = {part.rank: part.size for part in manifest.parts}
    for rank, slot in slots.items():
        with suppress(OSError, KeyError):
            target.mkdir(exist_ok=True)
            os.truncate(slot, sizes[rank])
            shutil.move(slot, target / fetching.part_file(rank))
            moved.add(rank)
        slot.unlink(missing_ok=True)
    return target, frozenset(moved)


def _has_memory(context: NodeContext, size: int, missing: int) -> bool:
    """Return whether memory has room for the missing bytes.

    The training also needs room for each process's state, for two slots and, as an estimate, for the same
    amount again. If no bytes are missing, all of this has fitted into memory before, with one slot more.
    """
    if missing == 0:
        return True
    needed = missing + 2 * size
    try:
        is_room = shutil.disk_usage(context.node.arena).free >= needed
    except OSError:
        return False
    return is_room and (free_memory_bytes() or 0) >= 2 * (needed + context.job.spec.procs_per_node * size)


def on_demand_here(context: NodeContext, checkpoint: CheckpointId) -> Restored | None:
    """Return the checkpoint if an earlier agent on this machine created its files to be fetched on demand.

    Return None if it is not here or was fetched completely.

    Raises:
        CorruptData: the manifest is malformed.
        ObjectMissing: the checkpoint was deleted.
    """
    manifest = manifests.read_manifest(context.store, context.node.job_id, checkpoint)
    for place in (context.node.restore_in_memory, context.node.restore):
        if fetching.is_restored(place, manifest):
            is_late = fetching.is_fetched_on_demand(place)
            return Restored(checkpoint, directory=place, on_demand=manifest) if is_late else None
    return None


def _paths_of(context: NodeContext, manifest: Manifest) -> tuple[list[str], list[str], list[str]]:
    """Return a script's checkpoint as the paths of its files (oldest first), its pointers and its roots.

    Raise CorruptData if the checkpoint would replace other files of the working directory, such as the code.
    """
    patterns = context.job.spec.checkpoint.patterns
    found = [
        (file, file.name if part.directory == "." else f"{part.directory}/{file.name}", part.directory)
        for part in manifest.parts
        for file in part.files
    ]
    roots = {path: root_of(path, patterns) for _, path, _ in found}
    beside = {posixpath.dirname(root) for root in roots.values() if root not in {None, "."}}
    for file, path, directory in found:
        is_pointer = posixpath.dirname(path) in beside and file.size <= MAX_POINTER_BYTES
        is_whole = directory in {".", roots[path]}
        if not is_whole or (roots[path] is None and not is_pointer):
            name = path if directory == "." else directory
            raise CorruptData(
                f"checkpoint {manifest.id} holds {name!r}, which checkpoint.directory does not match"
            )
    paths = [path for _, path, _ in found]
    pointers = [path for path in paths if roots[path] is None]
    return paths, pointers, [root for path in paths if (root := roots[path])]


def _bring(
    context: NodeContext,
    manifest: Manifest,
    directory: Path,
    check: Callable[[], None],
    present: frozenset[int] = frozenset(),
    nodes: Sequence[int] | None = None,
    accept: Callable[[Path], None] = lambda _root: None,
) -> None:
    store = _InsistentStore(context, check)
    size = sum(part.size for part in manifest.parts if nodes is None or part.rank in nodes)
    with context.status.transferring("restoring", size) as add:

        def progress(num_bytes: int) -> None:
            check()
            add(num_bytes)

        num_here = fetching.fetch(
            store,
            context.node.job_id,
            manifest,
            directory,
            present=present,
            nodes=nodes,
            accept=accept,
            progress=progress,
        )
    if num_here:
        _log.info("checkpoint %s: %d of %d bytes were here", manifest.id, num_here, manifest.size)


class _InsistentStore(WrappedStore):
    """Retries each request separately, so after an outage a fetch continues where it stopped."""

    def __init__(self, context: NodeContext, check: Callable[[], None]) -> None:
        super().__init__(context.store)
        self._retry_until = context.retry_until
        self._check = check

    def _call(self, method: str, key: str, request: Callable[[], T]) -> T:
        return self._retry_until(request, sleep=self._pause)

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)
        self._check()
