"""A checkpoint that is brought to a new job: the same state, under the name of generation 0."""

import json

import pytest
import torch
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import CorruptData
from cloudspot.jobstore.checkpoints.fetching import fetch
from cloudspot.jobstore.checkpoints.manifests import read_manifest
from cloudspot.jobstore.checkpoints.retention import collect
from cloudspot.jobstore.jobs.forking import bring_checkpoint
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import lineage
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, Origin, SaveId

SOURCE = CheckpointId(3, 226)
BROUGHT = CheckpointId(0, 226)


class Holder:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


@pytest.fixture
def store(put_session_checkpoint):
    store = InMemoryStore()
    state = {"weights": torch.arange(3000.0), "best": float("inf"), "rate": 0.1 + 0.2, "big": 2**80}
    put_session_checkpoint(store, "old", SOURCE, {"one": Holder(state)})
    return store


def bring(store, *, progress=lambda count: None):
    origin = Origin(job_id="old", checkpoint=SOURCE)
    return bring_checkpoint(store, origin, read_manifest(store, "old", SOURCE), "new", progress=progress)


def restored(store, job_id, checkpoint, directory):
    fetch(store, job_id, read_manifest(store, job_id, checkpoint), directory)
    manifest = json.loads((directory / "restore.json").read_text())
    data = [(directory / part["file"]).read_bytes() for part in manifest["parts"]]
    for part in manifest["parts"]:
        assert part["seal"].pop("generation") == checkpoint.generation
    assert manifest.pop("generation") == checkpoint.generation
    return manifest, data


def test_the_state_is_the_same_to_the_last_bit(store, tmp_path):
    counts = []
    assert bring(store, progress=counts.append) == BROUGHT
    assert restored(store, "new", BROUGHT, tmp_path / "new") == restored(
        store, "old", SOURCE, tmp_path / "old"
    )
    assert sum(counts) == read_manifest(store, "old", SOURCE).size


def test_the_new_job_resumes_from_it_until_it_has_its_own(store, checkpoints, put_session_checkpoint):
    bring(store)
    assert lineage(Journal(store, "new").read()) == (BROUGHT,)
    checkpoints.generation(store, 1, BROUGHT, job_id="new")
    assert lineage(Journal(store, "new").read()) == (BROUGHT,)
    own = CheckpointId(1, 300)
    put_session_checkpoint(store, "new", own, {"one": Holder({"weights": torch.zeros(10)})})
    assert lineage(Journal(store, "new").read()) == (own, BROUGHT)


def test_it_is_deleted_like_any_other_when_newer_ones_are_kept(store, checkpoints, put_session_checkpoint):
    bring(store)
    checkpoints.generation(store, 1, BROUGHT, job_id="new")
    for one in (CheckpointId(1, 300), CheckpointId(1, 400)):
        put_session_checkpoint(store, "new", one, {"one": Holder({"weights": torch.zeros(10)})})
    checkpoints.generation(store, 2, CheckpointId(1, 400), job_id="new")
    assert collect(store, Journal(store, "new"), "new", keep=2) == (BROUGHT,)
    assert list(store.list_objects(keys.save_prefix("new", SaveId(0, 226, 0)))) == []


def test_a_damaged_chunk_is_found_and_nothing_is_committed(store):
    key = keys.chunk("old", SaveId(3, 226, 0), 0, 0)
    store.put(key, b"x" + store.get(key)[1:])
    with pytest.raises(CorruptData, match="does not match its checksum"):
        bring(store)
    assert Journal(store, "new").read() == ()
