"""Make directories that belong only to this user, even in places where everybody may write."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path


def make_private(path: Path) -> None:
    """Create the directory for this user only; an existing directory must already be private.

    Raises:
        PermissionError: ``path`` is not a directory, belongs to another user, or is accessible to others.
    """
    with suppress(FileExistsError):
        path.mkdir(0o700, parents=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        fault = "is not a directory"
    elif status.st_uid != os.geteuid():
        fault = f"belongs to user {status.st_uid}"
    elif status.st_mode & 0o077:
        fault = f"has mode {status.st_mode & 0o777:o}, not 700"
    else:
        return
    raise PermissionError(errno.EPERM, f"{path} {fault}: it must be private; remove it", str(path))
