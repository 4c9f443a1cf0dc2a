"""Extract a code bundle without trusting it: nothing is written until every member has been checked."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cloudspot.errors import BundleError, CorruptData
from cloudspot.host.names import is_safe_name
from cloudspot.host.partial_files import partial_directory
from cloudspot.jobstore.checkpoints.integrity import parents

MAX_EXTRACTED_BYTES = 1 << 30
"""The limit for an unpacked archive, including headers, because a small archive can unpack to any size."""
MAX_MEMBERS = 200_000
MAX_HEADER_BYTES = 64 << 10
"""The limit for all headers of one member; a safe name has at most 2 KiB."""
_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "symlink",
}


def extract_bundle(
    source: bytes | Path, dest: Path, *, sha256: str, max_bytes: int = MAX_EXTRACTED_BYTES
) -> None:
    """Extract a bundle into ``dest``, which appears complete and replaces any existing directory.

    The bundle may hold only files, directories and relative symlinks that stay inside it. The archive's
    ``sha256``, in hex, is checked first. ``max_bytes`` limits the unpacked size.

    Raises:
        CorruptData: the hash differs.
        BundleError: the data is not an archive, or the archive holds an unsafe member; nothing was written.
    """
    data = source if isinstance(source, bytes) else source.read_bytes()
    _check(data, sha256, max_bytes)
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        with partial_directory(dest.parent) as staging, partial_directory(dest.parent) as replaced:
            with _opened(data, max_bytes) as archive:
                archive.extractall(staging, members=_members(archive))  # noqa: S202 - each was checked
            if os.path.lexists(dest):
                dest.rename(replaced / dest.name)
            staging.rename(dest)
    except OSError as error:
        raise BundleError(f"cannot extract the code into {dest}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Member:
    """A file or a symlink of a bundle."""

    name: str
    content: bytes = field(repr=False)
    """The content of the file; empty for a symlink."""
    is_executable: bool
    target: str | None
    """The target of a symlink, or None for a file."""


def read_bundle(data: bytes, *, sha256: str, max_bytes: int = MAX_EXTRACTED_BYTES) -> Iterator[Member]:
    """Yield the members of an archive without writing them; only one file is in memory at a time.

    Raises:
        CorruptData: the hash differs from ``sha256``, in hex.
        BundleError: the data is not an archive, or the archive holds an unsafe member.
    """
    _check(data, sha256, max_bytes)
    with _opened(data, max_bytes) as archive:
        for member in _members(archive):
            if not member.isdir():
                stream = None if member.issym() else archive.extractfile(member)
                yield Member(
                    name=member.name,
                    content=b"" if stream is None else stream.read(),
                    is_executable=bool(member.mode & 0o100) and not member.issym(),
                    target=member.linkname if member.issym() else None,
                )


def bundle_digests(data: bytes, *, sha256: str) -> list[tuple[str, str]]:
    """Return each file and symlink with its digest, sorted by name; errors as in ``read_bundle``."""
    return sorted(
        (one.name, link_digest(one.target) if one.target else digest_of(one.content, one.is_executable))
        for one in read_bundle(data, sha256=sha256)
    )


def digest_of(content: bytes, is_executable: bool) -> str:  # noqa: FBT001 - it is what a file of code consists of
    """Return the digest of a file of code."""
    return hashlib.sha256(content).hexdigest() + (" may run" if is_executable else "")


def link_digest(target: str) -> str:
    """Return a string that serves as a symlink's digest and is never the digest of a file."""
    return f"-> {target}"


