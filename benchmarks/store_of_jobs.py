"""The cost of ``reconcile``, ``ps``, ``show`` and ``logs`` in a store with many ended jobs.

python benchmarks/store_of_jobs.py [--ended 10000] [--live 50] [--launches 500] [--commits 5000] [--log-gb 5]

The jobs are written to memory with the functions for real jobs, and settled by real passes; requests are
counted there. Then the same objects are put into files, where whole processes are timed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from unittest import mock

from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.records.many_jobs import ManyJobs
from support.stores.faultstore import FaultPlan, FaultyStore
from support.stores.memorystore import InMemoryStore
from support.stores.request_counts import RequestCounts

from cloudspot.cli.commands import logs
from cloudspot.cli.jobs import Job
from cloudspot.cli.main import program
from cloudspot.jobstore.layout import codec, keys
from cloudspot.model import LogRecord, ObjectMeta, ObjectPage

SEGMENT_BYTES = 1 << 20
LINE = "x" * 900
COMMAND_AND_PEAK = """
import sys
from cloudspot.cli.main import program
try:
    program.main(sys.argv[1:])
finally:
    print(open("/proc/self/status").read(), file=sys.stderr)
"""
LINES_A_SEGMENT = SEGMENT_BYTES // 1000


class LongLogStore(InMemoryStore):
    """A store whose only stream of log lines is generated when it is read."""

    def __init__(self, inner: InMemoryStore, job_id: str, num_bytes: int) -> None:
        super().__init__(inner.url)
        self._inner = inner
        self._prefix = f"{keys.logs_prefix(job_id)}1-0/2026-11-20/"
        self._num_segments = num_bytes // SEGMENT_BYTES
        now = datetime.now(timezone.utc)
        self._segments = [
            ObjectMeta(key=f"{self._prefix}{n * LINES_A_SEGMENT:012}", size=SEGMENT_BYTES, modified_at=now)
            for n in range(self._num_segments)
        ]

    def get(self, key: str) -> bytes:
        if not key.startswith(self._prefix):
            return self._inner.get(key)
        first = int(key.removeprefix(self._prefix))
        now = datetime.now(timezone.utc)
        return b"".join(
            codec.encode(LogRecord(stream="1-0", seq=seq, time=now, text=LINE, source="train")) + b"\n"
            for seq in range(first, first + LINES_A_SEGMENT)
        )

    def list_page(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ObjectPage:
        if not self._prefix.startswith(prefix) and not prefix.startswith(self._prefix):
            return self._inner.list_page(prefix, after=after, limit=limit)
        found = [one for one in self._segments if after is None or one.key > after][: limit + 1]
        more = found[limit - 1].key if len(found) > limit else None
        return ObjectPage(objects=tuple(found[:limit]), next_after=more)


def count_log_tail(store: InMemoryStore, job_id: str, num_bytes: int, directory: Path) -> None:
    counted = FaultyStore(LongLogStore(store, job_id, num_bytes), FaultPlan(), directory)
    with mock.patch.object(logs, "open_job", return_value=Job(counted, job_id)):
        result = CliRunner().invoke(program, ["logs", job_id, "--tail", "10"])
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 10
    tell(f"logs --tail 10 of {num_bytes / 1e9:g} GB", counted.calls)


def tell(what: str, calls: dict[str, int], seconds: float | None = None) -> None:
    names = ", ".join(f"{count} {name}" for name, count in sorted(calls.items()) if count)
    took = "" if seconds is None else f"{seconds:8.2f} s"
    print(f"{what:34}{sum(calls.values()):8}{took}  ({names})", flush=True)


def put_into_files(store: InMemoryStore, root: Path) -> None:
    for meta in store.list_objects(""):
        path = root / meta.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(meta.key))


def time_process(url: str, *words: str) -> None:
    """Time the command twice, the second time with warm caches."""
    for _ in range(2):
        before, began = os.times(), time.perf_counter()
        command = [sys.executable, "-c", COMMAND_AND_PEAK, *words, "--store", url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    status = "" if done.returncode == 0 else f", exit status {done.returncode}"
    peak = int(done.stderr.rpartition("VmHWM:")[2].split()[0]) / 1024
    print(f"{' '.join(words):34}{seconds:8.2f} s {cpu:8.2f} s {peak:8.0f} MiB{status}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ended", type=int, default=10_000)
    parser.add_argument("--live", type=int, default=50)
    parser.add_argument("--launches", type=int, default=500)
    parser.add_argument("--commits", type=int, default=5000)
    parser.add_argument("--log-gb", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        store = InMemoryStore()
        town = ManyJobs(store, directory / "work")
        began = time.perf_counter()
        for _ in range(options.ended):
            town.add_ended()
        town.settle()
        # Last, because their nodes have no heartbeats: after some minutes, a pass would consider them lost.
        long_job = town.add_long(options.launches, options.commits)
        live = [town.add_live() for _ in range(options.live - 1)]
        town.run_pass()  # copies their settled launches, like each earlier pass of a real job
        print(
            f"{options.ended} ended and {options.live} live jobs, one of {options.launches} launches and ",
            end="",
        )
        print(f"{options.commits} commits; written and settled in {time.perf_counter() - began:.0f} s\n")
        counts = RequestCounts(town, directory / "faults")
        print(f"{'':34}requests")
        for what, count in (
            (f"reconcile, {len(live) + 1} live jobs", counts.of_pass),
            ("ps", lambda: counts.of_ps()[0]),
            (f"show, {options.launches} launches", lambda: counts.of_show(long_job)[0]),
        ):
            began = time.perf_counter()
            calls = count()
            tell(what, calls, time.perf_counter() - began)
        count_log_tail(store, long_job, int(options.log_gb * 1e9), directory / "logfaults")
        put_into_files(store, directory / "files")
        os.environ["CLOUDSPOT_HOME"] = str(directory / "home")
        print(f"\n{'in files, as processes':34}   wall time  processor    memory")
        for words in (("ps",), ("show", long_job), ("ps", "--all")):
            time_process((directory / "files").as_uri(), *words)


if __name__ == "__main__":
    main()
