"""An object store in a directory, with a URL such as ``file:///abs/path``."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from cloudspot.calls import LinkRequest, LinkResult
from cloudspot.errors import (
    AuthError,
    CloudspotError,
    CorruptData,
    ObjectExists,
    ObjectMissing,
    SpecError,
    StoreRefused,
    TransientError,
)
from cloudspot.host.bounded_reads import read_at_most
from cloudspot.host.direct_writes import write_past_cache
from cloudspot.host.names import find_symlink
from cloudspot.host.partial_files import create_partial, remove_abandoned
from cloudspot.host.piecewise_writes import PIECE_BYTES
from cloudspot.interfaces import MAX_GET_BYTES, Data, ObjectStore, Upload, check_key, is_key
from cloudspot.jobstore.layout import keys
from cloudspot.model import ObjectMeta, ObjectPage

STAGING = ".cloudspot-staging"
"""The directory under the root in which objects are written before they become visible; it is never listed.
"""
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_MARK = re.compile(r"[0-9a-f]{32}")
_MAX_MARK_BYTES = 64
_PAGE_SIZE = 1000
_LARGE_BYTES = 8 << 20
"""The bytes of files of this size or more are removed from the kernel's cache."""
# Another process may remove an empty directory between our mkdir and our link; we then create it again. Each
# further attempt requires such a removal within the same few microseconds.
_NUM_TRIES = 50


