"""The name under which a file is written until it is whole: beside it, and nobody else's."""

from __future__ import annotations

import secrets
from pathlib import Path


def partial_path(path: Path) -> Path:
    """Return a hidden name in the directory of ``path``, which is then replaced by a rename.

    Another at each call: of two processes that write the same file at the same time, neither renames what
    the other is in the middle of. The caller removes what it leaves.
    """
    return path.absolute().with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.partial")
