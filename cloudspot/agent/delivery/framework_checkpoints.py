"""How the checkpoint directories of well-known trainers look when they are complete."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from cloudspot.agent.delivery.checkpoint_states import Finished
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


def finish_of(path: Path, files: Sequence[tuple[str, int, int]]) -> Finished | None:
    """Return what the directory's content says: whether a library has written what it writes last.

    Other ranks may still write for a moment, so one that has just been written to is not complete yet.
    ``files`` holds path, size and modification time (ns) of each file.

    All of the checkpoint: transformers' ``Trainer._save_checkpoint``, also ms-swift's, writes
    ``trainer_state.json`` last. Lightning's ``ModelCheckpoint`` writes a ``.ckpt`` for each checkpoint: a zip
    archive, whose table comes last.

    Its own files, which others may follow: accelerate's ``save_state`` writes the random states, and then the
    objects that the script has registered. ``torch.distributed.checkpoint`` renames its table to
    ``.metadata`` once all ranks have written their files; Lightning's ``FSDPStrategy`` then adds ``meta.pt``.
    ``save_pretrained`` writes the ``*.index.json`` that names its shards after these, and the optimizer's
    state is written later. Sources: their code, as of transformers 5.23, ms-swift 4.6, accelerate 1.15,
    Lightning 2.6 and torch 2.9 (read 2026-11).
    """
    names = {name for name, _, _ in files}
    if INCOMPLETE_FILE in names or not files:
        return None
    newest = max(modified_at for _, _, modified_at in files)
    last = {name for name, _, modified_at in files if modified_at == newest}
    if _TRAINER_STATE in names:
        return "all" if _TRAINER_STATE in last and _is_json(path / _TRAINER_STATE) else None
    indexes = {name for name in names if name.endswith(_INDEX)}
    if _RANDOM_STATE in names:
        is_whole = any(_LAST_OF_ACCELERATE.fullmatch(name) for name in last)
    elif _DISTRIBUTED in names:
        is_whole = _DISTRIBUTED in last
    elif indexes:
        is_whole = bool(indexes & last) and all(_shards_of(path / name) <= names for name in indexes)
    else:
        return "all" if all(name.endswith(_CKPT) and _is_archive(path / name) for name in names) else None
    return "own" if is_whole else None


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
