"""The temporary name of a file that is written beside its place and then renamed."""

from __future__ import annotations

import secrets
from pathlib import Path


def partial_path(path: Path) -> Path:
    """Return a new hidden name in the directory of ``path``, for a file that is to replace ``path``.

    Two processes that write the same file never share a name. The caller removes what it leaves.
    """
    return path.absolute().with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.partial")
