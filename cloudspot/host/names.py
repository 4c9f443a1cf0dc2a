"""Names from a store as paths on a disk: which are safe, and how they are reached below a root."""

from __future__ import annotations

import errno
import os
from pathlib import Path

MAX_SEGMENT_BYTES = 255
"""What file systems take."""
MAX_NAME_BYTES = 2047
"""Leaves room for a root in the 4,095 bytes of a path."""
_NOWHERE = frozenset((b"", b".", b".."))
"""Segments that lead to no place of their own."""


def is_safe_name(name: str) -> bool:
    """Return whether a ``/``-separated name is a relative path that leads to one place below any root.

    No segment is empty, ``.`` or ``..``, none holds a NUL or is too long, and the system can encode it. All
    else is allowed, also what is not UTF-8. A backslash and a drive letter are ordinary characters, since
    cloudspot runs on POSIX systems alone.

    Two safe names may be one file where the file system ignores case or the form of Unicode, as macOS's does;
    who writes several must not let one replace the other. Symlinks on the disk are what ``make_parents`` and
    ``find_symlink`` are for.
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
    """Return a name as text that can be encoded; bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def make_parents(root: Path, name: str) -> Path:
    """Make the directories above ``name`` below ``root``, which exists; return the path of the name itself.

    Raises:
        ValueError: the name is not safe.
        SymlinkError: a directory on the way is a symlink, which could lead out.
        OSError: a directory cannot be made.
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
    """Return the first symlink on the way from ``root`` to ``name``, or at its end; None if there is none.

    Raises:
        ValueError: the name is not safe.
    """
    _check(name)
    path = str(root)
    for segment in name.split("/"):
        path += "/" + segment
        if os.path.islink(path):  # noqa: PTH114 - a store asks at each request, and a Path takes far longer
            return Path(path)
    return None


class SymlinkError(OSError):
    """A symlink stands where a directory was expected; it is not followed."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.ELOOP, f"{path} is a symlink, which is not followed")


def _check(name: str) -> None:
    if not is_safe_name(name):
        raise ValueError(f"{name[:200]!r} is not a safe relative path")
