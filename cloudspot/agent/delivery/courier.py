"""Upload sealed arena slots and complete checkpoint directories, and commit them.

The trainer never waits for an upload: it uses the other slot meanwhile. A seal that a killed agent had
claimed still exists under another name, and is claimed again.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from cloudspot.agent.delivery.checkpoint_restore import Restored
from cloudspot.agent.delivery.directory_uploads import DirectoryUploads
from cloudspot.agent.delivery.loss_rate import losses_per_second
from cloudspot.agent.delivery.sent_chunks import SentChunks
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.worker import Worker
from cloudspot.errors import CloudspotError, CorruptData
from cloudspot.host.boot_clock import this_boot
from cloudspot.jobstore.checkpoints import manifests, parts, retention
from cloudspot.jobstore.checkpoints.compression import Compression
from cloudspot.jobstore.journal.lineage import head, may_follow
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Commit, Generation, SaveCost, SaveId, new_nonce
from cloudspot.jobstore.layout.seals import Seal, parse_seal
from cloudspot.train import handoff as files

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
MAX_SEAL_BYTES = 256 << 20
"""A seal contains the table of the part and all state that is not in tensors."""
MAX_BACKOFF_SECONDS = 5.0
HURRIED_BACKOFF_SECONDS = 0.5
"""The longest backoff after a notice: the agent must not sleep through the end of an outage."""
YIELD_SECONDS = 0.5
"""How long the other nodes leave a save's commit to the node of rank 0."""
SETTLE_DIRECTORIES_SECONDS = 600.0
"""An unreadable directory delays the next generation by this long at most."""
WARN_SHARE = 0.7
"""If an upload takes more than this share of the notice, the user is warned."""
LAST_UPLOAD_FACTOR = 1.2
"""How many times longer than the previous upload, which was throttled, the upload of a last save may take."""


@dataclass(frozen=True)
class _SealFile:
    """A seal file that waits in a hand-off directory."""

    path: Path
    name: files.SealName
    is_last: bool


