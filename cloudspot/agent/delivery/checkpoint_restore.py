"""Restores the newest checkpoint of the lineage that verifies to this node's disk."""

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
    """What was restored."""

    checkpoint: CheckpointId | None
    """None: there is no checkpoint, and the job starts at step 0."""
    directory: Path | None = None
    """For a session's checkpoint: what CLOUDSPOT_RESTORE names."""
    directory_name: str | None = None
    """For a script's own checkpoint: its directory, or its first file, relative to the working directory."""
    files: frozenset[str] = frozenset()
    """The paths of its files, relative to the working directory."""
    skipped: tuple[Skipped, ...] = ()
    contents: frozenset[ChunkContent] = frozenset()
    """What its chunks hold."""
    on_demand: Manifest | None = None
    """Set if this node's share comes later: of a session's, only the files were made, and ``OnDemandFetch``
    brings what the ranks ask for; what scripts saved on several nodes, ``restore_own`` brings."""


def restore_newest(context: NodeContext, *, check: Callable[[], None] | None = None) -> Restored:
    """Fetch the best candidate of the lineage; skip those that do not verify, and log them.

    A candidate that is deleted meanwhile was superseded by a newer one, which is tried instead. ``check`` is
    called all the while, and raises what ends it; None: what an order to leave raises.

    Raises:
        LeavingError: there were checkpoints, and none is left that verifies: starting from step 0 would throw
            the work away without asking.
    """
    node, check = context.node, check or context.obey
    for late in context.retry_until(lambda: manifests.complete(context.store, context.journal, node.job_id)):
        _log.info("checkpoint %s was whole but not committed yet: committed it", late)
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
            if not context.retry_until(lambda c=candidate: manifests.stands(context.store, node.job_id, c)):  # type: ignore[misc]
                _log.info("checkpoint %s was deleted meanwhile, looking for a newer one", candidate)
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
    """Return what ``restore_newest`` would try first, apart from those that are known not to verify."""
    found = context.retry_until(
        lambda: retention.standing_checkpoints(context.store, context.node.job_id, journal)
    )
    bad = {one.checkpoint for one in skipped}
    return next((one for one in found if one not in bad), None)


def restore_this(
    context: NodeContext, checkpoint: CheckpointId | None, restored: Restored | None
) -> Restored | None:
    """Fetch the checkpoint that another node has chosen, unless it was restored here already.

    None: it has been deleted, so the generation that was to resume from it cannot start here.

    Raises:
        LeavingError: it does not verify here.
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
        if not context.retry_until(lambda: manifests.stands(context.store, context.node.job_id, checkpoint)):
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
        if len(manifest.parts) > 1:  # which of them are this node's is known once its place is
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
        _log.warning("memory has no room any more, restoring to the disk: %s", error)
        shutil.rmtree(target, ignore_errors=True)
        target = node.restore
        _bring(context, manifest, target, check)
    return replace(restored, directory=target)


def restore_own(context: NodeContext, restored: Restored, *, place: int, num_nodes: int) -> Restored:
    """Fetch what scripts have saved on several nodes: of as many nodes the one in this place, else all.

    Call it once the generation is known; anything else was restored before.

    Raises:
        CorruptData: a chunk does not verify, and all nodes know of it by now; or the checkpoint was deleted.
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
            "checkpoint %s is of %d nodes, and %d train: this one gets all files, and of equal paths those "
            "of node %d", manifest.id, num_parts, num_nodes, nodes[0],
        )  # fmt: skip
    try:
        _bring_files(context, manifest, context.obey, nodes=nodes)
    except CorruptData as error:
        reason = str(error)
        if context.retry_until(lambda: manifests.stands(context.store, context.job_id, manifest.id)):
            context.retry_until(
                lambda: retention.note_damage(context.store, context.job_id, manifest.id, reason)
            )
        raise
    return replace(restored, on_demand=None)


def _bring_files(
    context: NodeContext, manifest: Manifest, check: Callable[[], None], *, nodes: Sequence[int]
) -> None:
    """Fetch what scripts have saved on these nodes, in place of what lies there under its name."""
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
                raise CorruptData(f"checkpoint {manifest.id} has {path!r}, which is not part of it")

    _bring(context, manifest, work, check, nodes=nodes, accept=accept)


def _is_of_this_node(context: NodeContext, manifest: Manifest) -> bool:
    """Return whether what lies under a script's checkpoint's name is that checkpoint, or a newer one.

    It is where this node's last generation has written it on rank 0, or has resumed from it: whatever that
    has written and not completed is set aside by now.
    """
    memory = context.memory
    if memory.generation == 0:
        return False  # nothing has run here, and a fork's checkpoint is of generation 0 as well
    if memory.generation == manifest.generation:
        return memory.first_rank == 0
    generations = generations_of(context.journal.known)
    return any(one.number == memory.generation and one.restore_from == manifest.id for one in generations)


def _is_read_in_part(context: NodeContext, manifest: Manifest) -> bool:
    """Return whether a node of several reads less than all of it, as it is sharded over more than one node.

    Which part only its ranks can say, once their model is made: each asks for what it reads.
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
    """Return where a session's checkpoint goes, and the ranks whose parts may be there already.

    Those are what this machine has restored before, and slots of the arena from which it was uploaded. No
    process of the training lives any more: what is verified there stays as it is.
    """
    node = context.node
    places = node.restore_in_memory, node.restore
    # A training that ended before its loop may have been short of memory.
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
    """Return whether memory has room for what is missing there.

    The training needs room besides: for the state in each process, for two slots, and for as much again of
    which nothing is known here. If nothing is missing, it had all that with one slot more.
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
    """Return the checkpoint whose files an earlier agent of this machine has made for its ranks to ask for.

    None: it is not here, or was fetched whole.

    Raises:
        CorruptData: its manifest is malformed.
        ObjectMissing: it was deleted.
    """
    manifest = manifests.read_manifest(context.store, context.node.job_id, checkpoint)
    for place in (context.node.restore_in_memory, context.node.restore):
        if fetching.is_restored(place, manifest):
            is_late = fetching.comes_on_demand(place)
            return Restored(checkpoint, directory=place, on_demand=manifest) if is_late else None
    return None


def _paths_of(context: NodeContext, manifest: Manifest) -> tuple[list[str], list[str], list[str]]:
    """Return the paths of a script's checkpoint, the oldest first, of files that only name it, and its roots.

    Refuses a checkpoint that would replace anything else in the working directory, such as the code.
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
            raise CorruptData(f"checkpoint {manifest.id} is of {name!r}, which is no checkpoint.directory")
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
    """Repeats each request by itself, so that a fetch goes on where an outage has stopped it."""

    def __init__(self, context: NodeContext, check: Callable[[], None]) -> None:
        super().__init__(context.store)
        self._retry_until = context.retry_until
        self._check = check

    def _call(self, method: str, key: str, request: Callable[[], T]) -> T:
        return self._retry_until(request, sleep=self._pause)

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)
        self._check()
