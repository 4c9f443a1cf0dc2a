"""Check that a disk has space for data of a claimed size before any of the data is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from cloudspot.errors import CloudspotError
from cloudspot.model import GIB


def check_fits(directory: Path, num_bytes: int) -> None:
    """Check that the whole disk, if it were empty, could hold ``num_bytes``.

    Raises:
        CloudspotError: the disk is too small.
    """
    total = shutil.disk_usage(directory).total
    if num_bytes > total:
        raise CloudspotError(
            f"the disk of {directory} is too small: {num_bytes / GIB:.1f} GiB are needed, and the whole "
            f"disk has {total / GIB:.1f} GiB; for machines with larger disks, set resources.disk"
        )


def check_room(directory: Path, num_bytes: int, *, spare_share: float = 0.0) -> None:
    """Check that the disk has space for ``num_bytes`` more and still keeps ``spare_share`` of itself free.

    Raises:
        CloudspotError: there is not enough free space.
    """
    disk = shutil.disk_usage(directory)
    free = max(0, disk.free - int(spare_share * disk.total))
    if num_bytes > free:
        raise CloudspotError(
            f"no space left on the disk of {directory}: {num_bytes / GIB:.1f} GiB are needed, and "
            f"{free / GIB:.1f} GiB are free; for machines with larger disks, set resources.disk"
        )
