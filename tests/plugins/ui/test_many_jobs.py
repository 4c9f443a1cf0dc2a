"""The local site of a store with 1,000 jobs, one of which has a million lines of log: processor time and memory."""

import http.client
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from support.jobs.acting_user import wait_for
from support.records.jobclock import at

from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.model import LogRecord
from cloudspot.story.report import summarise

pytestmark = pytest.mark.full

NUM_JOBS, NUM_LINES, BATCH = 1_000, 1_000_000, 20_000
MOST_SECONDS, MOST_MIB = 1.0, 150


def used_seconds(pid):
    """Return the processor time that a process has used: what a page takes on a computer that does nothing else."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def most_mib(pid):
    """Return the most memory that it has had."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line) / 1024


@pytest.fixture
def town(jobs):
    """The store: its jobs have ended, but for the one with the log, which is returned."""
    job_id = jobs.running()
    sink = ObjectStoreLogSink(jobs.store, job_id)
    for first in range(0, NUM_LINES, BATCH):
        sink.write(
            [
                LogRecord(
                    stream="1-0",
                    seq=number,
                    time=at(102) + timedelta(milliseconds=number),
                    text=f"step {number} loss 0.25",
                    source="train",
                )
                for number in range(first, first + BATCH)
            ]
        )
    ended = jobs.reclaimed_and_finished()
    summary = summarise(HistoryReader(jobs.store, ended).read(), at(13))
    jobs.put(keys.summary(ended), summary)
    for number in range(NUM_JOBS - 2):
        other = f"digits-{number:04}"
        jobs.store.put(keys.index(other), jobs.store.get(keys.index(ended)))
        jobs.store.put(keys.summary(other), codec.encode(msgspec.structs.replace(summary, job_id=other)))
    return job_id


@pytest.mark.timeout(900)
def test_the_first_pages_take_under_a_second_and_150_mib(jobs, town, tmp_path):
    told = tmp_path / "site.out"
    with told.open("w") as output:
        site = subprocess.Popen(
            [sys.executable, "-m", "cloudspot", "ui"],
            env={**os.environ, "CLOUDSPOT_STORE": jobs.store.url},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        found = wait_for("the site", lambda: re.search(r"open http://([^/]+)(/\S+)", told.read_text()))
        cookie = ""

        def get(path):
            nonlocal cookie
            before = used_seconds(site.pid)
            connection = http.client.HTTPConnection(found[1], timeout=300)
            connection.request("GET", path, headers={"Cookie": cookie})
            answer = connection.getresponse()
            cookie = (answer.headers["Set-Cookie"] or cookie).partition(";")[0]
            text = answer.read().decode()
            connection.close()
            return answer.status, text, used_seconds(site.pid) - before

        assert get(found[2])[0] == 303
        pages = {path: get(path) for path in ("/", f"/jobs/{town}")}
        for path, (status, text, seconds) in pages.items():
            print(f"{path}: {seconds:.2f} s of processor time")
            assert (status, town in text) == (200, True)
            assert seconds < MOST_SECONDS, path
        assert "200" in pages["/"][1]
        print(f"{most_mib(site.pid):.0f} MiB")
        assert most_mib(site.pid) < MOST_MIB
    finally:
        site.terminate()
        site.wait(20)