class FileStore(ObjectStore):
    """Objects as plain files below a directory, which only ``establish`` creates.

    A put writes a temporary file, syncs it to disk and then links it (``if_absent``) or renames it into
    place; both are atomic on every POSIX file system. It returns when the file and its directory entry are
    durable. Any number of processes may share the directory.

    Differences from a cloud's store: ``a`` and ``a/b`` cannot both be keys, and keys that differ only in case
    need a file system that distinguishes case. Symlinks below the root are not followed.

    If the store creates the root, only its owner can read it. In a root that the user created, files and
    directories follow the umask, so that users can share it; only the owner can read a job's secrets.

    A disk that is not mounted leaves an empty directory. So a store that is bound to an id (``hold_to``)
    reads the mark in its root with each request: before anything is changed, and before the outcome is
    reported. A request during which the disk disappears may leave files in the empty directory, but the
    request fails. A store without an id, such as the store of an input, can be any directory.
    """

    def __init__(self, url: str) -> None:
        """Parse the URL, without I/O.

        Raises:
            SpecError: ``url`` is not ``file:///absolute/path``. ``establish`` and the first put also raise
                SpecError if there is a file in place of a directory.
        """
        self.url = url
        self.root = _parse_url(url)
        self._staging = self.root / STAGING
        self._durable: dict[Path, int] = {}  # directory -> its inode when its entry was synced
        self._is_swept = False
        self._mark = self.root / keys.STORE_ID
        self._is_held = False
        self._id: str | None = None

    @property
    def canonical_url(self) -> str:
        """Return the directory's URL with all symbolic links resolved."""
        return self.root.resolve().as_uri()

    def __repr__(self) -> str:
        return f"FileStore({self.url!r})"

    def establish(self) -> str:
        """Create the root and its mark if they do not exist; see ObjectStore.

        All processes that do so at the same time get the same id. If the store is already bound to an id,
        both must exist.
        """
        with self._translated("write", keys.STORE_ID):
            self._check_place()
            for path in reversed((self.root, *self.root.parents)):
                is_there = path.exists()
                if not is_there:
                    try:
                        path.mkdir(0o700 if path == self.root else 0o777, exist_ok=True)
                    except (FileExistsError, NotADirectoryError) as error:
                        raise self._in_the_way() from error
                # Another submission may have created the root without having synced its entry yet.
                if not is_there or path == self.root:
                    with suppress(PermissionError):  # We need not be allowed to read the root's parent.
                        _sync_directory(path.parent)
        with suppress(ObjectExists):
            self.put(keys.STORE_ID, os.urandom(16).hex().encode(), if_absent=True)
        self.hold_to(self._id)
        self._check_place()
        assert self._id is not None, "the check has noted it"
        return self._id

    def find_id(self) -> str | None:
        """Return the id in the root's mark; see ObjectStore."""
        try:
            return self.get(keys.STORE_ID).decode("ascii", errors="replace")
        except ObjectMissing:
            return None

    def hold_to(self, store_id: str | None = None) -> None:
        """Check the mark in each request from now on; see ObjectStore."""
        self._is_held = True
        self._id = store_id

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Store ``data`` under ``key``; see ObjectStore."""
        with self.open_upload(key, if_absent=if_absent) as upload:
            upload.write(data)
            upload.commit()

    def get(self, key: str) -> bytes:
        """Return the whole object; see ObjectStore."""
        path = self._path(key)
        with self._translated("read", key):
            try:
                return read_at_most(path, MAX_GET_BYTES)
            except ValueError as error:
                raise CorruptData(f"{self.url}: {key}: {error}") from None

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return some of the object's bytes; see ObjectStore."""
        if start < 0 or length < 0:
            raise ValueError(f"start and length must be >= 0: got {start}, {length}")
        path = self._path(key)
        with self._translated("read", key), path.open("rb") as file:
            file.seek(start)
            return file.read(length)

    def get_range_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        """Read some of the object's bytes into the buffer; see ObjectStore."""
        if start < 0:
            raise ValueError(f"start must be >= 0: got {start}")
        path = self._path(key)
        filled = 0
        with (
            self._translated("read", key),
            path.open("rb", buffering=0) as file,
            memoryview(buffer).cast("B") as view,
        ):
            file.seek(start)
            while filled < len(view):
                with view[filled:] as rest:
                    count = file.readinto(rest)
                if not count:
                    break
                filled += count
        return filled

    def head(self, key: str) -> ObjectMeta:
        """Return the object's metadata; see ObjectStore."""
        path = self._path(key)
        with self._translated("read", key):
            status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ObjectMissing(f"{self.url}: no object {key}")
        return _meta(key, status)

    def list_page(
        self, prefix: str, *, after: str | None = None, limit: int = 1000, cursor: str = ""
    ) -> ObjectPage:
        """Return a page of the objects under ``prefix``; see ObjectStore."""
        if limit < 1:
            raise ValueError(f"limit must be >= 1: got {limit}")
        skipped: list[str] = []
        with self._translated("list", prefix):
            found = tuple(islice(self._below(prefix, after, skipped), limit + 1))
        next_after = found[limit - 1].key if len(found) > limit else None
        return ObjectPage(objects=found[:limit], next_after=next_after, skipped=tuple(skipped))

    def list_pages(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectPage]:
        """Yield the pages of one walk, which reads each directory once; see ObjectStore."""
        skipped: list[str] = []
        with self._translated("list", prefix):
            below = self._below(prefix, after, skipped)
            while found := tuple(islice(below, _PAGE_SIZE)):
                self._check_place()
                yield ObjectPage(objects=found, next_after=found[-1].key, skipped=tuple(skipped))
                skipped.clear()
        if skipped:
            yield ObjectPage(objects=(), next_after=None, skipped=tuple(skipped))

    def _below(self, prefix: str, after: str | None, skipped: list[str]) -> Iterator[ObjectMeta]:
        directory = prefix[: prefix.rfind("/") + 1]
        if directory:
            check_key(directory[:-1])
        if directory.startswith(STAGING + "/"):
            return iter(())
        return self._walk(directory, prefix, after, skipped)

    def delete(self, key: str) -> None:
        """Remove the object, and any directories that this leaves empty; see ObjectStore.

        The deletion is durable when the call returns, so deletions reach the disk in the order of the calls.
        """
        path = self._path(key)
        with self._translated("delete", key):
            self._check_place()
            if path.is_dir():
                return  # the key is a directory, that is, only a prefix of keys
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return
            with suppress(FileNotFoundError):
                _sync_directory(path.parent)
        self._drop_empty_directories(path.parent)

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        """Start a streamed put; see ObjectStore. The bytes are synced once, in ``commit``."""
        path = self._path(key)
        with self._translated("write", key, is_final=False):
            self._check_place()
            if if_absent and path.is_file():  # This is only an optimization; ``commit`` decides.
                raise ObjectExists(f"{self.url}: {key} already exists")
            return _FileUpload(self, key, *self._stage(key), if_absent=if_absent)

    def presign_get(self, key: str, *, seconds: float) -> str:
        """Return the file's own URL, because anyone who can read the directory needs no other credentials."""
        return self._path(key).as_uri()

    def link(self, request: LinkRequest) -> LinkResult:
        """Raise CloudspotError, because other computers cannot read this computer's files."""
        raise CloudspotError(
            f"{self.url} is a directory, for which there are no links; send the file that `cloudspot report` "
            "writes"
        )

    # --- writing --------------------------------------------------------------------------------

    def _stage(self, key: str) -> tuple[Path, int]:
        """Create the file that will become the object; return its path and descriptor."""
        if not self._is_swept:
            self._is_swept = True
            remove_abandoned(self._staging, all_names=True)
        for _ in range(_NUM_TRIES):
            try:
                self._make_directory(self._staging)
                return create_partial(self._staging, mode=0o666 if keys.secrets.match(key) is None else 0o600)
            except FileNotFoundError:
                continue
            except NotADirectoryError as error:
                raise self._in_the_way() from error
        raise FileNotFoundError(errno.ENOENT, "its directory is not there, or keeps vanishing")

    def _in_the_way(self) -> SpecError:
        return SpecError(f"store {self.url}: a file is in the way of its directory")

    def _publish(self, staged: Path, key: str, *, if_absent: bool) -> None:
        """Move a staged, synced file to its key, durably."""
        target = self._path(key)
        for _ in range(_NUM_TRIES):
            try:
                self._make_directory(target.parent)
                if if_absent:
                    self._link(staged, target)
                else:
                    staged.replace(target)
            except FileNotFoundError:
                if not staged.exists():
                    raise  # The staged file was removed as stale, so the whole put must be repeated.
                continue
            except FileExistsError as error:
                if target.is_dir():
                    self._refuse_nesting(key)
                raise ObjectExists(f"{self.url}: {key} already exists") from error
            except (IsADirectoryError, NotADirectoryError):
                self._refuse_nesting(key)
            with suppress(FileNotFoundError):  # The object and its directory were deleted again.
                _sync_directory(target.parent)
            return
        raise FileNotFoundError(errno.ENOENT, "its directory keeps vanishing")

    def _link(self, staged: Path, target: Path) -> None:
        try:
            target.hardlink_to(staged)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno in _NO_HARD_LINKS and os.access(target.parent, os.W_OK):
                raise StoreRefused(
                    f"{self.url}: its filesystem has no hard links ({error.strerror}), so two writers "
                    "could both create the same object: use a directory on another filesystem"
                ) from error
            raise

    def _refuse_nesting(self, key: str) -> NoReturn:
        raise CloudspotError(
            f"{self.url}: a directory cannot hold both {key!r} and an object above or below it"
        )

    def _make_directory(self, path: Path) -> None:
        """Create the directory and its parents below the root; return when their entries are durable.

        Raises:
            FileNotFoundError: the root does not exist, or another process has just removed an empty parent.
        """
        try:
            inode = path.stat().st_ino
        except FileNotFoundError:
            if path == self.root:
                raise
            inode = None
        if path == self.root or (inode is not None and self._durable.get(path) == inode):
            return
        self._make_directory(path.parent)
        try:
            path.mkdir()
        except FileExistsError:
            if path.is_file():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        # An existing directory is synced too: another writer may have created it without having synced its
        # entry yet.
        _sync_directory(path.parent)
        self._durable[path] = path.stat().st_ino

    def _drop_empty_directories(self, path: Path) -> None:
        while self.root in path.parents:
            try:
                path.rmdir()
            except OSError:
                return  # The directory is not empty, or no longer exists.
            self._durable.pop(path, None)
            path = path.parent

    # --- reading --------------------------------------------------------------------------------

    def _walk(
        self, directory: str, prefix: str, after: str | None, skipped: list[str]
    ) -> Iterator[ObjectMeta]:
        """Yield the objects below ``directory`` ("" or ending in "/") in byte order of their keys.

        Names of other entries are added to ``skipped``.
        """
        try:
            with os.scandir(self.root / directory) as scan:
                # Entries are stored by name, because a file that is replaced during the scan may appear
                # twice.
                entries = {_sort_name(entry): entry for entry in scan}
        except (FileNotFoundError, NotADirectoryError):
            return
        # A directory sorts as its name with a slash, like the keys in it: "a-b" < "a/b" < "a0".
        for name in sorted(entries):
            key = directory + name
            if key == STAGING + "/":
                continue
            if not is_key(key.removesuffix("/")):
                skipped.append(key)
                continue
            if name.endswith("/"):
                may_match = key.startswith(prefix) or prefix.startswith(key)
                may_follow = after is None or key > after or after.startswith(key)
                if may_match and may_follow:
                    yield from self._walk(key, prefix, after, skipped)
            elif key.startswith(prefix) and (after is None or key > after):
                with suppress(FileNotFoundError):  # The file was deleted after the scan.
                    status = entries[name].stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield _meta(key, status)
                    else:
                        skipped.append(key)

    def _path(self, key: str) -> Path:
        check_key(key)
        if key == STAGING or key.startswith(STAGING + "/"):
            raise ValueError(f"key {key!r} is in the store's own staging directory")
        if (link := find_symlink(self.root, key)) is not None:
            raise StoreRefused(f"{self.url}: {link} is a symlink, which is not followed; remove it")
        return self.root / key

    def _check_place(self) -> None:
        """If the store is bound to an id, check that the mark in its root has this id.

        Raises:
            AuthError: this user is not permitted to read the mark, which was never read before.
            TransientError: the mark is missing or has another id.
        """
        if not self._is_held:
            return
        try:
            with open(self._mark, "rb", buffering=0) as file:  # noqa: PTH123 (half the time of Path.open)
                stored_id = file.read(_MAX_MARK_BYTES).decode("ascii", errors="replace")
        except OSError as error:
            if error.errno in _DENIED and self._id is None:
                raise AuthError(f"{self.url}: cannot read its {keys.STORE_ID}: {error.strerror}") from error
            raise TransientError(
                f"{self.url}: this version has submitted nothing to it yet, or its disk is not mounted: "
                f"{keys.STORE_ID}, which cloudspot run writes there, cannot be read: {error.strerror}"
            ) from error
        if _MARK.fullmatch(stored_id) is None or stored_id != (self._id or stored_id):
            raise TransientError(
                f"{self.url}: another store is mounted there: its {keys.STORE_ID} is {stored_id!r}"
            )
        self._id = stored_id

    @contextmanager
    def _translated(self, verb: str, key: str, *, is_final: bool = True) -> Iterator[None]:
        """Translate a request's errors, and check the root's mark before reporting an error or a success.

        For a success that is not final, ``commit`` checks the mark later.
        """
        try:
            yield
        except CloudspotError:
            self._check_place()
            raise
        except OSError as error:
            self._check_place()
            is_absent = isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError))
            if is_absent and verb == "read":
                raise ObjectMissing(f"{self.url}: no object {key}") from error
            kind = AuthError if error.errno in _DENIED else TransientError
            raise kind(f"{self.url}: cannot {verb} {key}: {error.strerror}") from error
        if is_final:
            self._check_place()


