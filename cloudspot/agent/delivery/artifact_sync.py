"""Keep the artifacts directory and the outputs in sync with their copies in the bucket."""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cloudspot.agent.delivery.checkpoint_files import files_below
from cloudspot.agent.delivery.outputs import MAX_BYTES, OTHERS_SHARE, Found, Outputs, Stamp, listed, stamp_of
from cloudspot.agent.worker import Worker
from cloudspot.calls import retrying
from cloudspot.errors import CloudspotError, ObjectMissing, TransientError
from cloudspot.host.names import make_parents
from cloudspot.host.partial_files import whole_file
from cloudspot.host.piecewise_writes import write_at
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Seat
from cloudspot.model import ObjectMeta

_log = logging.getLogger(__name__)

SYNC_SECONDS = 30.0
LEAVING_SECONDS = 1.0
"""The time between two passes once the machine must leave: the training may run until the last moment."""
SYNC_SHARE = 0.05
"""The share of a core that passes may take before the machine must leave; after that, four times as much."""
MAX_FAILURES = 3
"""A pass ends after this many failures: one bad object must not stop it, but a failed store must."""
MAX_SEGMENT_LENGTH = 255
NUM_THREADS = 8
"""The number of files transferred at once; files larger than a block are uploaded one after the other."""
_BLOCK = 8 << 20
_OTHER_NODE = re.compile(r"node-[0-9]+\.[0-9]+/")


