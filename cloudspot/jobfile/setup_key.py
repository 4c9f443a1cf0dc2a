"""The key of a job's setup: equal for jobs whose machines are the same once it has run."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from cloudspot.errors import SpecError
from cloudspot.jobfile.spec import RunSpec

LENGTH: Final = 40
"""Hexadecimal digits of a key: as many as clouds allow in the value of a label, and more."""
_FORMAT: Final = 1
"""Changes when the agent leaves something else on an image."""


def setup_key(run: RunSpec, *, train_python: str, digests: Iterable[tuple[str, str]]) -> str:
    """Return the key; ``digests`` are the names of the files and links of the code, and what they hold.

    ``train_python`` is the provider's. The image of the machine is not part of it.

    Raises:
        SpecError: a pattern of ``run.setup_files`` fits no file.
    """
    hashed = sorted(digests)
    patterns = run.setup_files
    if patterns is not None:
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name, _ in hashed):
                raise SpecError(f"run.setup_files: no file of the code fits {pattern!r}")
        hashed = [one for one in hashed if any(fnmatch.fnmatchcase(one[0], each) for each in patterns)]
    said = [_FORMAT, run.setup, run.image, run.python or train_python, sorted(run.env.items()), hashed]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:LENGTH]