class _FileUpload(Upload):
    """A staged file that ``commit`` moves to its key."""

    def __init__(self, store: FileStore, key: str, staged: Path, descriptor: int, *, if_absent: bool) -> None:
        self._store = store
        self._key = key
        self._staged = staged
        self._descriptor = descriptor
        self._if_absent = if_absent
        self._is_open = True

    def write(self, data: Data) -> None:
        self._check_open()
        # Each view is released even if an error's traceback keeps this frame alive, because the caller may
        # want to close the mapping behind the view.
        with (
            # FileStore and this class belong together.
            self._store._translated("write", self._key, is_final=False),  # noqa: SLF001
            memoryview(data).cast("B") as view,
        ):
            written = write_past_cache(self._descriptor, view) if len(view) >= _LARGE_BYTES else 0
            while written < len(view):
                with view[written : written + PIECE_BYTES] as piece:
                    written += os.write(self._descriptor, piece)

    def commit(self) -> None:
        self._check_open()
        try:
            with self._store._translated("write", self._key):  # noqa: SLF001
                self._store._check_place()  # noqa: SLF001
                _sync_file(self._descriptor)
                _leave_cache(self._descriptor)
                self._store._publish(self._staged, self._key, if_absent=self._if_absent)  # noqa: SLF001
        finally:
            self.abort()

    def abort(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        os.close(self._descriptor)
        with suppress(OSError):  # It was renamed to its key; otherwise, it is removed once stale.
            self._staged.unlink()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"the upload of {self._key} was already committed or aborted")


