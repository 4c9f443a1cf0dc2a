"""A job's artifacts in the bucket: name, list and download them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from cloudspot.errors import CloudspotError, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import keys
from cloudspot.jobstore.parallel import each
from cloudspot.jobstore.partial_files import partial_path
from cloudspot.jobstore.patience import patient

NUM_THREADS = 4
NUM_TRIES = 3
"""How often a file is read again that the job replaces meanwhile."""
_BLOCK = 8 << 20


def quoted_name(name: str) -> str:
    """Return a file's name, which may be any bytes, as the ASCII end of a key."""
    return quote(os.fsencode(name))


def unquoted_name(quoted: str) -> str:
    """Return the file's name that ``quoted_name`` was given."""
    return os.fsdecode(unquote_to_bytes(quoted))


@dataclass(frozen=True)
class Artifact:
    """A file in the bucket."""

    name: str
    """Relative and ``/``-separated, as the job wrote it; below ``node-<rank>/`` for nodes other than 0. See
    ``is_safe`` before using it as a path."""
    key: str
    size: int
    modified_at: datetime

    @property
    def is_safe(self) -> bool:
        """Whether the name stays below the directory it is written to."""
        return not {"", ".", ".."} & set(self.name.split("/")) and "\0" not in self.name

    def matches(self, pattern: str) -> bool:
        """Return whether the pattern is this file's name, a directory above it, or a glob over the name.

        In a glob, ``*`` also matches ``/``.
        """
        below = pattern.rstrip("/") + "/"
        return self.name == pattern or self.name.startswith(below) or fnmatchcase(self.name, pattern)


def list_artifacts(store: ObjectStore, job_id: str) -> tuple[Artifact, ...]:
    """Return the job's artifacts, sorted by name."""
    prefix = keys.artifacts_prefix(job_id)
    found = [
        Artifact(unquoted_name(meta.key.removeprefix(prefix)), meta.key, meta.size, meta.modified_at)
        for meta in patient(store).list_objects(prefix)
    ]
    return tuple(sorted(found, key=lambda artifact: artifact.name))


def is_present(artifact: Artifact, directory: Path) -> bool:
    """Return whether ``download`` has written this very file before: size and time are equal."""
    try:
        status = (directory / artifact.name).lstat()
    except (OSError, ValueError):
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
    """Write the files below the directory; return for each None, or in a few words why it is missing.

    A file appears whole, replaces an older one, and has the time of its object. No name leads out of the
    directory, and no symlink below it is followed.

    Raises:
        CloudspotError: the directory cannot be made.
        TransientError: the store failed; whole files stay, and the next call can fetch the rest.
    """
    store = patient(store)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CloudspotError(f"cannot make {directory}: {error.strerror}") from error

    def carry(artifact: Artifact) -> str | None:
        if not artifact.is_safe:
            return "its name leads out of the directory"
        try:
            path = _make_parents(directory, artifact.name)
            partial = partial_path(path)
            try:
                current = _fetch(store, artifact, partial, progress)
                os.utime(partial, ns=(_nanoseconds(current), _nanoseconds(current)))
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        except ObjectMissing:
            return "it has been deleted meanwhile"
        except _SymlinkError as error:
            return f"{error} is a symlink, which is not followed"
        except OSError as error:
            return error.strerror or str(error)
        return None

    return each(carry, artifacts, num_threads=num_threads)


class _SymlinkError(Exception):
    """A directory on the way is a symlink, which might lead out."""


def _make_parents(directory: Path, name: str) -> Path:
    path = directory
    *parents, last = name.split("/")
    for segment in parents:
        path /= segment
        if path.is_symlink():
            raise _SymlinkError(path)
        path.mkdir(exist_ok=True)
    return path / last


def _fetch(store: ObjectStore, artifact: Artifact, path: Path, progress: Callable[[int], None]) -> Artifact:
    """Write one whole version of the object and return which: the job may replace it meanwhile."""
    for _ in range(NUM_TRIES):
        with path.open("wb") as file:
            for start in range(0, max(artifact.size, 1), _BLOCK):
                data = store.get_range(artifact.key, start, _BLOCK)
                file.write(data)
                progress(len(data))
        meta = store.head(artifact.key)
        if (meta.size, meta.modified_at) == (artifact.size, artifact.modified_at):
            return artifact
        artifact = Artifact(artifact.name, artifact.key, meta.size, meta.modified_at)
    raise OSError(0, "the job replaces it faster than it can be read")


def _nanoseconds(artifact: Artifact) -> int:
    # In whole microseconds: a float of this size cannot tell nanoseconds apart.
    seconds = artifact.modified_at.replace(microsecond=0).timestamp()
    return int(seconds) * 10**9 + artifact.modified_at.microsecond * 1000
