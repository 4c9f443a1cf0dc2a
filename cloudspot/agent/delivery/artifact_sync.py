"""Keeps the artifacts directory and its copy in the bucket in sync."""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cloudspot import retrying
from cloudspot.agent.delivery.checkpoint_files import files_below
from cloudspot.agent.worker import Worker
from cloudspot.errors import CloudspotError, ObjectMissing, TransientError
from cloudspot.host.names import make_parents
from cloudspot.host.partial_files import whole_file
from cloudspot.host.piecewise_writes import write_at
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Seat
from cloudspot.model import ObjectMeta

_log = logging.getLogger(__name__)

SYNC_SECONDS = 30.0
MAX_FAILURES = 3
"""In one pass. One bad object must not hold up the others, but a store that is down is not asked for each."""
MAX_SEGMENT_LENGTH = 255
_BLOCK = 8 << 20
_OTHER_NODE = re.compile(r"node-[0-9]+\.[0-9]+/")


class ArtifactSync(Worker):
    """Uploads files that changed; brings them back on the next machine.

    A file is uploaded whole when its size or time changed since the last upload; one that changes
    while it is read is uploaded again by the next pass. A deleted file stays in the bucket.

    One node's names must not overwrite another's: the first node of the training owns the root, and the
    others' names begin with ``node-<launch>.<rank>/``. Once first, a node stays first until it ends.
    """

    def __init__(
        self,
        store: ObjectStore,
        job_id: str,
        directory: Path,
        *,
        seat: Seat,
        prepare: Callable[[Callable[[], bool]], None] = lambda _: None,
    ) -> None:
        """``prepare`` is called before each pass, to update files that are made from others.

        It gets a function that says whether it should end, and the next pass is to go on.
        """
        super().__init__("artifacts")
        self._store = store
        self._job_id = job_id
        self._place = f"node-{seat}/"
        """How the names of its files begin in the store."""
        self._directory = directory
        self._prepare = prepare
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def take_root(self) -> None:
        """Own the root from now on: what changes here later is uploaded there.

        First fetches what the first node before this one has left; files that are here already stay. Safe to
        repeat. What was uploaded under this node's own names stays there too.

        Raises:
            TransientError: the store failed; call again.
        """
        if self._place:
            if self._uploaded:
                self.sync()
            with self._lock:
                self._restore()
                self._place = ""

    def _restore(self) -> None:
        """Fetch the root's files, but for those without a safe name and those that a symlink would take."""
        for meta in self._store.list_objects(keys.artifacts_prefix(self._job_id)):
            match = keys.artifact.match(meta.key)
            if match is None or _OTHER_NODE.match(name := match[1]):
                continue
            try:
                path = make_parents(self._directory, name)
                if os.path.lexists(path):
                    continue
                self._fetch(meta, path)
            except ObjectMissing:
                continue
            except (OSError, ValueError) as error:  # such as a directory of that name
                _log.warning("artifact %r is not restored: %s", name, error)
                continue
            self._uploaded[name] = _stamp(path)

    def _fetch(self, meta: ObjectMeta, path: Path) -> None:
        # Outside the directory until it is whole: an agent killed here must not sync half a file.
        with whole_file(path, beside=self._directory) as file:
            for start in range(0, meta.size, _BLOCK):
                write_at(file.fileno(), self._store.get_range(meta.key, start, _BLOCK), start)

    def sync(
        self,
        *,
        until: Callable[[], float] = lambda: math.inf,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Upload what changed; ``until`` returns when to end (monotonic), which may become earlier.

        Once ``is_stopped``, ``prepare`` should end: another pass waits for this one.

        A file that cannot be read, or whose name makes no key, is left out.

        Raises:
            TransientError: the store failed, or the time was up; the next pass uploads the rest.
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
        for path in files_below(self._directory):
            name = path.relative_to(self._directory).as_posix()
            try:
                stamp = _stamp(path)
            except OSError:  # deleted or renamed meanwhile
                continue
            if self._uploaded.get(name) == stamp:
                continue
            try:
                self._upload(path, name, until)
                self._uploaded[name] = stamp
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                _log.warning("artifact %r is left out: %s", name, error)
                self._uploaded[name] = stamp
            except CloudspotError as error:
                failures.append(error)
                if len(failures) >= MAX_FAILURES or time.monotonic() >= until():
                    break
        if failures:
            raise failures[0]

    def _upload(self, path: Path, name: str, until: Callable[[], float]) -> None:
        key = keys.artifact(self._job_id, self._place + name)
        if any(len(segment) > MAX_SEGMENT_LENGTH for segment in key.split("/")):
            raise ValueError("its name is too long for a key")
        if time.monotonic() >= until():
            raise TransientError("not all artifacts were uploaded in time")
        with path.open("rb") as file:
            block = file.read(_BLOCK)
            if len(block) < _BLOCK:
                # At once: the next pass may come late, on a machine that is paid for only to make it.
                waits = retrying.until(until(), retrying.SHORT_WAITS)
                retrying.retry(lambda: self._store.put(key, block), sleep=time.sleep, waits=waits)
                return
            with self._store.open_upload(key) as upload:
                while block:
                    if time.monotonic() >= until():
                        raise TransientError("not all artifacts were uploaded in time")
                    upload.write(block)
                    block = file.read(_BLOCK)
                upload.commit()

    def _run(self) -> None:
        while not self._stopped.wait(SYNC_SECONDS):
            try:
                self.sync(is_stopped=self._stopped.is_set)
            except CloudspotError as error:
                _log.warning("artifacts wait for the store: %s", error)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
