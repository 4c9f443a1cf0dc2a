"""All steps of a checkpoint in a real job: stall, time lost, whole save, notice to commit, restore, agent.

python benchmarks/checkpoint_path.py [--directory DIR] [--bytes 1e9] [--seconds 30] [--frozen 0.95] [--gpu]
                                     [--step-ms 3 30 300] [--threads 1 2] [--busy] [--alone]

Runs the job in benchmarks/gigabyte on the local provider: steps beside a large state, a save every 5 s;
reclaims its machine with notice; lets it resume. Each figure stands beside a reference of the same run: one
copy of the state into a warm buffer, the same training with torch.save, with torch.distributed.checkpoint
and, where it is installed, torchsnapshot, a plain copy of the same bytes to the same file system, and a plain
read. With several lengths of a step or numbers of threads, it does so for each pair of them. The first save,
a trial, is left out. What a save costs is what it adds to the steps from its boundary to its commit: until it
is sealed, its copy; after that, its upload.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cloudspot.errors import JobNotFound
from cloudspot.host.piecewise_writes import write_at
from cloudspot.host.process_marks import marked_processes
from cloudspot.jobstore.checkpoints.chunks import stored_chunks
from cloudspot.jobstore.checkpoints.fetching import fetch
from cloudspot.jobstore.checkpoints.manifests import read_manifest
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.layout.keys import job_prefix
from cloudspot.jobstore.layout.records import Commit
from cloudspot.local.filestore import FileStore
from cloudspot.local.machines import MachineDirectory
from cloudspot.local.processes import MARK

JOB = Path(__file__).parent / "gigabyte"
NAME = "gigabyte"
CHUNK = 64 << 20
OTHERS = ("torch.save", "dcp-thread", "dcp-process", "torchsnapshot")
NAMES = (
    *("GIGABYTE_BYTES", "GIGABYTE_FROZEN", "GIGABYTE_SECONDS", "GIGABYTE_OUT", "GIGABYTE_PASSES"),
    *("GIGABYTE_THREADS", "CUDA_VISIBLE_DEVICES"),
)
PASSES = """
import sys, torch, train
torch.set_num_threads(train.THREADS)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print(train.passes_for(float(sys.argv[1]) / 1e3, device))
"""


def wait_for(what: str, condition: Callable[[], Any], *, seconds: float = 180.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            sys.exit(f"{what}: it did not come")
        time.sleep(0.05)
    return value


def read_json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


# --- training lost --------------------------------------------------------------------------------


class UsualSteps:
    """The steps of a training without those during a save or right next to one."""

    def __init__(self, began: Sequence[float], windows: Sequence[tuple[float, float]]) -> None:
        self.steps = [(before, after - before) for before, after in itertools.pairwise(began)]
        self._durations = sorted(
            took for at, took in self.steps if not any(low - 0.5 < at < high + 0.5 for low, high in windows)
        )

    def duration(self, num_steps: int) -> float:
        """Return the seconds that so many steps take."""
        return num_steps * statistics.mean(self._durations)

    def longest(self, num_steps: int) -> float:
        """Return the median duration of the longest of so many steps, in seconds.

        One step is shorter than that with the probability 0.5 ** (1 / num_steps), and all are with 0.5.
        """
        return self._durations[int(len(self._durations) * 0.5 ** (1 / num_steps))]


def lost(began: Sequence[float], windows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the medians of a save's stall and of the training time lost, in seconds.

    The stall is the longest step during a save, less the longest of as many steps without a save.
    """
    usual = UsualSteps(began, windows)
    stalls, sums = [], []
    for low, high in windows:
        # The step in which the state was copied began before the window.
        inside = [took for at, took in usual.steps if low - 0.1 <= at + took and at <= high + 0.2]
        stalls.append(max(inside) - usual.longest(len(inside)))
        sums.append(sum(inside) - usual.duration(len(inside)))
    return statistics.median(stalls), statistics.median(sums)


def lost_to_uploads(began: Sequence[float], uploads: Sequence[tuple[float, float]]) -> float:
    """Return the training time lost while saves are uploaded, in seconds: a median."""
    usual = UsualSteps(began, uploads)
    sums = []
    for low, high in uploads:
        inside = [took for at, took in usual.steps if low <= at <= high]
        sums.append(sum(inside) - usual.duration(len(inside)))
    return statistics.median(sums)


