"""How the checkpoint directories of well-known trainers look when they are complete."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from cloudspot.host.bounded_reads import read_at_most

INCOMPLETE_FILE = "checkpoint-is-incomplete.txt"
"""Hugging Face's Trainer has it in the directory while it saves because of SIGTERM."""
_TRAINER_STATE = "trainer_state.json"
MAX_STATE_BYTES = 128 << 20
"""A trainer that logs a million steps writes less; a longer file is taken for unfinished."""
_RANDOM_STATE = "random_states_0.pkl"
_LAST_OF_ACCELERATE = re.compile(r"random_states_\d+\.pkl|custom_checkpoint_\d+\.pkl")
_CKPT = ".ckpt"


def looks_finished(path: Path, files: Sequence[tuple[str, int, int]]) -> bool:
    """Return whether the directory is known by its content, and its trainer has written what it writes last.

    Other ranks may still write for a moment, so one that has just been written to is not complete yet.
    ``files`` holds path, size and modification time (ns) of each file.

    transformers' ``Trainer._save_checkpoint``, also ms-swift's, writes ``trainer_state.json`` last.
    accelerate's ``save_state`` writes the random states last, and then the objects that the script has
    registered. Lightning's ``ModelCheckpoint`` writes a ``.ckpt`` for each checkpoint: a zip archive, whose
    table comes last. Sources: their code, as of transformers 5.23, ms-swift 4.6, accelerate 1.15 and
    Lightning 2.6 (read 2026-11).
    """
    names = {name for name, _, _ in files}
    if INCOMPLETE_FILE in names or not files:
        return False
    newest = max(modified_at for _, _, modified_at in files)
    last = {name for name, _, modified_at in files if modified_at == newest}
    if _TRAINER_STATE in names:
        return _TRAINER_STATE in last and _is_json(path / _TRAINER_STATE)
    if _RANDOM_STATE in names:
        return any(_LAST_OF_ACCELERATE.fullmatch(name) for name in last)
    return all(name.endswith(_CKPT) and _is_archive(path / name) for name in names)


def _is_json(path: Path) -> bool:
    try:
        json.loads(read_at_most(path, MAX_STATE_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return True


def _is_archive(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except OSError:  # deleted meanwhile
        return False
