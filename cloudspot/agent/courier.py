"""Takes sealed arena slots and finished checkpoint directories to the bucket, and commits them.

The trainer never waits for it: a slot is read while the training goes on with the other one. A seal
that was taken by an agent that was killed is still there under its other name, and is taken again.
"""

from __future__ import annotations

import logging
import mmap
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from cloudspot.agent.directories import CheckpointDirectories, ReadyDirectory, fingerprint_of, stage
from cloudspot.agent.node import Node
from cloudspot.agent.restore import Restored
from cloudspot.agent.status import Orders, Status
from cloudspot.errors import CloudspotError, CorruptData, TransientError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import manifests
from cloudspot.jobstore.records import CheckpointId, Commit, Generation
from cloudspot.spec import JobSpec
from cloudspot.train import handoff as files

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
SCAN_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 5.0
WARN_SHARE = 0.7
"""Of the notice that an upload may take before the user is warned."""
LOSSES_PER_NODE_SECOND = 1.0 / 86400.0
"""The prior rate of machines lost without a usable notice: one a node-day."""


@dataclass(frozen=True)
class _Seal:
    """A seal file that waits in a hand-off directory."""

    path: Path
    name: files.SealName


class Courier:
    """A thread that uploads what the trainer has sealed, newest drain first, and commits it."""

    def __init__(self, store: ObjectStore, node: Node, spec: JobSpec, status: Status, orders: Orders) -> None:
        self._store = store
        self._node = node
        self._spec = spec
        self._status = status
        self._orders = orders
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._busy = threading.Lock()
        """Held while anything is being uploaded."""
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
        self._directories: CheckpointDirectories | None = None
        if spec.checkpoint.directory is not None:
            self._directories = CheckpointDirectories(
                node.work, spec.checkpoint.directory, spec.checkpoint.complete_file
            )
        self._known: set[tuple[str, int]] = set()
        """Directories that are in the bucket: name and hash of the fingerprint."""
        self._scanned_at = 0.0
        self._alive = True
        self.notice_seconds: float | None = None

    def start(self) -> None:
        """Begin to upload."""
        self._thread.start()

    def begin(self, generation: Generation, restored: Restored) -> None:
        """Serve a new generation: its tuning, and what need not be uploaded again."""
        with self._busy:
            self._alive = True
            self._status.committed = restored.checkpoint or self._status.committed
            if self._directories is not None:
                for path in self._node.work.glob(self._spec.checkpoint.directory or ""):
                    if restored.directory_name == path.relative_to(self._node.work).as_posix():
                        self._known.add((restored.directory_name, hash(fingerprint_of(path))))
        self._write_tuning(self._node.handoff(generation.number))

    def settle(self) -> None:
        """Return when all that an ended generation has sealed is in the bucket.

        Its trainer is dead, so no further seal will come; its slots are then freed.
        """
        while self._pending() and not self._orders.pending:
            self._wake.set()
            time.sleep(POLL_SECONDS)
        if not self._pending():
            for slot in self._node.arena.glob("slot-*"):
                slot.unlink(missing_ok=True)
            for slot in self._node.spill.glob("slot-*"):
                slot.unlink(missing_ok=True)

    def finish(self, *, deadline: float) -> bool:
        """Upload and commit what is left until the monotonic ``deadline``; say whether all got out."""
        self._alive = False
        self._scanned_at = 0.0
        self._wake.set()
        while time.monotonic() < deadline:
            if not self._thread.is_alive() or not self._work_left():
                break
            time.sleep(POLL_SECONDS)
        self._stopped.set()
        self._wake.set()
        return not self._pending()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        wait = 0.0
        while not self._stopped.is_set():
            try:
                with self._busy:
                    self._carry_seals()
                    self._carry_directories()
                wait = 0.0
            except CloudspotError as error:
                wait = min(max(0.25, 2 * wait), MAX_BACKOFF_SECONDS)
                _log.warning("a checkpoint waits for the store: %s", error)
            self._wake.wait(max(POLL_SECONDS, wait))
            self._wake.clear()

    def _work_left(self) -> bool:
        if self._busy.acquire(blocking=False):
            try:
                return bool(self._pending()) or bool(self._unsent_directories())
            finally:
                self._busy.release()
        return True

    def _pending(self) -> list[_Seal]:
        """Return the seals on this node: taken ones first, then a drain's, then by step."""
        found = []
        for path in self._node.directory.glob("generations/*/seals/*.json"):
            name = files.parse_seal_name(path.name)
            if name is not None:
                found.append(_Seal(path, name))
        return sorted(found, key=lambda s: (not s.name.taken, s.name.generation, s.name.step, s.name.rank))

    def _carry_seals(self) -> None:
        for seal in self._pending():
            taken = seal.path.with_name(seal.name.taken_name)
            if not seal.name.taken:
                try:
                    seal.path.rename(taken)
                except FileNotFoundError:  # the trainer withdrew it for a drain
                    continue
            try:
                self._carry(taken, seal.name)
            except CorruptData:
                # Trying again would not mend it, and would keep the slot from the trainer.
                _log.exception("checkpoint %d-%d is given up", seal.name.generation, seal.name.step)
                taken.unlink(missing_ok=True)

    def _carry(self, taken: Path, name: files.SealName) -> None:
        raw = taken.read_bytes()
        seal = files.read_json(taken)
        if seal is None:
            return
        self._status.stall_seconds = max(seal["stall_seconds"], 0.0)
        size = seal["nbytes"]
        with Path(seal["slot"]).open("rb") as slot:
            mapped = mmap.mmap(slot.fileno(), size, access=mmap.ACCESS_READ) if size else b""
        data = memoryview(mapped)
        try:
            manifests.upload_part(
                self._store,
                self._node.job_id,
                CheckpointId(name.generation, name.step),
                rank=name.rank,
                num_parts=seal["world_size"],
                data=data,
                seal=raw,
                sealed_at=datetime.fromtimestamp(seal["sealed_at_unix"], timezone.utc),
            )
        finally:
            data.release()
            if isinstance(mapped, mmap.mmap):
                mapped.close()
        self._commit(CheckpointId(name.generation, name.step), seal["sealed_at_unix"])
        taken.unlink()

    def _commit(self, checkpoint: CheckpointId, sealed_at_unix: float) -> None:
        commit = manifests.try_commit(self._store, self._node.job_id, checkpoint)
        if commit is None:
            return
        self._committed(commit, time.time() - sealed_at_unix)

    def _committed(self, commit: Commit, upload_seconds: float) -> None:
        status = self._status
        newest = status.committed
        if newest is None or commit.id > newest:
            status.committed = commit.id
        status.upload_seconds = max(0.0, upload_seconds)
        _log.info("committed checkpoint %s (%d bytes, %.2f s)", commit.id, commit.size, upload_seconds)
        notice = self.notice_seconds
        if notice is not None and upload_seconds > WARN_SHARE * notice:
            status.warnings = (
                f"an upload takes {upload_seconds:.0f} s of the {notice:.0f} s that a notice leaves",
            )
        if status.handoff is not None:
            self._write_tuning(status.handoff)
        if self._orders.reclaim is None:  # with minutes to live there is better to do than to tidy up
            manifests.collect(self._store, self._node.job_id, keep=self._spec.checkpoint.keep)

    def _write_tuning(self, handoff: Path) -> None:
        if handoff.is_dir():
            tuning = files.Tuning(
                interval_seconds=self._spec.checkpoint.interval,
                upload_seconds=self._status.upload_seconds or 0.0,
                losses_per_second=LOSSES_PER_NODE_SECOND * self._spec.nodes.max,
            )
            files.write_tuning(handoff, tuning)

    # --- directories ----------------------------------------------------------------------------

    def _carry_directories(self) -> None:
        if self._directories is None or time.monotonic() - self._scanned_at < SCAN_SECONDS:
            return
        self._scanned_at = time.monotonic()
        unsent = self._unsent_directories()
        for directory in unsent:
            try:
                self._carry_directory(directory)
            except CorruptData:
                _log.exception("%s is given up", directory.name)
                self._known.add((directory.name, hash(directory.fingerprint)))

    def _unsent_directories(self) -> list[ReadyDirectory]:
        if self._directories is None or self._status.has_session:
            return []
        ready = self._directories.ready(time.monotonic(), alive=self._alive)
        newest = max((d.step for d in ready), default=0)
        return [d for d in ready if d.step == newest and (d.name, hash(d.fingerprint)) not in self._known]

    def _carry_directory(self, directory: ReadyDirectory) -> None:
        staged = stage(directory, self._node.staging)
        if staged is None:
            return
        root, table = staged
        sealed_at = time.time()
        checkpoint = CheckpointId(self._status.generation, directory.step)
        manifests.upload_directory(
            self._store,
            self._node.job_id,
            checkpoint,
            rank=0,
            num_parts=1,
            root=root,
            files=table,
            directory=directory.name,
            sealed_at=datetime.fromtimestamp(sealed_at, timezone.utc),
        )
        if fingerprint_of(root) != directory.fingerprint:
            message = f"{directory.name} changed while it was uploaded"
            raise TransientError(message)
        self._commit(checkpoint, sealed_at)
        self._known.add((directory.name, hash(directory.fingerprint)))
