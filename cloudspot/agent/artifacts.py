"""Keeps the job's artifacts directory and its copy in the bucket alike."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from urllib.parse import quote, unquote

from cloudspot.errors import CloudspotError, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import keys

_log = logging.getLogger(__name__)

SYNC_SECONDS = 30.0
_BLOCK = 8 << 20


class Artifacts:
    """Uploads files that changed; brings them back on the next machine.

    A file is uploaded whole when its size or time changed since the last upload; one that changes
    while it is read is uploaded again by the next pass. A deleted file stays in the bucket.
    """

    def __init__(self, store: ObjectStore, job_id: str, directory: Path, *, rank: int) -> None:
        self._store = store
        # One node's names must not overwrite another's: rank 0 owns the root.
        self._prefix = keys.artifacts_prefix(job_id) + ("" if rank == 0 else f"node-{rank}/")
        self._directory = directory
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="artifacts", daemon=True)

    def restore(self) -> None:
        """Fetch what an earlier machine left; a file that is here already is kept."""
        for meta in self._store.list_objects(self._prefix):
            name = unquote(meta.key[len(self._prefix) :])
            path = self._directory / name
            if name.startswith("node-") or path.exists() or ".." in Path(name).parts:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                data = self._store.get(meta.key)
            except ObjectMissing:
                continue
            path.write_bytes(data)
            self._uploaded[name] = _stamp(path)

    def start(self) -> None:
        """Begin to sync in the background."""
        self._thread.start()

    def stop(self) -> None:
        """End the background sync; a last ``sync`` is the caller's."""
        self._stopped.set()

    def sync(self) -> None:
        """Upload what changed.

        Raises:
            TransientError: the store failed; the next pass takes up what is left.
        """
        with self._lock:
            for path in sorted(self._directory.rglob("*")):
                if path.is_symlink() or not path.is_file():
                    continue
                name = path.relative_to(self._directory).as_posix()
                try:
                    stamp = _stamp(path)
                    if self._uploaded.get(name) != stamp:
                        self._upload(path, name)
                        self._uploaded[name] = stamp
                except FileNotFoundError:  # deleted or renamed meanwhile
                    continue

    def _upload(self, path: Path, name: str) -> None:
        key = self._prefix + quote(name)  # a key is ASCII, a file's name is anything
        with path.open("rb") as file:
            first = file.read(_BLOCK)
            if len(first) < _BLOCK:
                self._store.put(key, first)
                return
            with self._store.open_upload(key) as upload:
                while first:
                    upload.write(first)
                    first = file.read(_BLOCK)
                upload.commit()

    def _run(self) -> None:
        while not self._stopped.wait(SYNC_SECONDS):
            try:
                self.sync()
            except CloudspotError as error:
                _log.warning("artifacts wait for the store: %s", error)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
