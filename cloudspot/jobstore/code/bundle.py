"""Make the code bundle: a deterministic archive of a working directory, named by its content."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cloudspot.errors import BundleError, CorruptData, ObjectMissing
from cloudspot.host.size_text import size_text
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.creation import create
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.code.extraction import bundle_digests, digest_of, is_safe_link, link_digest
from cloudspot.jobstore.code.ignores import Ignores

MAX_BYTES = 100 << 20
"""The default limit for the total size of all files: code is small, and large files are data."""
OpenProgress = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]
"""Called with the activity, such as ``uploading code``, and its size in bytes (None if it is unknown, or for
a single request). The work is done inside the block, which reports each number of new bytes, from any thread.
"""
_NUM_NAMED = 5
_NUM_WEIGHTY = 50
"""If the bundle is too large, its error message names no file smaller than one part in 50 of the total."""


@contextmanager
def no_progress(_what: str, _num_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Show nothing."""
    yield lambda _count: None


@dataclass(frozen=True)
class Bundle:
    """An archive of code, with equal bytes for equal code."""

    data: bytes = field(repr=False)
    """A gzipped tar archive: files and symlinks in the order of their names, without times or owners, with
    modes 644 and 755.
    """
    sha256: str
    """The SHA-256 of ``data``, in hex."""
    files: tuple[str, ...]
    """The names of the archive's entries, sorted, relative to the working directory."""
    skipped: tuple[str, ...]
    """Entries that are left out although no rule ignores them, with the reason; for example, links that lead
    outside.
    """

    @property
    def size(self) -> int:
        """The archive's size in bytes."""
        return len(self.data)

    def digests(self) -> list[tuple[str, str]]:
        """Return the archive's ``bundle_digests``; raise the same errors."""
        return bundle_digests(self.data, sha256=self.sha256)


@dataclass(frozen=True)
class _Entry:
    """A file or a symlink of the working directory."""

    name: str
    path: Path
    size: int
    is_executable: bool
    target: str | None
    """The target of a symlink, or None for a file."""

    def digest(self) -> str:
        if self.target is not None:
            return link_digest(self.target)
        return digest_of(self.path.read_bytes(), self.is_executable)


def make_bundle(
    workdir: Path,
    *,
    entrypoint: str | None,
    max_bytes: int = MAX_BYTES,
    open_progress: OpenProgress = no_progress,
) -> Bundle:
    """Archive the code in ``workdir``.

    :mod:`cloudspot.jobstore.code.ignores` decides which files are code; ``.git``, ``.env`` and ``.env.*``
    never are. A symlink is kept if it is relative and leads to an entry of the bundle. As in git, empty
    directories are dropped. ``entrypoint``, if given, is relative to ``workdir`` and must be in the bundle;
    ``max_bytes`` limits the total size of all files before compression.

    Raises:
        BundleError: the code is too large (the message names the largest files), lacks the entrypoint, or
            has a file that cannot be read.
    """
    workdir = workdir.resolve()
    if not workdir.is_dir():
        raise BundleError(f"run.workdir: {workdir} is not a directory")
    try:
        skipped: list[str] = []
        entries = _entries(workdir, skipped)
        if entrypoint is not None:
            _check_entrypoint(workdir, entrypoint, entries)
        _check_size(entries, max_bytes)
        with open_progress("bundling code", sum(entry.size for entry in entries)) as progress:
            data = _archive(entries, progress)
    except OSError as error:
        raise BundleError(f"{error.filename or workdir} cannot be read: {error.strerror}") from error
    return Bundle(
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        files=tuple(entry.name for entry in entries),
        skipped=tuple(sorted(skipped)),
    )


def code_digests(workdir: Path, *, max_bytes: int = MAX_BYTES) -> list[tuple[str, str]]:
    """Return the ``bundle_digests`` of the archive that ``make_bundle`` would make.

    Raises:
        BundleError: the code is too large or cannot be read.
    """
    workdir = workdir.resolve()
    try:
        entries = _entries(workdir, [])
        _check_size(entries, max_bytes)
        return [(one.name, one.digest()) for one in entries]
    except OSError as error:
        raise BundleError(f"{error.filename or workdir} cannot be read: {error.strerror}") from error


def code_files(workdir: Path, skipped: list[str] | None = None) -> tuple[str, ...]:
    """Return the names of the files and links that ``make_bundle`` would archive.

    ``skipped`` receives a line for each entry that would be left out although no rule ignores it.

    Raises:
        BundleError: the directory cannot be read.
    """
    workdir = workdir.resolve()
    try:
        return tuple(entry.name for entry in _entries(workdir, [] if skipped is None else skipped))
    except OSError as error:
        raise BundleError(f"{error.filename or workdir} cannot be read: {error.strerror}") from error


