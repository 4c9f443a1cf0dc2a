"""Set aside the files of a complete checkpoint, so that the script can go on writing."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from cloudspot.agent.delivery.checkpoint_states import Stamp, State
from cloudspot.jobstore.layout.records import File, file_of

ROOM = 3
"""A copy is made only if the disk has room for this many copies: the script's next save needs some."""
_FICLONE = 0x40049409
"""The ioctl request that makes a file share the blocks of another one, copy on write (linux/fs.h)."""
_FULL = {errno.ENOSPC, errno.EDQUOT}

Way = Literal["clone", "link", "copy", "direct"]
"""A ``link`` protects a file from being deleted or replaced; ``direct`` gives no protection."""


class _Stamp(NamedTuple):
    size: int
    written_at: int
    inode: int
    changed_at: int
    names: tuple[int, int]
    """The number of names, and how often a name was added here: the first may hide that one was removed."""

    def is_still(self, other: _Stamp) -> bool:
        """Return whether the file was not written to; a change of its names changes ``changed_at`` too."""
        is_explained = self.changed_at == other.changed_at or self.names != other.names
        return self[:3] == other[:3] and is_explained


class SetAside:
    """The files of a state, usually below a directory of the agent."""

    def __init__(
        self,
        state: State,
        root: Path,
        files: tuple[File, ...],
        ways: Mapping[str, Way],
        *,
        num_linked: Counter[int],
        is_own: bool = True,
    ) -> None:
        """Create it; ``is_own`` is whether the agent owns the root; for ``num_linked``, see ``set_aside``."""
        self.state = state
        self.is_own = is_own
        self.root = root
        self.files = files
        self._num_linked = num_linked
        self._sources: dict[Path, _Stamp] = {}
        self.ways = frozenset(ways.values())

    @property
    def is_safe(self) -> bool:
        """Whether the script can no longer change the files."""
        return self.ways <= {"clone", "copy"}

    def note(self, source: Path, stamp: Stamp) -> None:
        """Record a source file that must not change while the state is not safe.

        Raises:
            OSError: the file no longer has this stamp.
        """
        self._sources[source] = found = _stamp(source, self._num_linked)
        if found[:3] != stamp:
            raise FileNotFoundError(source)

    def holds(self, writers: Callable[[Collection[int]], Collection[int]]) -> bool:
        """Return whether the files are unchanged since they were set aside and no process writes to them."""
        if self.is_safe:
            return True
        try:
            if any(
                not _stamp(source, self._num_linked).is_still(stamp)
                for source, stamp in self._sources.items()
            ):
                return False
        except OSError:  # deleted meanwhile
            return False
        return not writers({stamp.inode for stamp in self._sources.values()})

    def drop(self) -> None:
        """Delete the files: otherwise, files deleted by the script would still use disk space."""
        if self.is_own:
            shutil.rmtree(self.root, ignore_errors=True)


