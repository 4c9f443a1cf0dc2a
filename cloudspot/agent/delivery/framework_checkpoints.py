"""How the checkpoint directories of well-known trainers look when they are complete."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from cloudspot.agent.delivery.checkpoint_watch import INCOMPLETE_FILE
from cloudspot.host.bounded_reads import read_at_most

_TRAINER_STATE = "trainer_state.json"
MAX_STATE_BYTES = 128 << 20
"""A trainer that logs a million steps writes less; a longer file is taken for unfinished."""
_RANDOM_STATE = "random_states_0.pkl"
_LAST_OF_ACCELERATE = re.compile(r"random_states_\d+\.pkl|custom_checkpoint_\d+\.pkl")
_CKPT = ".ckpt"
_INDEX = ".index.json"
_DISTRIBUTED = ".metadata"


def looks_finished(path: Path, files: Sequence[tuple[str, int, int]]) -> bool:
    """Return whether the directory is known by its content, and its trainer has written what it writes last.

    Other ranks may still write for a moment, so one that has just been written to is not complete yet.
    ``files`` holds path, size and modification time (ns) of each file.

    transformers' ``Trainer._save_checkpoint``, also ms-swift's, writes ``trainer_state.json`` last.
    accelerate's ``save_state`` writes the random states last, and then the objects that the script has
    registered. Lightning's ``ModelCheckpoint`` writes a ``.ckpt`` for each checkpoint: a zip archive, whose
    table comes last. ``torch.distributed.checkpoint`` renames its table to ``.metadata`` once all ranks have
    written their files; ``save_pretrained`` writes the ``*.index.json`` that names its shards after these.
    Sources: their code, as of transformers 5.23, ms-swift 4.6, accelerate 1.15, Lightning 2.6 and torch 2.9
    (read 2026-11).
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
    if _DISTRIBUTED in names:
        return _DISTRIBUTED in last
    indexes = {name for name in names if name.endswith(_INDEX)}
    if indexes:
        return bool(indexes & last) and all(_shards_of(path / name) <= names for name in indexes)
    return all(name.endswith(_CKPT) and _is_archive(path / name) for name in names)


def is_whole_file(path: Path) -> bool:
    """Return whether a checkpoint that is a file has a table of its contents, and is as long as that says.

    ``torch.save`` writes a zip archive, whose table comes last. A safetensors file begins with its table.
    """
    if _is_archive(path):
        return True
    if path.suffix != ".safetensors":
        return False
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            table = json.loads(file.read(min(length, MAX_STATE_BYTES)))
        ends = [entry["data_offsets"][1] for name, entry in table.items() if name != "__metadata__"]
        return path.stat().st_size == 8 + length + max(ends, default=0)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def _shards_of(path: Path) -> frozenset[str]:
    """Return the names of the files that an index names; one that nobody has, if it is not whole."""
    try:
        return frozenset(json.loads(read_at_most(path, MAX_STATE_BYTES))["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return frozenset([""])


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