def put_bundle(
    store: ObjectStore, key: str, bundle: Bundle, *, open_progress: OpenProgress = no_progress
) -> None:
    """Put the bundle under ``key``, unless it is already stored there.

    Raises:
        CorruptData: the key holds another object.
    """
    store = with_retries(store)
    try:
        # The size reveals a foreign object cheaply; the bytes are verified wherever they are used.
        is_same = store.head(key).size == bundle.size
    except ObjectMissing:
        with open_progress("uploading code", None):  # a single request has no progress
            is_same = create(store, key, bundle.data) is None
    if not is_same:
        raise CorruptData(
            f"{store.url}: {key} does not match the hash in its name; delete it and submit again"
        )


def _entries(workdir: Path, skipped: list[str]) -> list[_Entry]:
    """Return the bundle's entries, sorted by name; add those left out without a rule to ``skipped``."""
    entries = sorted(_walk(workdir, workdir, Ignores(workdir), skipped), key=lambda entry: entry.name)
    return _without_loose_links(workdir, entries, skipped)


def _walk(workdir: Path, directory: Path, ignores: Ignores, skipped: list[str]) -> Iterator[_Entry]:
    with os.scandir(directory) as scan:
        found = list(scan)
    for entry in found:
        path = directory / entry.name
        name = path.relative_to(workdir).as_posix()
        is_directory = entry.is_dir(follow_symlinks=False)
        if ignores.match(path, is_directory=is_directory):
            continue
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BundleError(f"{name!r}: a name in the code must be UTF-8; rename it or ignore it") from None
        if is_directory:
            yield from _walk(workdir, path, ignores, skipped)
        elif entry.is_symlink():
            yield _Entry(name, path, 0, is_executable=False, target=path.readlink().as_posix())
        elif entry.is_file(follow_symlinks=False):
            status = entry.stat(follow_symlinks=False)
            is_executable = bool(status.st_mode & 0o100)
            yield _Entry(name, path, status.st_size, is_executable=is_executable, target=None)
        else:
            skipped.append(f"{name}: is neither a file nor a directory")


def _without_loose_links(workdir: Path, entries: list[_Entry], skipped: list[str]) -> list[_Entry]:
    """Drop the symlinks that lead outside, to nothing, or to a file that is not in the bundle."""
    root = workdir.resolve()
    inside = {entry.name for entry in entries if entry.target is None}
    inside |= {parent.as_posix() for name in inside for parent in Path(name).parents}
    kept = []
    for entry in entries:
        if entry.target is None:
            kept.append(entry)
            continue
        real = _resolve(entry.path)
        leads_inside = real is not None and (real == root or root in real.parents)
        if not is_safe_link(entry.name, entry.target) or not leads_inside:
            skipped.append(f"{entry.name}: is a symlink that leads outside the code")
        elif real is None or real.relative_to(root).as_posix() not in inside:
            skipped.append(f"{entry.name}: is a symlink to something that is not in the bundle")
        else:
            kept.append(entry)
    return kept


def _resolve(path: Path) -> Path | None:
    try:
        return path.resolve(strict=False)
    except (OSError, RuntimeError):
        return None  # a loop of symlinks


def _check_entrypoint(workdir: Path, entrypoint: str, entries: list[_Entry]) -> None:
    name = os.path.normpath(entrypoint)
    if any(entry.name == name for entry in entries):
        return
    if os.path.lexists(workdir / name):
        reason = "is ignored by .gitignore or .cloudspotignore, or is not a file inside it"
    else:
        reason = "does not exist"
    raise BundleError(f"run.entrypoint: {entrypoint!r} in {workdir} {reason}")


def _check_size(entries: list[_Entry], max_bytes: int) -> None:
    total = sum(entry.size for entry in entries)
    if total <= max_bytes:
        return
    weighty = [entry for entry in entries if entry.size * _NUM_WEIGHTY >= total]
    largest = sorted(weighty or entries, key=lambda entry: (-entry.size, entry.name))[:_NUM_NAMED]
    named = ", ".join(f"{entry.name} ({size_text(entry.size)})" for entry in largest)
    raise BundleError(
        f"the code has {size_text(total)}, more than {size_text(max_bytes)}; "
        f"list files that are not code in .cloudspotignore; largest: {named}"
    )


def _archive(entries: list[_Entry], progress: Callable[[int], None]) -> bytes:
    buffer = io.BytesIO()
    # The gzip header has no name and no time, so that equal code gives equal bytes.
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=buffer, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in entries:
            member = tarfile.TarInfo(entry.name)
            if entry.target is not None:
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.target, 0o777
                archive.addfile(member)
                continue
            data = entry.path.read_bytes()
            member.size, member.mode = len(data), 0o755 if entry.is_executable else 0o644
            archive.addfile(member, io.BytesIO(data))
            progress(len(data))
    return buffer.getvalue()
