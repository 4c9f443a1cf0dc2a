"""A store in a directory, and checkpoints to put into it."""

import functools
import hashlib
import json
from types import SimpleNamespace

import pytest
from support.records import made_journal, sessions
from support.records.uploads import upload_files, upload_session
from support.stores.directorystore import directory_store

from cloudspot.jobstore.checkpoints import manifests, shared_chunks
from cloudspot.jobstore.layout.records import CheckpointId, File, SaveId


@pytest.fixture
def store(tmp_path):
    return directory_store(tmp_path / "store")


@pytest.fixture
def small_chunks(monkeypatch):
    """Let chunks of any size be shared."""
    monkeypatch.setattr(shared_chunks, "MIN_BYTES", 1)


def save_of(checkpoint):
    """The save of that name; of a checkpoint, the one that belongs to no round."""
    return SaveId(checkpoint.generation, checkpoint.step, getattr(checkpoint, "round", 0))


def make_seals(checkpoint, datas, **changes):
    """The seals of a session whose ranks hold ``datas``, each in items of up to 1000 bytes."""
    tables = []
    for rank, data in enumerate(datas):
        starts = range(0, len(data), 1000)
        tables.append([
            {"name": f"model/{rank}.{start}", "dtype": "uint8", "shape": [min(1000, len(data) - start)],
             "offset": start, "nbytes": min(1000, len(data) - start)}
            for start in starts
        ])  # fmt: skip
    text = json.dumps(list(enumerate(tables)), sort_keys=True, separators=(",", ":"))
    plan = hashlib.sha256(text.encode()).hexdigest()
    return [
        json.dumps(
            {
                "format": 1, "generation": checkpoint.generation, "step": checkpoint.step,
                "round": save_of(checkpoint).round, "rank": rank, "relieved": [],
                "world_size": len(datas), "kind": "interval", "slot": "/dev/shm/slot", "nbytes": len(data),
                "plan": plan, "items": tables[rank],
                "objects": {"best": float("inf")} if rank == 0 else None, "rank_states": {str(rank): {"rng": [rank]}},
                "stall_seconds": 0.1, "boot": "0123abcd", "sealed_monotonic": 0.0, **changes,
            }
        ).encode()
        for rank, data in enumerate(datas)
    ]  # fmt: skip


def put_session(store, checkpoint, datas, *, chunk_bytes=1500, commit=True, job_id="x", **options):
    """Upload all parts of a session's checkpoint, and commit it."""
    for data, seal in zip(datas, make_seals(checkpoint, datas), strict=True):
        upload_session(store, job_id, seal, data, chunk_bytes=chunk_bytes, **options)
    return committed(store, job_id, checkpoint) if commit else None


def committed(store, job_id, checkpoint):
    """Commit the checkpoint, or a save of it, and return its manifest."""
    checkpoint = save_of(checkpoint).checkpoint
    assert made_journal.commit(store, job_id, checkpoint).id == checkpoint
    return manifests.read_manifest(store, job_id, checkpoint)


def put_directory(store, checkpoint, root, name, *, chunk_bytes=1500, job_id="x", **options):
    """Upload a directory as one node's checkpoint, and commit it."""
    files = tuple(
        File(
            path=path.relative_to(root).as_posix(),
            size=path.stat().st_size,
            mode=path.stat().st_mode & 0o7777,
        )
        for path in sorted(root.rglob("*"))
        if path.is_file()
    )
    upload_files(store, job_id, save_of(checkpoint), root, files, name, chunk_bytes=chunk_bytes, **options)
    return committed(store, job_id, checkpoint)


@pytest.fixture
def checkpoints():
    return SimpleNamespace(
        seals=make_seals,
        session=put_session,
        directory=put_directory,
        generation=made_journal.start_generation,
        id=CheckpointId,
    )


@pytest.fixture
def put_session_checkpoint(tmp_path):
    """``put_session_checkpoint(store, job_id, checkpoint, objects)``, as in a job."""
    return functools.partial(sessions.put_session_checkpoint, scratch=tmp_path / "ranks")