class Courier(Worker):
    """A thread that uploads and commits the trainer's seals, those of a drain first."""

    def __init__(self, context: NodeContext, *, before_upload: Callable[[], None] = lambda: None) -> None:
        """``before_upload`` is called before each upload that is not a last save, to deliver earlier data."""
        super().__init__("courier")
        self._before_upload = before_upload
        self._context = context
        self._store = context.store
        self._node = context.node
        self._spec = spec = context.job.spec
        self._status = context.status
        self._orders = context.orders
        self._seals: dict[tuple[int, ...], Seal] = {}
        """The seals that were read and are not fully uploaded, by their numbers."""
        self._begun: dict[tuple[int, ...], parts.Upload] = {}
        """The uploads that this agent has begun and not finished, by the seals' numbers."""
        self._served: frozenset[str] = frozenset()
        """Hand-offs of ended generations that have no seals; they are skipped, as there may be hundreds of
        them.
        """
        self._wake = threading.Event()
        self._busy = threading.Lock()
        """Held during an upload."""
        self._sent = SentChunks(context)
        self._compression = Compression() if spec.checkpoint.compression == "zstd" else None
        self._directories: DirectoryUploads | None = None
        if spec.checkpoint.directory is not None:
            self._directories = DirectoryUploads(
                context, self._sent, self._compression, before_upload=before_upload
            )
        self._may_seal = context.memory.trainer_pid != 0
        """Whether a running trainer may still seal a slot."""
        self._has_committed = False
        """Whether there may be old checkpoints to delete."""
        self._collecting: threading.Thread | None = None
        self._orphans_at = 0.0
        """When to look next for orphaned objects, which no manifest names (monotonic)."""
        self._num_nodes = spec.nodes.max
        """The number of nodes that train."""

    def start(self) -> None:
        """Begin to upload."""
        super().start()
        if self._directories is not None:
            self._directories.start()

    def begin(self, generation: Generation, restored: Restored) -> None:
        """Serve a new generation: write its tuning, and record the restored chunks, which need no upload."""
        handoff = self._node.handoff(generation.number)
        with self._busy:
            left = {seal.path.parent.parent.name for seal in self._pending()}
            self._served = _names_in(handoff.parent) - left - {handoff.name}
            self._seals.clear()
            self._begun.clear()
            self._may_seal = True
            self._num_nodes = len(generation.members)
            self._sent.begin(restored.contents)
            self._drop_slots()
            self._status.committed = restored.checkpoint or self._status.committed
            if self._directories is not None:
                self._directories.begin(restored)
        self._write_tuning(handoff)

    def adopt(self) -> None:
        """Serve a generation that an earlier agent began and whose trainer is still running."""
        if self._directories is not None:
            self._directories.adopt()

    def ask_script(self) -> None:
        """Record that a script without a session is now asked to save and leave."""
        if self._directories is not None:
            self._directories.ask()

    @property
    def answered_at(self) -> float | None:
        """When the checkpoint that the script saved on request was committed (monotonic), or None."""
        return None if self._directories is None else self._directories.answered_at

    def has_answer(self) -> bool:
        """Return whether the script has completed a requested checkpoint, at least on this node's disk."""
        return self._directories is not None and self._directories.has_answer()

    def end_of_trainer(self, *, exited_0: bool, is_leaving: bool) -> None:
        """Record that the trainer of this generation has ended; call this before anything slow."""
        self._may_seal = False
        if self._directories is not None:
            self._directories.end_of_script(exited_0=exited_0, is_leaving=is_leaving)

    def settle(self) -> None:
        """Wait until all saves of an ended generation are in the bucket, or the node gets an order.

        The trainer has ended, so no further seal will appear. Then free the slots, except those whose content
        is in the bucket: the next generation may resume from them.
        """
        until = time.monotonic() + SETTLE_DIRECTORIES_SECONDS
        while not self._orders.pending and self._work_left(with_directories=time.monotonic() < until):
            self._wake.set()
            time.sleep(POLL_SECONDS)
        if not self._pending():
            self._drop_slots(but=self._context.uploaded_slots)

    def set_aside_torn(self) -> None:
        """Move away the checkpoint directories that the script left incomplete when it ended."""
        if self._directories is not None:
            with self._busy:
                self._directories.set_aside_torn()

    def finish(self, *, until: Callable[[], float]) -> bool:
        """Upload and commit the rest; return whether everything is in the bucket.

        ``until`` returns the moment to stop (monotonic), which may move earlier.
        """
        self._may_seal = False
        left = self._thread.is_alive() and self._work_left()
        while left and time.monotonic() < until():
            self._wake.set()
            time.sleep(POLL_SECONDS)
            left = self._thread.is_alive() and self._work_left()
        while self._is_collecting() and not self._orders.pending and time.monotonic() < until():
            time.sleep(POLL_SECONDS)
        self.stop()
        self._wake.set()
        if self._directories is not None:
            self._directories.stop()
        return not left and not self._pending()

    def _drop_slots(self, *, but: Collection[Path] = ()) -> None:
        for slot in self._node.arena_slots():
            if slot not in but:
                slot.unlink(missing_ok=True)
                self._context.uploaded_slots.pop(slot, None)

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        wait = 0.0
        while not self._stopped.is_set():
            try:
                with self._busy:
                    self._carry_seals()
                    if self._directories is not None:
                        self._directories.carry(self._commit)
                if self._has_committed and not self._orders.pending:
                    self._start_collecting()
                wait = 0.0
            except CloudspotError as error:
                most = MAX_BACKOFF_SECONDS if self._orders.reclaim is None else HURRIED_BACKOFF_SECONDS
                wait = min(max(0.25, 2 * wait), most)
                _log.warning("a checkpoint waits for the store: %s", error)
            self._wake.wait(max(POLL_SECONDS, wait))
            self._wake.clear()

    def _work_left(self, *, with_directories: bool = True) -> bool:
        # Wait for the lock, so that a thread that keeps acquiring it lets this one in.
        if self._busy.acquire(timeout=POLL_SECONDS):
            try:
                if self._pending():
                    return True
                return with_directories and self._directories is not None and bool(self._directories.unsent())
            finally:
                self._busy.release()
        return True

    def _pending(self) -> list[_SealFile]:
        """Return the seals on this node in the order in which to upload them.

        The last save of a generation comes first: the machine may be about to disappear, and earlier seals
        are worth less. Next come the seals that were already claimed, then all others by step.
        """
        found = []
        handoffs = self._node.directory / "generations"
        for handoff in sorted(_names_in(handoffs) - self._served):
            for path in files.seals_directory(handoffs / handoff).glob("*.json"):
                name = files.parse_seal_name(path.name)
                if name is not None:
                    found.append(_SealFile(path, name, is_last=self._is_last(path, name)))
        return sorted(
            found,
            key=lambda s: (not s.is_last, not s.name.taken, s.name.number),
        )

    def _is_last(self, path: Path, name: files.SealName) -> bool:
        """Return whether a seal is its rank's last of the generation, from a drain or the end of the loop."""
        try:
            return self._seal(path, name).kind != "interval"
        except CorruptData:  # malformed, or withdrawn meanwhile
            return False

    def _seal(self, path: Path, name: files.SealName) -> Seal:
        """Return the content of a seal, which is read only once.

        Raises:
            CorruptData: the file is missing or malformed, or its content does not match its name.
        """
        seal = self._seals.get(name.number)
        if seal is None:
            try:
                seal = parse_seal(_read_seal(path), path.name)
            except OSError as error:
                raise CorruptData(f"{path.name} cannot be read: {error!r}") from error
            if (seal.generation, seal.step, seal.round, seal.rank) != name.number:
                raise CorruptData(f"{path.name} holds the seal of another part")
            self._seals[name.number] = seal
        return seal

    def _carry_seals(self) -> None:
        # List the seals again after each upload: a drain that was sealed during the upload comes next.
        while not self._stopped.is_set() and (pending := self._pending()):
            seal = pending[0]
            may_wait = not seal.name.taken or seal.name.number in self._begun
            if not seal.is_last and may_wait and self._expects_drain():
                return  # this upload could delay the drain's
            taken = seal.path.with_name(seal.name.taken_name)
            if not seal.name.taken:
                try:
                    seal.path.rename(taken)
                except FileNotFoundError:  # the trainer withdrew it for a drain
                    continue
            # Unless the save is urgent, the node of rank 0 goes first: if all nodes saw a complete save at
            # once, each would make all the requests of a commit.
            more = any(one.name.number[:3] == seal.name.number[:3] for one in pending[1:])
            waits = not (seal.is_last or more or 0 in self._status.ranks)
            try:
                self._carry(taken, seal.name, is_last=seal.is_last, waits=waits)
            except parts.GaveWay as error:
                _log.info("%s to a generation's last save", error)
            except (CorruptData, manifests.Superseded):
                # Another attempt would not help, and the trainer needs the slot.
                _log.exception("the upload of %s is given up", seal.name.file_name)
                self._forget(taken, seal.name)

    def _expects_drain(self) -> bool:
        """Return whether a rank here was asked to leave by a deadline and may still seal its last state.

        It is False once the trainer has ended; the drain's guard ends it at the latest.
        """
        status = self._status
        if not self._may_seal or self._orders.reclaim is None or not status.has_session:
            return False
        handoff = status.handoff
        if handoff is None or files.read_drain(handoff) is None:
            return False
        marks = files.drained_path, files.ended_loop_path
        return not all(any(mark(handoff, rank).exists() for mark in marks) for rank in status.ranks)

    def _yields_to_last_save(self, name: files.SealName) -> bool:
        """Return whether to interrupt the upload of this interval save for a sealed last save.

        Finish the upload first if it is this node's last part of the save and too little time is left for the
        last save: then the interval save is likelier to be completed in time.
        """
        others = [seal for seal in self._pending() if seal.name.number != name.number]
        if not any(seal.is_last for seal in others):
            return False
        reclaim, seconds = self._orders.reclaim, self._status.upload_seconds
        if reclaim is None or any(seal.name.number[:3] == name.number[:3] for seal in others):
            return True
        return seconds is not None and time.monotonic() + LAST_UPLOAD_FACTOR * seconds < reclaim.deadline

    def _carry(self, taken: Path, name: files.SealName, *, is_last: bool, waits: bool) -> None:
        save = SaveId(name.generation, name.step, name.round)
        newest = head(self._context.journal.known)
        if newest is not None and newest.generation <= save.generation and not may_follow(save, newest):
            _log.info("save %s is not uploaded: checkpoint %s is committed", save, newest)
            self._forget(taken, name)
            return
        seal = self._seal(taken, name)
        self._status.stall_seconds = max(seal.stall_seconds, 0.0)
        if seal.way and seal.kind == "interval":
            self._status.save_cost = SaveCost(
                way=seal.way, copy_seconds=seal.copy_seconds, lost_seconds=seal.lost_seconds
            )
        upload = self._begun.get(name.number)
        is_continued = upload is not None
        if upload is None:
            if not is_last:
                self._before_upload()
            sealed_at = self._context.now() - timedelta(seconds=_age_seconds(seal) or 0.0)
            upload = self._begun[name.number] = parts.Upload(
                self._store,
                self._node.job_id,
                parts.session_part(seal, sealed_at=sealed_at),
                compression=self._compression,
                is_new=not name.taken,
            )
        # Commit before the mapping ends: the kernel takes some 30 ms to unmap a gigabyte.
        with _mapped_slot(seal, taken.name) as data:
            with self._status.transferring("uploading", len(data)) as progress:
                part = upload.run(
                    partial(parts.lend_view, data),
                    sharing=self._sent.sharing(save, name.rank),
                    progress=progress,
                    must_yield=(lambda: False) if is_last else partial(self._yields_to_last_save, name),
                    in_background=not is_last,
                )
            self._sent.note(part)
            self._context.uploaded_slots[Path(seal.slot)] = save, name.rank
            self._context.known_parts[keys.part(self._node.job_id, save, name.rank)] = part
            waited = 0.0
            if waits:
                began = time.monotonic()
                self._orders.wait(YIELD_SECONDS)
                waited = time.monotonic() - began
            # Upload times after an interruption, an outage or a reboot do not predict the next upload's.
            is_measured = not is_continued and _age_seconds(seal) is not None
            self._commit(save, seal.sealed_monotonic + waited if is_measured else None)
        self._forget(taken, name)

    def _forget(self, taken: Path, name: files.SealName) -> None:
        taken.unlink(missing_ok=True)
        self._seals.pop(name.number, None)
        self._begun.pop(name.number, None)

    def _commit(self, save: SaveId, began: float | None) -> Commit | None:
        """Commit the save if it is complete; ``began`` is the start of its upload (monotonic), if known."""
        context, known = self._context, self._context.known_parts
        writer = new_nonce()
        commit = manifests.try_commit(
            self._store, context.journal, context.job_id, save, known=known, writer=writer
        )
        # Record the time even if another node uploads the last part: a drain here must know how long this
        # node's uploads take.
        if began is not None:
            self._uploaded(time.monotonic() - began)
        if commit is not None:
            self._committed(commit)
            # Only the node that appended the commit deletes old checkpoints.
            self._has_committed = self._has_committed or commit.writer == writer
        return commit

    def _uploaded(self, seconds: float) -> None:
        status, notice = self._status, self._status.notice_seconds
        status.upload_seconds = seconds
        if notice is not None and seconds > WARN_SHARE * notice:
            text = f"an upload takes {seconds:.0f} s of the {notice:.0f} s that a notice leaves"
            status.warn("upload", text)
        if status.handoff is not None:
            self._write_tuning(status.handoff)

    def _committed(self, commit: Commit) -> None:
        status = self._status
        newest = status.committed
        if newest is None or commit.id > newest:
            status.committed = commit.id
        # The parts of this checkpoint and of older ones are no longer needed.
        known = self._context.known_parts
        for key, part in list(known.items()):
            if part.save.checkpoint <= commit.id:
                known.pop(key, None)
        seconds = status.upload_seconds or 0.0
        # The job's story includes each commit, so not every node's log needs it too.
        _log.debug("committed checkpoint %s (%d bytes, %.2f s)", commit.id, commit.size, seconds)

    def _start_collecting(self) -> None:
        """Delete old checkpoints in a separate thread, because a drain must not wait for deletions."""
        if self._collecting is None or not self._collecting.is_alive():
            self._collecting = threading.Thread(target=self._collect, name="retention", daemon=True)
            self._collecting.start()
            self._has_committed = False  # after the start: ``finish`` waits while either is true

    def _is_collecting(self) -> bool:
        collecting = self._collecting
        return self._has_committed or (collecting is not None and collecting.is_alive())

    def _collect(self) -> None:
        try:
            with_orphans = time.monotonic() >= self._orphans_at
            # A commit that may be torn must not count toward the checkpoints to keep.
            doubtful = 0 if self._directories is None else self._directories.num_doubtful()
            retention.collect(
                self._store,
                self._context.journal,
                self._node.job_id,
                keep=self._spec.checkpoint.keep + doubtful,
                with_orphans=with_orphans,
            )
            if with_orphans:
                self._orphans_at = time.monotonic() + retention.ORPHAN_GRACE_SECONDS
            self._context.journal.copy()  # in this thread, so that uploads continue
        except CloudspotError as error:
            _log.warning("old checkpoints stay until the next commit: %s", error)

    def _write_tuning(self, handoff: Path) -> None:
        if handoff.is_dir():
            tuning = files.Tuning(
                interval_seconds=self._spec.checkpoint.interval,
                upload_seconds=self._status.upload_seconds or 0.0,
                losses_per_second=losses_per_second(self._context.journal.known, self._num_nodes),
            )
            files.write_tuning(handoff, tuning)


