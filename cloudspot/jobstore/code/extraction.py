"""Extract a code bundle without trusting it: nothing is written until every member was judged."""

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
"""All that an archive unpacks to, its members' headers included: a small one can unpack to any size."""
MAX_MEMBERS = 200_000
MAX_HEADER_BYTES = 64 << 10
"""All headers of one member together; a safe name has 2 KiB at most."""
_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "symlink",
}


def extract_bundle(
    source: bytes | Path, dest: Path, *, sha256: str, max_bytes: int = MAX_EXTRACTED_BYTES
) -> None:
    """Extract a bundle into ``dest``, which appears whole and replaces what was there.

    It may hold only files, directories and relative symlinks that stay inside. The archive's
    ``sha256``, in hex, is checked before anything else; unpacked it may have ``max_bytes``.

    Raises:
        CorruptData: the hash differs.
        BundleError: it is not an archive, or holds something unsafe; nothing was written.
    """
    data = source if isinstance(source, bytes) else source.read_bytes()
    _check(data, sha256, max_bytes)
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        with partial_directory(dest.parent) as staging, partial_directory(dest.parent) as replaced:
            with _opened(data, max_bytes) as archive:
                archive.extractall(staging, members=_members(archive))  # noqa: S202 - each was judged
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
    """Empty for a symlink."""
    is_executable: bool
    target: str | None
    """What a symlink leads to; None for a file."""


def read_bundle(data: bytes, *, sha256: str, max_bytes: int = MAX_EXTRACTED_BYTES) -> Iterator[Member]:
    """Yield what an archive holds, with one file in memory at a time, and write nothing.

    Raises:
        CorruptData: the hash differs from ``sha256``, in hex.
        BundleError: it is not an archive, or holds something unsafe.
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
    """Return the name and the digest of each file and symlink in the archive, by name; raises as above."""
    return sorted(
        (one.name, link_digest(one.target) if one.target else digest_of(one.content, one.is_executable))
        for one in read_bundle(data, sha256=sha256)
    )


def digest_of(content: bytes, is_executable: bool) -> str:  # noqa: FBT001 - it is what a file of code consists of
    """Return the digest of a file of code."""
    return hashlib.sha256(content).hexdigest() + (" may run" if is_executable else "")


def link_digest(target: str) -> str:
    """Return what stands for the digest of a symlink, and is no file's."""
    return f"-> {target}"


def _check(data: bytes, sha256: str, max_bytes: int) -> None:
    """Judge the whole archive before any of its members is used."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise CorruptData(f"the code bundle's SHA-256 is {found}, not {sha256}; submit the job again")
    _check_members(data, max_bytes)


def is_safe_link(name: str, target: str) -> bool:
    """Return whether a symlink ``name`` to ``target`` stays inside, wherever other symlinks lead.

    It may climb only first, never above the root, and then only descend. If all symlinks are like this, and
    all their parents real directories, every step of a chain of them stays inside; a ``..`` after a name
    could climb out of wherever that name leads.
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
                raise BundleError(f"the code bundle's symlink {member.name!r} leads out: {member.linkname!r}")
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
    """Restores names, contents and who may execute; no owner, no time and no other mode.

    tarfile's own filter looks at each member once more, where this Python has one.
    """

    bounded: _Bounded
    extraction_filter = staticmethod(getattr(tarfile, "data_filter", lambda member, _path: member))

    def chown(self, *_arguments: object, **_options: object) -> None:
        """Leave the file to who extracts it."""

    def utime(self, *_arguments: object) -> None:
        """Keep the present time: the archive's would be 1970, which zip files cannot hold."""

    def chmod(self, tarinfo: tarfile.TarInfo, targetpath: str) -> None:  # type: ignore[override]
        """Let those execute a program who may read it."""
        if tarinfo.isreg() and tarinfo.mode & 0o100:
            mode = Path(targetpath).stat().st_mode
            Path(targetpath).chmod(mode | (mode & 0o444) >> 2)


def _members(archive: _Archive) -> Iterator[tarfile.TarInfo]:
    """Yield the members and keep none: their headers may take far more memory than in the archive."""
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
    """Reads at most ``max_bytes`` in all, and little beside what the next member is to have.

    Packed data does not say how large it is, and tarfile reads headers and maps of holes as long as they
    claim to be.
    """

    def __init__(self, inner: io.BufferedIOBase, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._num_read = 0
        self._limit = 0
        self.expect(0)

    def expect(self, num_bytes: int) -> None:
        """Allow ``num_bytes`` from here on, the headers behind them, and what tarfile reads ahead."""
        limit = self._num_read + max(0, num_bytes) + MAX_HEADER_BYTES + tarfile.RECORDSIZE
        self._limit = min(limit, self._max_bytes)

    def read(self, size: int = -1) -> bytes:
        left = self._limit - self._num_read
        data = self._inner.read(min(size, left + 1) if size >= 0 else left + 1)
        self._num_read += len(data)
        if self._num_read > self._limit:
            raise BundleError("the code bundle unpacks to more than is allowed")
        return data
