"""A job's artifacts in the bucket: name, list and download them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from cloudspot.errors import CloudspotError, ObjectMissing
from cloudspot.host.names import is_safe_name, make_parents
from cloudspot.host.partial_files import whole_file
from cloudspot.host.piecewise_writes import write_at
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.layout import keys

NUM_THREADS = 4
NUM_TRIES = 3
"""The number of times that a file is read again if the job replaces it during the read."""
_BLOCK = 8 << 20


@dataclass(frozen=True)
class Artifact:
    """A file in the bucket."""

    name: str
    """The name that the job wrote, relative and separated by ``/``. Names of files from nodes other than the
    training's first node begin with ``node-<launch>.<rank>/``. An output that has the same name as an
    artifact gets the prefix ``outputs/``. Other writers may put keys, too, so use the name as a path only if
    ``is_safe_name`` accepts it.
    """
    key: str
    size: int
    modified_at: datetime

    def matches(self, pattern: str) -> bool:
        """Return whether the pattern is this file's name, a directory above it, or a glob that matches it.

        In a glob, ``*`` also matches ``/``.
        """
        below = pattern.rstrip("/") + "/"
        return self.name == pattern or self.name.startswith(below) or fnmatchcase(self.name, pattern)


def list_artifacts(store: ObjectStore, job_id: str) -> tuple[Artifact, ...]:
    """Return the job's artifacts, including its outputs, sorted by name."""
    by_name: dict[str, Artifact] = {}
    for prefix, key in ((keys.artifacts_prefix, keys.artifact), (keys.outputs_prefix, keys.output)):
        for meta in with_retries(store).list_objects(prefix(job_id)):
            match = key.match(meta.key)
            if match is not None:
                name = match[1]
                while name in by_name:
                    name = f"outputs/{name}"
                by_name[name] = Artifact(name, meta.key, meta.size, meta.modified_at)
    return tuple(sorted(by_name.values(), key=lambda artifact: artifact.name))


def is_present(artifact: Artifact, directory: Path) -> bool:
    """Return whether ``download`` has already written this version of the file: size and time are equal."""
    if not is_safe_name(artifact.name):
        return False
    try:
        status = (directory / artifact.name).lstat()
    except OSError:
        return False
    return status.st_size == artifact.size and status.st_mtime_ns == _nanoseconds(artifact)


def download(
    store: ObjectStore,
    artifacts: Sequence[Artifact],
    directory: Path,
    *,
    progress: Callable[[int], None] = lambda _count: None,
    num_threads: int = NUM_THREADS,
) -> list[str | None]:
    """Write the files below the directory; return for each either None or a short reason for its absence.

    Each file appears complete, replaces an older file, and gets the time of its object. No name leads out of
    the directory, and no symlink below the directory is followed. If two names denote the same file here,
    because the disk ignores case, only one of the files is written.

    Raises:
        CloudspotError: the directory cannot be created.
        TransientError: the store failed; complete files are kept, and the next call can fetch the rest.
    """
    store = with_retries(store)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CloudspotError(f"cannot make {directory}: {error.strerror}") from error

    written: dict[str, int] = {}
    """The inodes of the files that this call has written, by key."""

    def carry(artifact: Artifact) -> str | None:
        if not is_safe_name(artifact.name):
            return "its name is not a safe relative path"
        try:
            path = make_parents(directory, artifact.name)
            with whole_file(path) as file:
                current = _fetch(store, artifact, file, progress)
                os.utime(file.fileno(), ns=(_nanoseconds(current), _nanoseconds(current)))
                written[artifact.key] = os.fstat(file.fileno()).st_ino
        except ObjectMissing:
            return "it was deleted in the meantime"
        except OSError as error:
            return error.strerror or str(error)
        return None

    problems = map_parallel(carry, artifacts, num_threads=num_threads)
    return [
        "another artifact has the same name on this disk"
        if problem is None and _inode(directory / artifact.name) != written[artifact.key]
        else problem
        for artifact, problem in zip(artifacts, problems, strict=True)
    ]


def _fetch(
    store: ObjectStore, artifact: Artifact, file: BinaryIO, progress: Callable[[int], None]
) -> Artifact:
    """Write one whole version of the object and return it; the job may replace the object meanwhile."""
    for _ in range(NUM_TRIES):
        file.truncate(0)
        for start in range(0, max(artifact.size, 1), _BLOCK):
            data = store.get_range(artifact.key, start, _BLOCK)
            write_at(file.fileno(), data, start)
            progress(len(data))
        meta = store.head(artifact.key)
        if (meta.size, meta.modified_at) == (artifact.size, artifact.modified_at):
            return artifact
        artifact = Artifact(artifact.name, artifact.key, meta.size, meta.modified_at)
    raise OSError(0, "the job replaces it faster than it can be read")


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


def _nanoseconds(artifact: Artifact) -> int:
    # Use whole microseconds: a float of this size cannot represent nanoseconds.
    seconds = artifact.modified_at.replace(microsecond=0).timestamp()
    return int(seconds) * 10**9 + artifact.modified_at.microsecond * 1000
