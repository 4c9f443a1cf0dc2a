"""A process killed around any put of an upload, and what the next one makes of it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cloudspot
from cloudspot.errors import ObjectMissing
from cloudspot.jobstore.checkpoints import fetching, manifests
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import lineage
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, SaveId

pytestmark = pytest.mark.full


UPLOAD = """
import sys
from pathlib import Path
from cloudspot.jobstore.checkpoints import manifests
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout.records import SaveId
from cloudspot.local.filestore import FileStore
from support.records.uploads import upload_session
from support.stores.faultstore import FaultyStore, load_plan
url, root, seals = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
store = FaultyStore(FileStore(url), load_plan(root / "plan.json"), root / "state")
for rank, seal in enumerate(seals):
    upload_session(store, "x", seal, bytes([rank]) * 4000, chunk_bytes=1500)
    manifests.try_commit(store, Journal(store, "x"), "x", SaveId(1, 10, 0))
"""
C = CheckpointId(1, 10)
PATHS = (str(Path(cloudspot.__file__).parents[1]), str(Path(__file__).parents[1]))
DATAS = [b"\0" * 4000, b"\1" * 4000]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("glob", "skip"),
    [
        ("*/chunks/*", 0),
        ("*/chunks/*", 4),
        ("*/parts/0000", 0),
        ("*/parts/0001", 0),
        ("*/manifests/*", 0),
        ("*/journal/*", 0),
    ],
)
def test_an_uploader_killed_around_a_put_is_finished_by_the_next(
    store, checkpoints, tmp_path, glob, skip, when
):
    plan = {"hooks": [{"keys": glob, "when": when, "skip": skip}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    checkpoints.generation(store, 1)
    seals = [seal.decode() for seal in checkpoints.seals(C, DATAS)]
    command = [sys.executable, "-c", UPLOAD, store.url, str(tmp_path), *seals]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS)}
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL

    # Whatever stands is whole: no record without its chunks, no commit without its manifest and its parts.
    is_committed = (glob, when) == ("*/journal/*", "after")
    assert lineage(Journal(store, "x").read()) == ((C,) if is_committed else ())
    if is_committed:
        fetching.verify(store, "x", manifests.read_manifest(store, "x", C))
    for rank in (0, 1):
        try:
            store.head(keys.part("x", SaveId(1, 10, 0), rank))
        except ObjectMissing:
            continue
        assert [store.head(keys.chunk("x", SaveId(1, 10, 0), rank, number)).size for number in range(3)] == [
            1500,
            1500,
            1000,
        ]

    assert subprocess.run(command, env=environment).returncode == 0
    assert lineage(Journal(store, "x").read()) == (C,)
    manifest = manifests.read_manifest(store, "x", C)
    fetching.verify(store, "x", manifest)
    fetching.fetch(store, "x", manifest, tmp_path / "restore")
    assert [(tmp_path / f"restore/part-{rank}.bin").read_bytes() for rank in (0, 1)] == DATAS
