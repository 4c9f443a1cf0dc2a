"""A session's checkpoint in a store, made by the code that makes it in a job; needs torch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from support.records.made_journal import commit
from support.records.uploads import upload_session
from support.worlds.fake_world import fake_world

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.checkpoints.compression import Compression
from cloudspot.jobstore.checkpoints.manifests import read_manifest
from cloudspot.jobstore.layout.records import CheckpointId, Manifest
from cloudspot.train.handoff import seals_directory

_SLOT_SECONDS = 60.0


def put_session_checkpoint(
    store: ObjectStore,
    job_id: str,
    checkpoint: CheckpointId,
    objects: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
    *,
    scratch: Path,
    world_size: int = 2,
    chunk_bytes: int = 1000,
    compression: Compression | None = None,
) -> Manifest:
    """Save the objects' state as ``world_size`` ranks would, upload the parts and commit them.

    Args:
        store: Where to.
        job_id: Whose.
        checkpoint: Which.
        objects: What ``cloudspot.train.session()`` would track, by name; or a function that makes it in each
            rank, which is then one of a process group whose collectives do nothing.
        scratch: A directory for the arena and the seals.
        world_size: How many parts there are.
        chunk_bytes: The size of all chunks but each part's last.
        compression: As beside the training.
    """
    for rank in range(world_size):
        directory = scratch / f"{checkpoint}-{rank}"
        if callable(objects):
            with fake_world(rank, world_size):
                seal_path = _seal(objects(), checkpoint, directory, rank, world_size)
        else:
            seal_path = _seal(objects, checkpoint, directory, rank, world_size)
        seal = json.loads(seal_path.read_text())
        upload_session(
            store,
            job_id,
            seal_path.read_bytes(),
            Path(seal["slot"]).read_bytes()[: seal["nbytes"]],
            sealed_at=datetime.now(timezone.utc),
            chunk_bytes=chunk_bytes,
            compression=compression,
            in_background=True,
        )
    assert commit(store, job_id, checkpoint) is not None, "every part is there"
    return read_manifest(store, job_id, checkpoint)


def _seal(
    objects: Mapping[str, Any], checkpoint: CheckpointId, directory: Path, rank: int, world_size: int
) -> Path:
    """Copy one rank's part into an arena and seal it; return the seal's path."""
    from cloudspot.train.distributed import World
    from cloudspot.train.rounds.save_order import INTERVAL, SaveOrder
    from cloudspot.train.sessions.saving import Saver
    from cloudspot.train.state.arena import Arena
    from cloudspot.train.state.boundary_marks import Description
    from cloudspot.train.state.checkpoint import take

    arena = Arena(
        directory=directory / "arena",
        spill=directory / "spill",
        handoff=directory,
        generation=checkpoint.generation,
        world=World(rank, world_size, rank, world_size),
    )
    saver = Saver(arena)
    saver.prepare(take(objects).items)
    deadline = time.monotonic() + _SLOT_SECONDS
    seconds = saver.save(
        objects,
        SaveOrder(INTERVAL, checkpoint.step),
        step=checkpoint.step,
        describe=lambda: Description({"seed": 1, "position": None}, {}),
        deadline=lambda: deadline,
    )
    saver.close()
    assert seconds is not None, "a fresh arena has a free slot"
    (path,) = seals_directory(directory).glob("seal-*.json")
    return path


class Everything:
    """What a save takes for its base's: all."""

    def __contains__(self, content):
        return True