def set_aside(
    state: State,
    work: Path,
    root: Path,
    *,
    logs: Mapping[str, Stamp],
    links: Collection[str],
    num_linked: Counter[int],
    must_copy: bool,
    writers: Callable[[Collection[int]], Collection[int]],
    gives_up: Callable[[], bool] = lambda: False,
) -> SetAside | None:
    """Set aside a state; return None if it no longer exists or a process writes to it.

    ``logs`` may grow in the meantime: they are copied up to the length in the stamp. ``links`` are pointers,
    whose targets are stored as text. ``must_copy`` says that the script writes to its files in place, so hard
    links do not protect them. While ``gives_up`` returns True, no file is copied, and the result is None if a
    copy is needed. ``num_linked`` counts how often each inode was linked here, for any state.
    """
    shutil.rmtree(root, ignore_errors=True)
    ways: dict[str, Way] = {}
    files: list[File] = []
    size = sum(stamp.size for _, stamp in state.version)
    may_copy = shutil.disk_usage(root.parent).free >= ROOM * size
    try:
        # Set aside the oldest file first, because files are restored in that order.
        for path, stamp in sorted((*state.version, *logs.items()), key=lambda entry: entry[1].written_at):
            source, target = work / path, root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            mode = source.stat(follow_symlinks=path not in links).st_mode & 0o777
            if path in links:
                target.write_bytes(os.fsencode(source.readlink()))
                found_link = source.lstat()
                if (found_link.st_size, found_link.st_mtime_ns, found_link.st_ino) != stamp:
                    raise FileNotFoundError(path)  # its target has changed
                files.append(file_of(path, target.stat().st_size, mode=0o600, is_link=True))
                continue
            files.append(file_of(path, stamp.size, mode=mode))
            if path in logs:
                _copy(source, target, stamp.size)
                continue
            source = Path(os.path.realpath(source))
            before = _stamp(source, num_linked)
            ways[path] = _take(
                source, target, stamp.size, must_copy=must_copy, may_copy=may_copy, gives_up=gives_up
            )
            num_linked[before.inode] += ways[path] == "link"
            after = _stamp(target if ways[path] == "link" else source, num_linked)
            if after[:3] != stamp or not after.is_still(before):
                raise FileNotFoundError(path)
        found = SetAside(state, root, tuple(files), ways, num_linked=num_linked)
        for path, stamp in state.version:
            if path in ways:  # only after all links, because a file with two names was linked twice
                source = root / path if ways[path] == "link" else Path(os.path.realpath(work / path))
                found.note(source, stamp)
        if writers({stamp.inode for _, stamp in state.version}):
            raise FileNotFoundError(state.name)
    except OSError as error:
        shutil.rmtree(root, ignore_errors=True)
        if error.errno in _FULL:
            own = {path for path, _ in state.version} - {*links}
            return _where_it_is(state, work, own, logs, num_linked, writers)
        return None  # a file has changed or is gone
    return found


def _where_it_is(
    state: State,
    work: Path,
    own: Collection[str],
    logs: Mapping[str, Stamp],
    num_linked: Counter[int],
    writers: Callable[[Collection[int]], Collection[int]],
) -> SetAside | None:
    """Return an unchanged state in the script's directory, because the disk has no room to set it aside."""
    stamps = {**{path: stamp for path, stamp in state.version if path in own}, **logs}
    try:
        files = tuple(
            file_of(path, stamp.size, mode=(work / path).stat().st_mode & 0o777)
            for path, stamp in sorted(stamps.items(), key=lambda entry: entry[1].written_at)
        )
        ways: dict[str, Way] = dict.fromkeys(own, "direct")
        found = SetAside(state, work, files, ways, num_linked=num_linked, is_own=False)
        for path in own:
            found.note(work / path, stamps[path])
    except OSError:
        return None
    return found if found.holds(writers) else None


def _take(
    source: Path,
    target: Path,
    size: int,
    *,
    must_copy: bool,
    may_copy: bool,
    gives_up: Callable[[], bool],
) -> Way:
    """Set aside one file; raise OSError if it is missing or the disk has no room for a copy."""
    if _clone(source, target):
        return "clone"
    if not must_copy:
        with suppress(OSError):  # another file system, or no hard links
            os.link(source, target)
            return "link"
    if not may_copy:
        raise OSError(errno.ENOSPC, "no room for a copy beside the next save", str(target))
    _copy(source, target, size, gives_up)
    shutil.copystat(source, target)
    return "copy"


def _clone(source: Path, target: Path) -> bool:
    """Return whether the file system could make the two files share blocks."""
    try:
        import fcntl
    except ImportError:
        return False
    with source.open("rb") as from_file, target.open("xb") as to_file:
        try:
            fcntl.ioctl(to_file.fileno(), _FICLONE, from_file.fileno())
        except OSError:
            target.unlink()
            return False
    return True


def _copy(source: Path, target: Path, size: int, gives_up: Callable[[], bool] = lambda: False) -> None:
    """Copy the first ``size`` bytes of a file.

    Raises:
        FileNotFoundError: the file is shorter now, or the copy was interrupted.
    """
    with source.open("rb") as from_file, target.open("xb") as to_file:
        left = size
        while left > 0:
            data = b"" if gives_up() else from_file.read(min(left, 8 << 20))
            if not data:
                raise FileNotFoundError(source)
            to_file.write(data)
            left -= len(data)


def _stamp(path: Path, num_linked: Counter[int]) -> _Stamp:
    status = path.stat()
    inode, names = status.st_ino, (status.st_nlink, num_linked[status.st_ino])
    return _Stamp(status.st_size, status.st_mtime_ns, inode, status.st_ctime_ns, names)