class ArtifactSync(Worker):
    """Uploads changed files, and restores them on the next machine.

    A file is uploaded whole when its size or time has changed since the last upload; a file that changes
    while it is read is uploaded again in the next pass. A deleted file stays in the bucket.

    Nodes must not overwrite each other's files: the first node of the training owns the root, and the names
    of all others begin with ``node-<launch>.<rank>/``. A node that becomes first stays first until it ends.

    The outputs of the training are synced too, from another directory and under keys of their own.
    """

    def __init__(
        self,
        store: ObjectStore,
        job_id: str,
        directory: Path,
        *,
        seat: Seat,
        prepare: Callable[[Callable[[], bool]], None] = lambda _: None,
        outputs: Outputs | None = None,
        is_leaving: Callable[[], bool] = lambda: False,
        must_yield: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the sync; ``prepare`` is called before each pass, to update files derived from others.

        It is passed a function that returns whether it should stop and leave the rest to the next pass.
        ``outputs`` is None if outputs are not kept. Once ``is_leaving`` returns True, the background sync
        makes passes more often, except while ``must_yield`` returns True, because checkpoints come first.
        """
        super().__init__("artifacts")
        self._store = store
        self._job_id = job_id
        self._place = f"node-{seat}/"
        """The prefix of this node's file names in the store."""
        self._directory = directory
        self._prepare = prepare
        self._outputs = outputs
        self._is_leaving = is_leaving
        self._must_yield = must_yield
        self._uploaded: dict[Path, Stamp] = {}
        self._lock = threading.Lock()

    def take_root(self) -> None:
        """Own the root from now on: files that change later are uploaded to the root.

        First fetch the files that the previous owner left; files that exist here are not replaced. It is safe
        to repeat the call. Files that were uploaded under this node's own prefix also stay there.

        Raises:
            TransientError: the store failed; call again.
        """
        if self._place:
            if self._uploaded:
                self.sync()
            with self._lock:
                self._restore(self._directory, self._listed(keys.artifacts_prefix, keys.artifact))
                if self._outputs is not None:
                    found = self._listed(keys.outputs_prefix, keys.output)
                    may_return = self._outputs.may_return
                    self._restore(
                        self._outputs.directory, {name: found[name] for name in found if may_return(name)}
                    )
                    self._outputs.stored = {
                        name: meta.size for name, meta in found.items() if not _OTHER_NODE.match(name)
                    }
                self._place = ""

    def _listed(self, prefix: keys.Key[[str]], key: keys.Key[[str, str]]) -> dict[str, ObjectMeta]:
        """Return the files of all nodes under these keys in the bucket, by name."""
        found = ((key.match(meta.key), meta) for meta in self._store.list_objects(prefix(self._job_id)))
        return {match[1]: meta for match, meta in found if match is not None}

    def _restore(self, directory: Path, files: Mapping[str, ObjectMeta]) -> None:
        """Fetch the root's files, except those with an unsafe name or a symlink in their path."""

        def fetch(name: str) -> None:
            try:
                path = make_parents(directory, name)
                if os.path.lexists(path):
                    return
                self._fetch(files[name], path, directory)
            except ObjectMissing:
                return
            except (OSError, ValueError) as error:  # such as a directory of that name
                _log.warning("artifact %r is not restored: %s", name, error)
                return
            self._uploaded[path] = stamp_of(path.stat())

        map_parallel(fetch, [name for name in files if not _OTHER_NODE.match(name)], num_threads=NUM_THREADS)

    def _fetch(self, meta: ObjectMeta, path: Path, directory: Path) -> None:
        # The file is written outside the directory until it is complete: a killed agent must not leave half a
        # file to be synced.
        with whole_file(path, beside=directory) as file:
            for start in range(0, meta.size, _BLOCK):
                write_at(file.fileno(), self._store.get_range(meta.key, start, _BLOCK), start)
            written_at = meta.modified_at.timestamp()  # if room is short, the newest outputs are kept
            os.utime(file.fileno(), (written_at, written_at))

    def begin_training(self) -> None:
        """Note that the training starts or is already running."""
        if self._outputs is not None:
            self._outputs.begin_training()

    def end_training(self, *, exited_0: bool) -> None:
        """Note that no process of the training writes any more: all files are final."""
        if self._outputs is not None:
            self._outputs.end_training(exited_0=exited_0)

    def stop(self) -> None:
        """End the background sync when no training runs; the caller then calls ``sync`` one last time."""
        super().stop()
        self.end_training(exited_0=False)

    def sync(
        self,
        *,
        until: Callable[[], float] = lambda: math.inf,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Upload the changed files until the moment ``until()`` (monotonic), which may move earlier.

        ``prepare`` should end once ``is_stopped`` returns True: another pass is waiting for this one.

        A file is skipped if it cannot be read or its name cannot be part of a key.

        Raises:
            TransientError: the store failed, or time ran out; the next pass uploads the rest.
        """
        if not self._lock.acquire(timeout=min(max(0.0, until() - time.monotonic()), threading.TIMEOUT_MAX)):
            raise TransientError("not all artifacts were uploaded in time")
        try:
            self._sync(until, is_stopped)
        finally:
            self._lock.release()

    def _sync(self, until: Callable[[], float], is_stopped: Callable[[], bool]) -> None:
        self._prepare(lambda: is_stopped() or time.monotonic() >= until())
        failures: list[CloudspotError] = []
        self._send(keys.artifact, list(self._artifacts()), until, failures)
        try:
            self._send_outputs(until, failures)
        except CloudspotError as error:
            failures.append(error)
        if failures:
            raise failures[0]

    def _artifacts(self) -> Iterator[Found]:
        for path in files_below(self._directory):
            with suppress(OSError):  # deleted or renamed meanwhile
                yield Found(path.relative_to(self._directory).as_posix(), path, stamp_of(path.stat()))

    def _send_outputs(self, until: Callable[[], float], failures: list[CloudspotError]) -> None:
        outputs = self._outputs
        if outputs is None:
            return
        try:
            plan = outputs.plan(self._room, self._is_sent)
        except OSError as error:
            raise TransientError(f"the outputs cannot be listed now: {error}") from error
        self._delete(outputs, plan.conflicting)
        known, num_failures = {*outputs.stored}, len(failures)
        outputs.stored |= self._send(keys.output, plan.files, until, failures)
        new = {name: size for name, size in outputs.stored.items() if name not in known}
        if new:
            _log.info("kept as artifacts: %s", listed(new))
        if len(failures) == num_failures:
            self._delete(outputs, plan.older)

    def _delete(self, outputs: Outputs, names: Sequence[str]) -> None:
        going = {name: outputs.stored[name] for name in names}
        for name in going:
            self._store.delete(keys.output(self._job_id, self._place + name))
            self._uploaded.pop(outputs.directory / name, None)
            del outputs.stored[name]
        if going:
            _log.warning("deleted from the store to make room for newer outputs: %s", listed(going))

    def _room(self) -> float:
        assert self._outputs is not None
        if not self._place:
            return MAX_BYTES * (1 - OTHERS_SHARE if self._outputs.has_other_nodes else 1)
        found = self._listed(keys.outputs_prefix, keys.output)
        others = (name for name in found if _OTHER_NODE.match(name) and not name.startswith(self._place))
        return MAX_BYTES * OTHERS_SHARE - sum(found[name].size for name in others)

    def _is_sent(self, found: Found) -> bool:
        return self._uploaded.get(found.path) == found.stamp

    def _send(
        self,
        key: keys.Key[[str, str]],
        files: Sequence[Found],
        until: Callable[[], float],
        failures: list[CloudspotError],
    ) -> dict[str, int]:
        """Upload changed files; return the uploaded files' sizes by name, and add errors to ``failures``."""
        sent: dict[str, int] = {}

        def send(found: Found) -> None:
            if len(failures) >= MAX_FAILURES:
                return
            try:
                self._upload(key(self._job_id, self._place + found.name), found, until)
                sent[found.name] = found.stamp.size
            except FileNotFoundError:  # or replaced
                return
            except (OSError, ValueError) as error:
                _log.warning("artifact %r is left out: %s", found.name, error)
            except CloudspotError as error:
                failures.append(error)
                return
            self._uploaded[found.path] = found.stamp

        wanted = [found for found in files if not self._is_sent(found)]
        map_parallel(send, [found for found in wanted if found.stamp.size < _BLOCK], num_threads=NUM_THREADS)
        map_parallel(send, [found for found in wanted if found.stamp.size >= _BLOCK], num_threads=1)
        return sent

    def _upload(self, key: str, found: Found, until: Callable[[], float]) -> None:
        if any(len(segment) > MAX_SEGMENT_LENGTH for segment in key.split("/")):
            raise ValueError("its name is too long for a key")
        if time.monotonic() >= until():
            raise TransientError("not all artifacts were uploaded in time")
        with found.path.open("rb") as file:
            block = file.read(_BLOCK)
            if len(block) < _BLOCK:
                found.check(file)
                # Retry at once: the next pass may be far away, and the machine may be paid for only until
                # that pass is done.
                waits = retrying.until(until(), retrying.SHORT_WAITS)
                retrying.retry(lambda: self._store.put(key, block), sleep=time.sleep, waits=waits)
                return
            with self._store.open_upload(key) as upload:
                while block:
                    if time.monotonic() >= until():
                        raise TransientError("not all artifacts were uploaded in time")
                    upload.write(block)
                    block = file.read(_BLOCK)
                found.check(file)
                upload.commit()

    def _run(self) -> None:
        ended_at, used = time.monotonic(), 0.0
        while not self._stopped.wait(min(LEAVING_SECONDS, SYNC_SECONDS)):
            pause, share = (
                (LEAVING_SECONDS, 4 * SYNC_SHARE) if self._is_leaving() else (SYNC_SECONDS, SYNC_SHARE)
            )
            if self._must_wait() or time.monotonic() < ended_at + max(pause, used / share):
                continue
            began = time.thread_time()
            try:
                self.sync(
                    until=lambda: -math.inf if self._must_wait() else math.inf,
                    is_stopped=self._stopped.is_set,
                )
            except CloudspotError as error:
                if not self._must_wait():
                    _log.warning("artifacts are waiting for the store: %s", error)
            ended_at, used = time.monotonic(), time.thread_time() - began

    def _must_wait(self) -> bool:
        """Return whether a checkpoint needs all of the remaining time."""
        return self._is_leaving() and self._must_yield()
