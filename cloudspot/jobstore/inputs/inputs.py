"""The inputs in a job's ``[data]``, objects of a store or one file of a web server: list and read them."""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from cloudspot.errors import CloudspotError, ObjectMissing, TransientError
from cloudspot.interfaces import MAX_LISTED, ObjectStore, is_key
from cloudspot.jobfile.data import DataSpec
from cloudspot.jobstore.inputs.http_file import HttpFile, HttpHead
from cloudspot.model import ObjectMeta
from cloudspot.registry import open_store

BLOCK_BYTES = 8 << 20
"""The maximum that one request reads of a large file."""

Sink = Callable[[int, memoryview], None]
"""Takes an offset in the file and the bytes at that offset."""


class Wanted(NamedTuple):
    """A file of an input, in the version that the listing showed."""

    name: str
    """The file's path below the input's URL; empty if the input is this file alone."""
    key: str
    size: int
    version: str
    """A string that changes whenever the bytes change."""
    seconds: int
    """The time of the last change, in seconds since 1970."""


class InputMissing(CloudspotError):
    """No files exist under an input's URL."""


class InputChanged(CloudspotError):
    """A file of an input has changed since the listing."""


class Input(ABC):
    """One input. Each call makes its requests once; the caller repeats failed calls."""

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        self.has_ranges = True
        """Whether ranges of a file can be read; this is known after the listing."""

    @abstractmethod
    def wanted(self) -> Sequence[Wanted]:
        """Return the files, in the order of their names.

        Raises:
            InputMissing: there are no files, or the URL does not name an input.
            CloudspotError: some of the files cannot be staged.
        """

    @abstractmethod
    def look(self) -> None:
        """Check with one request, or very few, that the input has readable content.

        Raises:
            InputMissing: the input has no files.
        """

    @abstractmethod
    def read(self, file: Wanted, start: int, length: int, sink: Sink) -> None:
        """Pass a part of the file to ``sink``, in pieces of at most ``BLOCK_BYTES``.

        Raises:
            InputChanged: the received bytes are of another version, as far as that can be detected.
            ObjectMissing: the file no longer exists.
        """

    def describe(self, file: Wanted) -> str:
        """Return the URL of a file, for messages."""
        return self.spec.shown_url + file.name

    def content_key(self, file: Wanted) -> str:
        """Return a name for the content of this version, the same for all jobs."""
        parts = (self._place, file.key, file.version, str(file.size), self.spec.sha256 or "")
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    @property
    @abstractmethod
    def _place(self) -> str:
        """The URL to which the keys are relative, the same for all spellings of the input's URL."""


def open_input(spec: DataSpec) -> Input:
    """Open the input, without I/O.

    Raises:
        SpecError: the store's plugin rejects the URL.
        PluginError: no plugin for the URL's scheme is installed, or the plugin is broken.
    """
    return _HttpInput(spec) if spec.is_http else _StoreInput(spec)


def version_of_all(files: Sequence[Wanted]) -> str:
    """Return a hash of the names, sizes and versions of all files."""
    found = hashlib.sha256()
    for file in files:
        found.update(f"{file.name}\0{file.size}\0{file.version}\n".encode())
    return found.hexdigest()


