"""The key of a job's setup; jobs whose setup leaves a machine in the same state have the same key."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from cloudspot.errors import SpecError
from cloudspot.jobfile.spec import RunSpec

LENGTH: Final = 40
"""The number of hexadecimal digits in a key; clouds allow that many in the value of a label."""
_FORMAT: Final = 1
"""The version of the files that the agent leaves on an image."""


def setup_key(run: RunSpec, *, train_python: str, digests: Iterable[tuple[str, str]]) -> str:
    """Return the key; ``digests`` holds the name and the content digest of each file and link in the code.

    ``train_python`` is the provider's interpreter. The image of the machine does not affect the key.

    Raises:
        SpecError: a pattern of ``run.setup_files`` matches no file.
    """
    hashed = sorted(digests)
    patterns = run.setup_files
    if patterns is not None:
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name, _ in hashed):
                raise SpecError(f"run.setup_files: no file of the code matches {pattern!r}")
        hashed = [one for one in hashed if any(fnmatch.fnmatchcase(one[0], each) for each in patterns)]
    content = [_FORMAT, run.setup, run.image, run.python or train_python, sorted(run.env.items()), hashed]
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:LENGTH]
