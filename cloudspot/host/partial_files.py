"""Write files and directories that appear completely or not at all, and leave no temporary files behind.

While a file is being written, it has a temporary name, and its writer holds a lock on it. A writer that fails
removes its file. The file of a killed writer is unlocked, so the next process that writes into the directory
removes it.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cloudspot.host.boot_clock import this_boot
from cloudspot.host.locks import lock_now

STALE_SECONDS = 3600.0
"""Locks reveal nothing about writers on other hosts, which count as killed if they have written nothing for
this long.

The time is measured by the clock of the process that removes old files, once for each directory. If that
clock is an hour ahead, a writer on another host loses its file, notices this at the rename, and has to write
the file again; no reader sees a partial file."""
_NAME = re.compile(r"\.cloudspot-([0-9a-f]{8})-[0-9a-f]{16}\.partial")

_swept: set[Path] = set()
"""The directories in which this process has removed abandoned files."""
_sweeping = threading.Lock()


@contextmanager
def whole_file(path: Path, *, mode: int = 0o666, beside: Path | None = None) -> Iterator[BinaryIO]:
    """Yield a new file that replaces ``path`` when the block succeeds.

    ``mode`` is subject to the umask. The temporary file is in the directory of ``path``, or in the directory
    of ``beside``, another path in the same file system.

    Raises:
        OSError: the file cannot be written; ``path`` is unchanged.
    """
    directory = (beside or path).absolute().parent
    _sweep_once(directory)
    partial, descriptor = create_partial(directory, mode=mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file so that readers see the whole file or none; see ``whole_file``."""
    with whole_file(path, mode=mode) as file:
        file.write(data)


@contextmanager
def partial_directory(directory: Path, *, mode: int = 0o777) -> Iterator[Path]:
    """Yield a new directory below ``directory``, and remove it when the block ends.

    The block moves the finished content out of it, or renames the directory itself. ``mode`` is subject to
    the umask.
    """
    directory = directory.absolute()
    _sweep_once(directory)
    while True:
        partial = directory / _new_name()
        partial.mkdir(mode)
        with suppress(FileNotFoundError):  # removed by another process before it was locked
            descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            if _lock_new(partial, descriptor):
                break
            os.close(descriptor)
    try:
        yield partial
    finally:
        os.close(descriptor)
        shutil.rmtree(partial, ignore_errors=True)


def create_partial(directory: Path, *, mode: int = 0o666) -> tuple[Path, int]:
    """Create a temporary file; return its path and descriptor, which holds the lock until it is closed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        partial = directory / _new_name()
        descriptor = os.open(partial, flags, mode)
        if _lock_new(partial, descriptor):
            return partial, descriptor
        os.close(descriptor)


def remove_abandoned(directory: Path, *, all_names: bool = False) -> None:
    """Remove the temporary files of killed writers from the directory; a missing directory is no error.

    If ``all_names``, all other files there are temporary too, and are removed once they are stale.
    """
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as scan:
        for entry in scan:
            name = _NAME.fullmatch(entry.name)
            if name is not None or all_names:
                # Another process may be removing the file, or its writer may just have completed it.
                with suppress(OSError):
                    _remove_if_abandoned(
                        Path(entry.path), is_of_this_host=bool(name and name[1] == this_boot())
                    )


def _remove_if_abandoned(path: Path, *, is_of_this_host: bool) -> None:
    status = path.lstat()
    is_stale = status.st_mtime < time.time() - STALE_SECONDS
    if not (is_of_this_host or is_stale):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        try:
            if not lock_now(descriptor):
                return
        except OSError:  # a file system without locks
            if not is_stale:
                return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    finally:
        os.close(descriptor)


def _sweep_once(directory: Path) -> None:
    with _sweeping:
        if directory not in _swept:
            remove_abandoned(directory)
            _swept.add(directory)


def _lock_new(partial: Path, descriptor: int) -> bool:
    """Lock a new file; return whether it still exists, because a sweep may have removed it."""
    try:
        if not lock_now(descriptor):
            return False
    except OSError:  # a file system without locks, where sweeps judge by age
        pass
    try:
        return partial.lstat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _new_name() -> str:
    return f".cloudspot-{this_boot()}-{os.urandom(8).hex()}.partial"
