"""``cloudspot tensorboard``: what it brings to this computer; TensorBoard itself reads it in a full test."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from support.jobs.acting_user import wait_for

from cloudspot.jobstore.layout import keys
from cloudspot_ui.commands.tensorboard import EventCopies

EVENTS = "events.out.tfevents.1700000000.host.1.0"


@pytest.fixture
def copies(jobs, tmp_path):
    (tmp_path / "copies").mkdir()
    return EventCopies(jobs.store, tmp_path / "copies")


def copied(tmp_path):
    root = tmp_path / "copies"
    return {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_the_event_files_of_running_jobs_come_and_those_of_all_nodes_go_together(jobs, copies, tmp_path):
    going, ended = jobs.running(), jobs.reclaimed_and_finished()
    for job_id in (going, ended):
        jobs.store.put(keys.output(job_id, f"runs/rank0/{EVENTS}"), b"first")
        jobs.store.put(keys.output(job_id, f"node-1.1/runs/rank1/{EVENTS}"), b"second")
        jobs.store.put(keys.artifact(job_id, f"tensorboard/{EVENTS}"), b"ours")
        jobs.store.put(keys.output(job_id, "runs/model.pt"), b"large")
    copies.update([])
    of_job = {
        f"runs/rank0/{EVENTS}": b"first",
        f"runs/rank1/{EVENTS}": b"second",
        f"tensorboard/{EVENTS}": b"ours",
    }
    assert copied(tmp_path) == {f"{going}/{name}": data for name, data in of_job.items()}
    copies.update([ended])
    assert f"{ended}/runs/rank0/{EVENTS}" in copied(tmp_path)


def test_what_is_new_is_added_and_the_last_of_a_job_that_has_ended_comes_too(
    jobs, copies, tmp_path, monkeypatch
):
    going = jobs.running()
    key = keys.output(going, f"runs/{EVENTS}")
    jobs.store.put(key, b"first")
    copies.update([])
    asked = []
    read = jobs.store.get_range
    monkeypatch.setattr(
        type(jobs.store),
        "get_range",
        lambda self, key, start, length: asked.append(start) or read(key, start, length),
    )
    jobs.store.put(key, b"first and second")
    jobs.add_finished(going, "succeeded", minutes=104)
    for _ in range(3):
        copies.update([])
    assert copied(tmp_path) == {f"{going}/runs/{EVENTS}": b"first and second"}
    assert [start for start in asked if start] == [5]


def test_a_name_that_leads_out_is_left_out(jobs, copies, tmp_path):
    going = jobs.running()
    (jobs.store._path(f"jobs/{going}/outputs/a")).parent.mkdir(parents=True)
    jobs.store.put(keys.output(going, f"a b/\x1b[31m{EVENTS}"), b"x")
    copies.update([])
    assert copied(tmp_path) == {}


@pytest.mark.full
@pytest.mark.timeout(300)
def test_tensorboard_shows_them(jobs, tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard", exc_type=ImportError)
    going = jobs.running()
    with tensorboard.SummaryWriter(str(tmp_path / "runs")) as writer:
        writer.add_scalar("loss", 0.5, 7)
    (events,) = (tmp_path / "runs").iterdir()
    jobs.store.put(keys.output(going, f"runs/{events.name}"), events.read_bytes())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (tmp_path / "viewer.out").open("w") as output:
        viewer = subprocess.Popen(
            [sys.executable, "-m", "cloudspot", "tensorboard", "--port", str(port)],
            env={**os.environ, "CLOUDSPOT_STORE": jobs.store.url},
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def runs():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/data/runs")
            return json.loads(connection.getresponse().read())
        except OSError:
            return []

    try:
        assert wait_for("the run", runs, seconds=120) == [f"{going}/runs"]
    finally:
        viewer.send_signal(signal.SIGINT)
        assert viewer.wait(30) == 0