def _check(data: bytes, sha256: str, max_bytes: int) -> None:
    """Check the whole archive before any of its members is used."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise CorruptData(f"the code bundle's SHA-256 is {found}, not {sha256}; submit the job again")
    _check_members(data, max_bytes)


def is_safe_link(name: str, target: str) -> bool:
    """Return whether the symlink ``name`` with this target stays inside, wherever other symlinks lead.

    The target may first go up, but never above the root, and after that only down. If all symlinks obey this
    rule and all their parents are real directories, a chain of symlinks stays inside at every step. A ``..``
    after a name could lead outside, because the name may be a symlink itself.
    """
    segments = target.split("/")
    ups = 0
    while ups < len(segments) and segments[ups] == "..":
        ups += 1
    rest = "/".join(segments[ups:])
    return ups <= name.count("/") and (rest == "" if ups == len(segments) else is_safe_name(rest))


def _check_members(data: bytes, max_bytes: int) -> None:
    kinds: dict[str, str] = {}
    with _opened(data, max_bytes) as archive:
        for member in _members(archive):
            kind = _KINDS.get(member.type)
            if kind is None or member.issparse():
                raise BundleError(
                    f"the code bundle holds {member.name!r}, which is not a file, directory or symlink"
                )
            if not is_safe_name(member.name) or member.size < 0:
                raise BundleError(f"the code bundle holds {member.name!r}, which is not a safe relative path")
            if kind == "symlink" and not is_safe_link(member.name, member.linkname):
                raise BundleError(
                    f"the code bundle's symlink {member.name!r} leads outside the code: {member.linkname!r}"
                )
            if member.name in kinds:
                raise BundleError(f"the code bundle holds {member.name!r} twice")
            kinds[member.name] = kind
            if member.size > max_bytes or len(kinds) > MAX_MEMBERS:
                raise BundleError(f"the code bundle has more than {max_bytes} bytes or {MAX_MEMBERS} members")
    for name in kinds:
        for parent in parents(name):
            if kinds.get(parent, "directory") != "directory":
                raise BundleError(f"the code bundle holds {name!r} below {parent!r}, a {kinds[parent]}")


class _Archive(tarfile.TarFile):
    """Restores names, contents and the executable bit, but no owner, time or other mode bits.

    If this Python has tarfile's own filter, that checks each member again.
    """

    bounded: _Bounded
    extraction_filter = staticmethod(getattr(tarfile, "data_filter", lambda member, _path: member))

    def chown(self, *_arguments: object, **_options: object) -> None:
        """Leave the extracting process as the owner."""

    def utime(self, *_arguments: object) -> None:
        """Leave the time of extraction: the archive's times are in 1970, which zip files cannot store."""

    def chmod(self, tarinfo: tarfile.TarInfo, targetpath: str) -> None:  # type: ignore[override]
        """Let everyone who may read a program execute it."""
        if tarinfo.isreg() and tarinfo.mode & 0o100:
            mode = Path(targetpath).stat().st_mode
            Path(targetpath).chmod(mode | (mode & 0o444) >> 2)


def _members(archive: _Archive) -> Iterator[tarfile.TarInfo]:
    """Yield the members without keeping them: their headers may take far more memory than the archive."""
    for member in archive:
        archive.bounded.expect(member.size)
        yield member
        archive.members.clear()  # type: ignore[attr-defined]  # typeshed lacks it


@contextmanager
def _opened(data: bytes, max_bytes: int) -> Iterator[_Archive]:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as unpacked:
            bounded = _Bounded(unpacked, max_bytes)
            with _Archive.open(fileobj=bounded, mode="r|", errors="strict") as archive:
                archive.bounded = bounded
                yield archive
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, RecursionError) as error:
        raise BundleError(f"the code bundle cannot be read as an archive: {error}") from error


class _Bounded(io.RawIOBase):
    """Reads at most ``max_bytes`` in total, and little more than the content of the next member.

    Compressed data does not state its unpacked size, and tarfile reads headers and sparse maps of any claimed
    length.
    """

    def __init__(self, inner: io.BufferedIOBase, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._num_read = 0
        self._limit = 0
        self.expect(0)

    def expect(self, num_bytes: int) -> None:
        """Allow ``num_bytes`` more, plus the headers after them and the bytes that tarfile reads ahead."""
        limit = self._num_read + max(0, num_bytes) + MAX_HEADER_BYTES + tarfile.RECORDSIZE
        self._limit = min(limit, self._max_bytes)

    def read(self, size: int = -1) -> bytes:
        left = self._limit - self._num_read
        data = self._inner.read(min(size, left + 1) if size >= 0 else left + 1)
        self._num_read += len(data)
        if self._num_read > self._limit:
            raise BundleError("the code bundle unpacks to more bytes than allowed")
        return data
