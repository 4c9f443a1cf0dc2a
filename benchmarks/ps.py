"""``cloudspot ps --all`` with many ended jobs, against a plain loop that lists and reads the same files.

python benchmarks/ps.py [--jobs 1000] [--rounds 5] [--latency 0.05]

Whole processes are timed. The second table is for a store whose every answer takes ``--latency`` seconds; its
reference makes as many concurrent requests as ``ps``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cloudspot.cli.stored.storedjobs import NUM_THREADS
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Summary

LOOP = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
root, latency, num_threads = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
def read(name):
    time.sleep(latency)
    return json.loads((root / "jobs" / name / "summary").read_bytes())
time.sleep(latency)
names = sorted(path.name for path in (root / "index").iterdir())
if num_threads == 1:
    jobs = [json.loads((root / "jobs" / name / "summary").read_bytes()) for name in names]
else:
    with ThreadPoolExecutor(num_threads) as pool:
        jobs = list(pool.map(read, names))
for job in jobs:
    print(job["job_id"], job["state"], job["step"], job["spent"])
"""
SLOW_PS = """
import sys, time
from cloudspot.local.filestore import FileStore
for name in ("get", "list_page"):
    def slow(self, *args, real=getattr(FileStore, name), **extra):
        time.sleep(float(sys.argv[1]))
        return real(self, *args, **extra)
    setattr(FileStore, name, slow)
from cloudspot.cli.main import program
program.main(sys.argv[2:])
"""


def fill(root: Path, num_jobs: int) -> None:
    now = datetime.now(timezone.utc)
    for number in range(num_jobs):
        job_id = f"digits-{number:04}"
        submitted = now - timedelta(hours=number)
        summary = Summary(
            job_id=job_id,
            provider="local",
            state="failed" if number % 7 == 0 else "succeeded",
            step=920,
            steps_total=920,
            starts=1 + number % 3,
            spent=0.01 * number,
            currency="USD",
            submitted_at=submitted,
            metrics={"loss": 1.0 / (1 + number), "accuracy": 0.9},
            detail="train.py ended with 1" if number % 7 == 0 else "",
            at=now,
            name="digits",
            code_sha256=f"{number:064x}",
            started_at=submitted,
            finished_at=submitted + timedelta(minutes=30),
        )
        for key, data in ((keys.index(job_id), b""), (keys.summary(job_id), codec.encode(summary))):
            path = root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def seconds(command: list[str], rounds: int, **environment: str) -> tuple[float, float]:
    """Return the median wall and CPU seconds of a process."""
    by_clock, of_cpu = [], []
    for _ in range(rounds + 1):
        before, started = os.times(), time.perf_counter()
        done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True)
        by_clock.append(time.perf_counter() - started)
        after = os.times()
        of_cpu.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
    assert done.stdout
    return statistics.median(by_clock[1:]), statistics.median(of_cpu[1:])  # the first run warms the caches


def report(what: str, taken: tuple[float, float], reference: tuple[float, float]) -> None:
    figures = "".join(
        f"{1000 * mine:7.0f} ms {kind} {mine / other:5.2f}x"
        for kind, mine, other in zip(("clock", "CPU"), taken, reference, strict=True)
    )
    print(f"{what:30} {figures}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency", type=float, default=0.05)
    options = parser.parse_args()
    rounds, latency = options.rounds, str(options.latency)
    ps = [sys.executable, "-m", "cloudspot", "ps", "--all"]
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "store"
        fill(root, options.jobs)
        url = root.as_uri()
        reference = seconds([sys.executable, "-c", LOOP, str(root), "0", "1"], rounds)
        print(f"{options.jobs} jobs in a file store, median of {rounds}")
        for what, command, store in (
            ("ps --all", ps, url),
            ("ps --all --json", [*ps, "--json"], url),
            ("ps --all --sort metrics.loss", [*ps, "--sort", "metrics.loss"], url),
            ("ps of an empty store", ps, f"file://{name}/empty"),
        ):
            report(what, seconds(command, rounds, CLOUDSPOT_STORE=store), reference)
        report("plain loop", reference, reference)
        slow = [sys.executable, "-c", LOOP, str(root), latency, str(NUM_THREADS)]
        reference = seconds(slow, rounds)
        taken = seconds([sys.executable, "-c", SLOW_PS, latency, *ps[3:]], rounds, CLOUDSPOT_STORE=url)
        print(f"\nthe same with {1000 * options.latency:.0f} ms for each answer")
        report("ps --all", taken, reference)
        report(f"plain loop, {NUM_THREADS} at once", reference, reference)


if __name__ == "__main__":
    main()
