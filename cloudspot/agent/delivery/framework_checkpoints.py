"""Recognize complete checkpoint directories of well-known trainers."""

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
"""A trainer that logs a million steps writes less; a longer file counts as incomplete."""
_RANDOM_STATE = "random_states_0.pkl"
_LAST_OF_ACCELERATE = re.compile(r"random_states_\d+\.pkl|custom_checkpoint_\d+\.pkl")
_CKPT = ".ckpt"
_INDEX = ".index.json"
_DISTRIBUTED = ".metadata"


def finish_of(path: Path, files: Sequence[tuple[str, int, int]]) -> Finished | None:
    """Return whether the file that a library writes last is there, and whether others may follow it.

    Other ranks may still write for a moment, so the caller must wait until a new checkpoint has been quiet.
    ``files`` contains the path, size and modification time (ns) of each file.

    ``all``: the ``Trainer._save_checkpoint`` of transformers and ms-swift writes ``trainer_state.json`` last.
    Lightning's ``ModelCheckpoint`` writes one ``.ckpt`` file per checkpoint, a zip archive that ends with its
    table.

    ``own``: accelerate's ``save_state`` writes the random states, and then the script's registered objects.
    ``torch.distributed.checkpoint`` renames its table to ``.metadata`` once all ranks have written their
    files; Lightning's ``FSDPStrategy`` then adds ``meta.pt``. ``save_pretrained`` writes its shards, then the
    ``*.index.json`` that names the shards; the optimizer's state is written later. Sources: the code of
    transformers 5.23, ms-swift 4.6, accelerate 1.15, Lightning 2.6 and torch 2.9 (read 2026-11).
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
    """Return whether a checkpoint file has a table of contents, and the length that the table gives.

    ``torch.save`` writes a zip archive, which ends with the table. A safetensors file begins with the table.
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
    """Return the file names in an index or, if the index is incomplete, a name that no file has."""
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
