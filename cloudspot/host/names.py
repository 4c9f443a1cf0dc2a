"""Use names from a store as paths on a disk: check that the names are safe, and find them below a root."""

from __future__ import annotations

import errno
import os
from pathlib import Path

MAX_SEGMENT_BYTES = 255
"""The limit of most file systems."""
MAX_NAME_BYTES = 2047
"""The limit for a whole name, which leaves room for a root in the 4,095 bytes of a path."""
_NOWHERE = frozenset((b"", b".", b".."))
"""Segments that do not name a file or directory of their own."""


def is_safe_name(name: str) -> bool:
    """Return whether a ``/``-separated name is a relative path that stays below any root.

    No segment is empty, ``.`` or ``..``, contains a NUL byte or is too long, and the system can encode the
    name. Everything else is allowed, even names that are not UTF-8. A backslash and a drive letter are
    ordinary characters, because cloudspot runs only on POSIX systems.

    Two safe names may denote the same file if the file system ignores case or Unicode normalization, as on
    macOS; a caller that writes several files must not let one replace another. ``make_parents`` and
    ``find_symlink`` check the disk for symlinks.
    """
    try:
        data = os.fsencode(name)
    except UnicodeEncodeError:
        return False
    segments = data.split(b"/")
    return (
        len(data) <= MAX_NAME_BYTES
        and b"\0" not in data
        and _NOWHERE.isdisjoint(segments)
        and max(map(len, segments)) <= MAX_SEGMENT_BYTES
    )


def printable(name: str) -> str:
    """Return a name as encodable text; bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def make_parents(root: Path, name: str) -> Path:
    """Create the directories above ``name`` below ``root``, which must exist; return the name's path.

    Raises:
        ValueError: the name is not safe.
        SymlinkError: a directory in the path is a symlink, which could lead outside ``root``.
        OSError: a directory cannot be created.
    """
    _check(name)
    path = root
    for segment in name.split("/")[:-1]:
        path /= segment
        if path.is_symlink():
            raise SymlinkError(path)
        path.mkdir(exist_ok=True)
    return root / name


def find_symlink(root: Path, name: str) -> Path | None:
    """Return the first symlink in the path from ``root`` to ``name``, inclusive; None if there is none.

    Raises:
        ValueError: the name is not safe.
    """
    _check(name)
    path = str(root)
    for segment in name.split("/"):
        path += "/" + segment
        if os.path.islink(path):  # noqa: PTH114 - each request of a store calls this, and a Path is far slower
            return Path(path)
    return None


class SymlinkError(OSError):
    """There was a symlink where a directory or file was expected; it is not followed."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.ELOOP, f"{path} is a symlink, which is not followed")


def _check(name: str) -> None:
    if not is_safe_name(name):
        raise ValueError(f"{name[:200]!r} is not a safe relative path")
