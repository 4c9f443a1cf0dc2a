"""``cloudspot top``: what the machines of a job do."""

import re

import msgspec
from support.records.jobclock import at

from cloudspot.jobstore.layout.records import Utilization
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.model import LogRecord

from .pagereading import Page


def test_it_shows_each_node_and_what_limits_the_training(jobs):
    job_id = jobs.running()
    assert "has measured anything yet" in jobs.run("top", job_id).stdout
    measured = Utilization(
        at=at(102), seconds=30.0, step=17, cpu=0.51, memory=0.25, gpus=(0.2, 0.3), gpu_memory=(0.5, 0.5),
        disk_read=3.0 * 2**20, step_seconds=0.125, data_wait=0.4,
    )  # fmt: skip
    jobs.add_heartbeat(job_id, 1, step=17, minutes=102, utilization=measured)
    text = jobs.run("top", job_id).stdout
    [row] = [line for line in text.splitlines() if line.startswith("1.0")]
    for figure in ("17", "0.125 s", "40%", "51%", "25%", "20% 30%", "50% 50%", "3.0 MiB/s / -", "- / -"):
        assert figure in row
    assert "limited by data loader: 40% of the time" in text
    assert re.search(r"limited by +data loader: 40%", jobs.run("show", job_id).stdout)
    found = jobs.run_json("top", job_id)
    assert found["limited_by"] == jobs.run_json("show", job_id)["limited_by"]
    assert found["nodes"][0]["gpus"] == [0.2, 0.3]


def test_the_page_draws_what_each_node_has_measured(jobs, tmp_path):
    job_id = jobs.running()
    for stream, cpu in (("1-0", 0.5), ("1-1", 0.75)):
        lines = [
            msgspec.json.encode(Utilization(at=at(101 + n / 2), seconds=30.0, step=n, cpu=cpu)).decode()
            for n in range(9)
        ]
        ObjectStoreLogSink(jobs.store, job_id).write(
            [
                LogRecord(stream=stream, seq=n, time=at(101 + n / 2), text=text, source="utilization")
                for n, text in enumerate([*lines, "no json"])
            ]
        )
    assert "cpu" not in jobs.run("logs", job_id).stdout
    assert "cpu" in jobs.run("logs", job_id, "--source", "utilization").stdout
    jobs.run("report", job_id, "-o", str(tmp_path / "a.html"))
    page = Page((tmp_path / "a.html").read_text())
    assert "CPU, %" in page.texts("figcaption")
    assert "Disk, MiB/s" not in page.texts("figcaption")
    assert [text for text in page.texts("span") if text.startswith("node 1.")] == [
        "node 1.0: 50",
        "node 1.1: 75",
    ]