def _parse_url(url: str) -> Path:
    parts = urlsplit(url)
    path = unquote(parts.path)
    is_plain = url.startswith("file://") and parts.netloc in ("", "localhost")
    if not is_plain or parts.query or parts.fragment or not path.strip("/") or "\0" in path:
        raise SpecError(f"store must be file:///absolute/path: got {url!r}")
    return Path(os.path.normpath("/" + path.lstrip("/")))


def _sort_name(entry: os.DirEntry[str]) -> str:
    return entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name


def _meta(key: str, status: os.stat_result) -> ObjectMeta:
    modified_at = datetime.fromtimestamp(status.st_mtime, tz=timezone.utc)
    # If a file is restored with its old modification time, its change time still differs.
    etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_ctime_ns:x}"
    return ObjectMeta(key=key, size=status.st_size, modified_at=modified_at, etag=etag)


def _sync_file(descriptor: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        # On macOS, fsync leaves the bytes in the drive's own cache (F_FULLFSYNC in fcntl(2)).
        with suppress(OSError):  # Network file systems without F_FULLFSYNC support only fsync.
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def _leave_cache(descriptor: int) -> None:
    """Remove the bytes of a large file from the kernel's cache once they are on disk.

    Freeing memory for the next file would take longer than copying it, and the cache is better used for the
    training's data than for bytes that only another machine might read.
    """
    if hasattr(os, "posix_fadvise") and os.fstat(descriptor).st_size >= _LARGE_BYTES:
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # Some network file systems cannot sync a directory.
            raise
    finally:
        os.close(descriptor)