class _StoreInput(Input):
    """Objects of a store."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        base, _, self._key = spec.url.rpartition("/")
        if spec.is_tree:
            base, self._key = spec.url.rstrip("/"), ""
        elif spec.scheme == "file":
            self._key = unquote(self._key)
        self.store: ObjectStore = open_store(base)
        self._own = threading.local()

    @property
    def _place(self) -> str:
        return self.store.canonical_url

    def wanted(self) -> Sequence[Wanted]:
        if self.spec.is_tree:
            return self._below()
        if not is_key(self._key):
            raise InputMissing(f"{self._key!r} cannot be an object's name: it must be printable ASCII")
        try:
            return (_wanted("", self.store.head(self._key)),)
        except ObjectMissing as error:
            if self.store.list_page(f"{self._key}/", limit=1).objects:
                hint = f'; objects lie below it: "{self.spec.url}/" stages them all'
                raise InputMissing(f"there is no such object{hint}") from error
            raise InputMissing("there is no such object") from error

    def look(self) -> None:
        if not self.spec.is_tree:
            self.wanted()
        # Foreign names count, since they may be readable in place; directory markers do not count.
        elif not any(page.objects or page.skipped for page in self.store.list_pages("")):
            raise InputMissing("it contains no objects")

    def read(self, file: Wanted, start: int, length: int, sink: Sink) -> None:
        if start == 0 and length == file.size <= BLOCK_BYTES:
            # Read the object whole, so that the store verifies its own checksum, if it has one.
            data = self.store.get(file.key)
            _check_length(self, file, len(data), file.size)
            with memoryview(data) as view:
                sink(0, view)
            return
        if not hasattr(self._own, "buffer"):
            self._own.buffer = bytearray(BLOCK_BYTES)  # allocating a new buffer costs more
        for at in range(start, start + length, BLOCK_BYTES):
            with memoryview(self._own.buffer)[: min(BLOCK_BYTES, start + length - at)] as room:
                _check_length(self, file, self.store.get_range_into(file.key, at, room), len(room))
                sink(at, room)

    def _below(self) -> Sequence[Wanted]:
        files: list[Wanted] = []
        skipped: set[str] = set()
        for page in self.store.list_pages(""):
            files += (_wanted(one.key, one) for one in page.objects)
            skipped.update(page.skipped)
            if len(files) + len(skipped) > MAX_LISTED:
                raise CloudspotError(
                    f"it contains more than {MAX_LISTED} objects: pack them into fewer, larger ones"
                )
        if skipped:
            raise CloudspotError(
                f"it contains {len(skipped)} name(s) that cannot be staged, such as {min(skipped)!r}: names "
                "must be printable ASCII, and symlinks are not followed; rename them, or put them elsewhere"
            )
        if not files:
            raise InputMissing("it contains no objects")
        if both := {one.name for one in files} & _directories(files):
            raise CloudspotError(
                f"{min(both)!r} is an object, but there are also objects below {min(both)}/: a disk cannot "
                "hold both"
            )
        return files


def _directories(files: Iterable[Wanted]) -> set[str]:
    """Return the names of all directories that contain a file."""
    directories: set[str] = set()
    for file in files:
        above = file.name.rpartition("/")[0]
        while above and above not in directories:
            directories.add(above)
            above = above.rpartition("/")[0]
    return directories


class _HttpInput(Input):
    """One file of a web server."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self._file = HttpFile(spec.url)

    @property
    def _place(self) -> str:
        return "" if self.spec.sha256 else self.spec.url  # the hash identifies the bytes at any URL

    def wanted(self) -> Sequence[Wanted]:
        try:
            head = self._file.head()
        except ObjectMissing as error:
            raise InputMissing(str(error)) from error
        if head.size is None:
            raise CloudspotError("the server does not state the file's length; copy the file to a store")
        if not head.version and self.spec.sha256 is None:
            raise CloudspotError(
                "the server sends neither an ETag nor a Last-Modified header, so that a change would not "
                "be noticed; set sha256, or copy the file to a store"
            )
        self.has_ranges = head.has_ranges
        return (Wanted("", "", head.size, self._version(head), head.seconds),)

    def look(self) -> None:
        try:
            self._file.head()
        except ObjectMissing as error:
            raise InputMissing(str(error)) from error

    def read(self, file: Wanted, start: int, length: int, sink: Sink) -> None:
        span = (start, length) if self.has_ranges and length else None
        with self._file.opened(span) as (head, pieces):
            if head.size != file.size or self._version(head) != file.version:
                raise InputChanged(f"{self.describe(file)} has changed since it was listed")
            at = start
            for piece in pieces:
                if at + len(piece) > start + length:
                    raise TransientError(f"{self.describe(file)}: the answer has more bytes than requested")
                with memoryview(piece) as view:
                    sink(at, view)
                at += len(piece)
            _check_length(self, file, at - start, length)

    def _version(self, head: HttpHead) -> str:
        return self.spec.sha256 or head.version


def _wanted(name: str, meta: ObjectMeta) -> Wanted:
    # Include the time, which changes even if the same bytes are put again.
    version = f"{meta.etag} {meta.modified_at.isoformat()}"
    return Wanted(name, meta.key, meta.size, version, int(meta.modified_at.timestamp()))


def _check_length(source: Input, file: Wanted, found: int, expected: int) -> None:
    if found == expected:
        return
    if isinstance(source, _HttpInput):
        raise TransientError(f"{source.describe(file)}: the answer ended after {found} of {expected} bytes")
    raise InputChanged(f"{source.describe(file)} has changed in size since it was listed")