def by_others(how: str, directory: Path, environment: dict[str, str]) -> tuple[float, float, float]:
    """Return another method's stall, training time lost and whole save, in seconds; NaN if no save ended."""
    with tempfile.TemporaryDirectory(dir=directory) as out:
        words = [sys.executable, str(JOB / "train.py"), "--how", how, "--out", out]
        subprocess.run(
            words, env=environment, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        began = json.loads(Path(out, "steps.json").read_text())
        saves = json.loads(Path(out, "saves.json").read_text())
    windows = [(save["began"], save["ended"]) for save in saves if save["ended"] < began[-1]]
    if not windows:
        return (math.nan,) * 3
    return (*lost(began, windows), statistics.median(high - low for low, high in windows))


# --- references -----------------------------------------------------------------------------------


def memcpy_seconds(num_bytes: int, num_threads: int, *, is_on_gpu: bool) -> float:
    """Copy the state once: by as many threads as the training has, or from the GPU into pinned memory."""
    torch.set_num_threads(num_threads)
    source = torch.ones(num_bytes // 4, device="cuda" if is_on_gpu else "cpu")
    target = torch.zeros(num_bytes // 4, pin_memory=is_on_gpu)
    target.copy_(source)
    found = []
    for _ in range(7):
        started = time.perf_counter()
        target.copy_(source)
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def write_seconds(source: Path, directory: Path, *, sync: bool) -> float:
    """Time a copy of the file in chunks with four threads, each chunk to a separate file."""
    size = source.stat().st_size
    found = []
    for number in range(3):
        with tempfile.TemporaryDirectory(dir=directory) as name:

            def copy(start: int, target: Path = Path(name)) -> None:
                with source.open("rb") as file, (target / str(start)).open("wb") as out:
                    file.seek(start)
                    # In pieces that the kernel copies quickly, like cloudspot's own writes.
                    write_at(out.fileno(), file.read(min(CHUNK, size - start)), 0)
                    if sync:
                        os.fsync(out.fileno())

            started = time.perf_counter()
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(copy, range(0, size, CHUNK)))
            found.append(time.perf_counter() - started)
        del number
    return statistics.median(found)


def read_seconds(paths: Sequence[Path], directory: Path) -> tuple[float, float]:
    """Time reading the files with four threads, into memory and into files of the same directory."""
    into_memory, into_files = [], []
    for _ in range(3):
        started = time.perf_counter()
        with ThreadPoolExecutor(4) as pool:
            for _data in pool.map(Path.read_bytes, paths):
                pass
        into_memory.append(time.perf_counter() - started)
        with tempfile.TemporaryDirectory(dir=directory) as name:

            def copy(path: Path, number: int, target: Path = Path(name)) -> None:
                with (target / str(number)).open("wb") as out:
                    write_at(out.fileno(), path.read_bytes(), 0)

            started = time.perf_counter()
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(copy, paths, range(len(paths))))
            into_files.append(time.perf_counter() - started)
    return statistics.median(into_memory), statistics.median(into_files)


# --- the job --------------------------------------------------------------------------------------


class Job:
    """The running job, its store and its agent."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.environment = {**environment, "CLOUDSPOT_LOCAL_HOME": str(home)}
        self.environment.pop("CLOUDSPOT_STORE", None)
        self.home = home
        self.store = FileStore(f"file://{home}/store")
        self.reader = HistoryReader(self.store, NAME)
        words = ["run", str(JOB / "job.toml"), "--name", NAME]
        for name in NAMES:
            words += ["--set", f'run.env.{name}="{environment[name]}"']
        self.process = self.start(*words)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "cloudspot", *words]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def commits(self) -> tuple[Commit, ...]:
        with suppress(JobNotFound):
            return self.reader.read().commits
        return ()

    def show(self) -> Any:
        """Return what ``cloudspot show --json`` prints."""
        command = [sys.executable, "-m", "cloudspot", "show", NAME, "--json"]
        return json.loads(
            subprocess.run(command, env=self.environment, check=True, capture_output=True).stdout
        )

    def sent(self) -> dict[str, int]:
        """Return the bytes that each save has put into the store so far, by the save's name."""
        saves = (self.home / "store" / job_prefix(NAME) / "checkpoints").glob("*")
        return {
            save.name: sum(path.stat().st_size for path in save.rglob("*") if path.is_file())
            for save in saves
        }

    def agent(self) -> int:
        for machine in (self.home / "machines").iterdir():
            for pid in marked_processes(MARK, MachineDirectory(machine).mark):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"cloudspot.agent" in words:
                    return pid
        sys.exit("there is no agent")

    def trainer(self) -> int:
        """Return the process id of the newest generation's rank."""
        paths = (self.home / "machines").rglob("worker-0.pid")
        return int(max(paths, key=lambda path: path.stat().st_mtime).read_text())


def fetch_seconds(job: Job, directory: Path) -> float:
    """Return the median time to restore the newest checkpoint to the directory."""
    newest = job.reader.read().head
    assert newest is not None
    manifest = read_manifest(job.store, NAME, newest)
    found = []
    for _ in range(5):
        shutil.rmtree(directory, ignore_errors=True)
        started = time.perf_counter()
        fetch(job.store, NAME, manifest, directory)
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def cost_of(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of a process so far, and its own memory now, in MB, without slots."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks, int(status["RssAnon"].split()[0]) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--directory", type=Path, default=None, help="the directory for all files (default: TMPDIR)"
    )
    parser.add_argument("--bytes", type=float, default=1e9)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument(
        "--frozen", type=float, default=0.0, help="the share of the state that does not change"
    )
    parser.add_argument("--gpu", action="store_true", help="keep the state on a GPU")
    parser.add_argument("--step-ms", type=float, nargs="+", default=[3.0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="the training's compute threads")
    parser.add_argument("--busy", action="store_true", help="keep one core busy with something else")
    parser.add_argument("--alone", action="store_true", help="leave out the other ways to save")
    options = parser.parse_args()
    others = () if options.alone else OTHERS
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if options.busy else None
    try:
        for num_threads, step_ms in itertools.product(options.threads, options.step_ms):
            with tempfile.TemporaryDirectory(dir=options.directory) as name:
                case = Case(num_threads, step_ms, options.bytes, options.frozen, is_on_gpu=options.gpu)
                print(
                    f"steps of {step_ms:.0f} ms, {num_threads} threads{', one core busy' * options.busy}",
                    flush=True,
                )
                measure(Path(name), case, options.seconds, others)
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()


@dataclass(frozen=True)
class Case:
    """What the training is like."""

    num_threads: int
    step_ms: float
    num_bytes: float
    frozen: float
    is_on_gpu: bool


def passes_of(case: Case, environment: dict[str, str]) -> str:
    """Return how many passes make a step as long as the case has it, without a save."""
    words = [sys.executable, "-c", PASSES, str(case.step_ms)]
    done = subprocess.run(
        words, env={**environment, "PYTHONPATH": str(JOB)}, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def measure(directory: Path, case: Case, seconds: float, others: Sequence[str]) -> None:
    num_bytes, frozen = case.num_bytes, case.frozen
    out = directory / "out"
    out.mkdir()
    environment = {
        **os.environ,
        "GIGABYTE_BYTES": str(num_bytes),
        "GIGABYTE_FROZEN": str(frozen),
        "GIGABYTE_SECONDS": str(seconds),
        "GIGABYTE_OUT": str(out),
        "OMP_NUM_THREADS": str(case.num_threads),
        "GIGABYTE_THREADS": str(case.num_threads),
        "CUDA_VISIBLE_DEVICES": "0" if case.is_on_gpu else "",
    }
    environment["GIGABYTE_PASSES"] = passes_of(case, environment)
    floor = memcpy_seconds(int(num_bytes), case.num_threads, is_on_gpu=case.is_on_gpu)
    torches = {
        how: by_others(how, directory, environment)
        for how in others
        if how != "torchsnapshot" or importlib.util.find_spec(how)
    }

    environment["GIGABYTE_SECONDS"] = "100000"
    job = Job(directory / "home", environment)
    try:
        wait_for("the first commit", job.commits)
        pid = job.agent()
        trainer = job.trainer()
        clock, (cpu, _) = time.monotonic(), cost_of(pid)
        memory, of_trainer, sent = 0.0, 0.0, job.sent()
        while time.monotonic() < clock + seconds:
            memory, of_trainer = max(memory, cost_of(pid)[1]), max(of_trainer, cost_of(trainer)[1])
            with suppress(FileNotFoundError):  # an old one is being deleted
                sent |= {name: max(size, sent.get(name, 0)) for name, size in job.sent().items()}
            time.sleep(0.2)
        told = job.show()["saves"]["text"]
        share = (cost_of(pid)[0] - cpu) / (time.monotonic() - clock)
        asked = time.time()
        job.start("preempt", NAME, "--notice", "60s").wait(60)
        answered = time.time()
        second = wait_for("the next generation", lambda: job.reader.read().generations[1:2])[0]
        assert second.restore_from is not None
        drained = job.reader.read().find_commit(second.restore_from)
        assert drained is not None
        first = wait_for("the steps", lambda: read_json(out / "steps-1.json"))
        load = wait_for("the load", lambda: read_json(out / "load.json"))
        history = job.reader.read()
        notice = next(each for launch in history.launches for each in launch.notices.values())
        monotonic = time.monotonic() - time.time()
        saves = [
            # The step before which it was, and when it was sealed and committed.
            (each.step, each.sealed_at.timestamp() + monotonic, each.at.timestamp() + monotonic)
            for each in history.commits
            if each.generation == 1 and each.id != drained.id
        ][1:]
        saves = [
            (first[step], sealed, committed) for step, sealed, committed in saves if committed < first[-1]
        ]
        if not saves:
            sys.exit("no save was committed after the first one: train for longer (--seconds)")
        stall, training = lost(first, [(began, committed) for began, _, committed in saves])
        to_uploads = lost_to_uploads(first, [(sealed, committed) for _, sealed, committed in saves])
        whole = statistics.median(committed - began for began, _, committed in saves) + stall
    finally:
        job.start("stop", NAME, "--wait").wait(120)
        job.process.wait(120)
    restored = directory / "restored"
    fetched = fetch_seconds(job, restored)
    source = restored / "part-0.bin"
    synced, plain = (write_seconds(source, directory, sync=sync) for sync in (True, False))
    newest = job.reader.read().head
    assert newest is not None
    chunks = stored_chunks(NAME, read_manifest(job.store, NAME, newest))
    read, copied = read_seconds([directory / "home" / "store" / one.key for one in chunks], directory)

    def row(what: str, took: float, than: float, of: str) -> None:
        print(f"{what:44} {1e3 * took:8.0f} ms {took / than:7.2f} x {of}")

    print(f"state {drained.size / 1e9:.2f} GB; one copy into a warm buffer {1e3 * floor:.0f} ms")
    row("stall of a save", stall, floor, "copy")
    row("training time lost by a save", training, floor, "copy")
    row("  of it to its copy, until it is sealed", training - to_uploads, floor, "copy")
    row("  of it to its upload", to_uploads, floor, "copy")
    print(f"  show says: {told}")
    row("whole save, boundary to commit", whole, floor, "copy")
    for how, (their_stall, their_lost, their_whole) in torches.items():
        row(f"{how}: stall", their_stall, floor, "copy")
        row(f"{how}: training time lost", their_lost, floor, "copy")
        row(f"{how}: whole save", their_whole, floor, "copy")
    print(f"plain copy of the bytes to files: {1e3 * plain:.0f} ms, with fsync {1e3 * synced:.0f} ms")
    row("whole save", whole, synced, "plain copy with fsync")
    to_commit = drained.at.timestamp() - notice.at.timestamp()
    row("notice seen by the agent to commit", to_commit, synced, "plain copy with fsync")
    row("reclaim asked for to commit", drained.at.timestamp() - asked, synced, "plain copy with fsync")
    print(f"  (the command itself took {answered - asked:.2f} s)")
    print(f"plain read of the chunks: into memory {1e3 * read:.0f} ms, on to files {1e3 * copied:.0f} ms")
    row("restore to disk, every chunk verified", fetched, copied, "plain read on to files")
    row("load into the training", load, floor, "copy")
    names = sorted(sent)[1:-1]  # the first sends everything, and the last may be under way
    least, most = min(sent[name] for name in names), max(sent[name] for name in names)
    changed = drained.size * (1 - frozen)
    print(
        f"a save sends {least / 1e6:.1f} to {most / 1e6:.1f} MB ({len(names)} saves), "
        f"{most / changed:.2f} x the {changed / 1e6:.1f} MB that change"
    )
    print(f"agent: {100 * share:.1f} % of one core with a save every 5 s, {memory:.0f} MB of its own memory")
    print(f"trainer: {of_trainer:.0f} MB of its own memory, with the state of {drained.size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
