"""A job that trains from inputs of [data] and loses its machine: the next one has them too, fetched or not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.jobs.acting_user import JOBS, User
from support.stores.directorystore import directory_store

pytestmark = pytest.mark.full


SCRIPT = """
import os
import time
from pathlib import Path

import torch
from uncompiled import leave_compiler_out

import cloudspot.train as spot

leave_compiler_out()
numbers = Path(os.environ["CLOUDSPOT_DATA_NUMBERS"])
assert numbers == Path("data/numbers").absolute()
rows = [[float(word) for word in path.read_text().split()] for path in sorted(numbers.rglob("*.txt"))]
data = torch.tensor(rows)
factor = float(Path("in/factor").read_text())
assert os.environ["CLOUDSPOT_DATA_FACTOR"] == str(Path("in/factor").absolute())
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=8)
run = spot.session(model=model, optimizer=optimizer)
for (batch,) in run.batches(loader, epochs=12):
    loss = ((model(batch) - factor * batch.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.05)
print("rows", len(rows))
"""
JOB = """
name = "inputs"

[run]
entrypoint = "train.py"
setup = "echo set up"
env = {{ OMP_NUM_THREADS = "1" }}

[data.numbers]
url = "{url}/numbers/"

[data.factor]
url = "{url}/factor"
path = "in/factor"

[checkpoint]
interval = "1s"

[[providers.local.reclaims]]
after_steps = 20
notice = "6s"
"""


@pytest.mark.parametrize("is_shared", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_reclaimed_job_trains_on_from_its_inputs(user: User, tmp_path: Path, is_shared: bool) -> None:
    """With a cache that its machines share, the second one fetches nothing; else each has its own."""
    store = directory_store(tmp_path / "data")
    for number in range(64):
        store.put(f"numbers/{number % 4}/{number:02}.txt", b"1 2 3 %d" % number)
    store.put("factor", b"0.5")
    job = tmp_path / "job"
    job.mkdir()
    (job / "job.toml").write_text(JOB.format(url=store.url))
    (job / "train.py").write_text(SCRIPT)
    shutil.copy(JOBS / "tiny" / "uncompiled.py", job)
    cache = ("--set", f"providers.local.data_cache={tmp_path}/cache") if is_shared else ()
    done = user.cloudspot("run", "--provider", "local", str(job / "job.toml"), "--name", "inputs", *cache)
    assert f"data.numbers: {store.url}/numbers/: 64 file(s), " in done.stdout
    shown = user.show("inputs")
    assert (shown["state"], shown["steps_lost"]) == ("succeeded", 0)
    assert [one["nodes"] for one in shown["generations"]] == [["1.0"], ["2.0"]]
    size = sum(meta.size for meta in store.list_objects("numbers/"))
    told = [[(one["name"], one["files"], one["bytes"]) for one in node["data"]] for node in shown["nodes"]]
    assert told == [[("numbers", 64, size), ("factor", 1, 3)]] * 2
    fetched = [[one["fetched_bytes"] for one in node["data"]] for node in shown["nodes"]]
    assert fetched == [[size, 3], [0, 0] if is_shared else [size, 3]]
    assert shown["warnings"] == []
    text = user.cloudspot("show", "inputs").stdout
    assert "node 2.0: numbers, 64 files" in text
    assert ("fetched nothing in" in text) is is_shared