@contextmanager
def _mapped_slot(seal: Seal, what: str) -> Iterator[memoryview]:
    """Provide the bytes of a seal's slot while the context is open.

    Raises:
        CorruptData: the bytes cannot be read; the message names ``what``.
    """
    try:
        with Path(seal.slot).open("rb") as slot:
            mapped = mmap.mmap(slot.fileno(), seal.nbytes, access=mmap.ACCESS_READ) if seal.nbytes else b""
    except (OSError, ValueError, OverflowError) as error:
        raise CorruptData(f"{what} cannot be read: {error!r}") from error
    data = memoryview(mapped)
    try:
        yield data
    finally:
        data.release()
        if isinstance(mapped, mmap.mmap):
            mapped.close()


def _age_seconds(seal: Seal) -> float | None:
    """Return how long ago a slot was sealed, or None if the machine has been rebooted since."""
    age = time.monotonic() - seal.sealed_monotonic
    return age if seal.boot == this_boot() and age >= 0 else None


def _read_seal(path: Path) -> bytes:
    """Return the bytes of a seal; raise CorruptData if it is too long."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_SEAL_BYTES:
            raise CorruptData(f"{path.name} is longer than {MAX_SEAL_BYTES} bytes")
        return file.read(MAX_SEAL_BYTES)


def _names_in(directory: Path) -> frozenset[str]:
    try:
        with os.scandir(directory) as found:
            return frozenset(entry.name for entry in found)
    except FileNotFoundError:
        return frozenset()
