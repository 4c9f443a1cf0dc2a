"""Which part of an upload costs the training beside it how much: processor, memory, disk, interpreter lock.

python benchmarks/upload_cost.py [--directory DIR] [--bytes 1e9] [--step-ms 30] [--threads 1] [--rounds 5]

A training makes steps; meanwhile another process of low priority, as the agent's uploads have it, does one
part of an upload with the bytes of a slot in shared memory, or all of it. What the steps take longer is the
cost, as a ratio to one copy of the bytes into a warm buffer in the same run. The last rows are copies of the
state next to the steps, by a thread of the training's own process, with the interpreter's lock and without.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "gigabyte"))
import train

from cloudspot.host.low_priority import lower_thread_priority
from cloudspot.jobstore.checkpoints.parts import xxh3_128
from cloudspot.local.filestore import FileStore

CHUNK = 64 << 20
USUAL_STEPS = 40


def chunks(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), CHUNK):
        with data[start : start + CHUNK] as chunk:
            yield chunk


def compute(data: memoryview, _directory: Path) -> None:
    """Use the processor alone, for as long as hashing takes, with a few bytes that stay in its cache."""
    with data[: 64 << 10] as few:
        for _ in range(len(data) // len(few)):
            xxh3_128(few)


def read(data: memoryview, _directory: Path) -> None:
    """Read the bytes once, and hash them."""
    for chunk in chunks(data):
        xxh3_128(chunk)


def copy(data: memoryview, _directory: Path) -> None:
    """Copy them to other memory, a chunk at a time."""
    buffer = bytearray(CHUNK)
    for chunk in chunks(data):
        buffer[: len(chunk)] = chunk


def put(data: memoryview, directory: Path, *, in_place: bool) -> None:
    """Put them into a store in a directory, from where they lie or copied on the way."""
    store = FileStore(directory.as_uri())
    for number, chunk in enumerate(chunks(data)):
        if in_place:
            store.put(f"chunk-{number}", chunk)
        else:
            with memoryview(bytearray(len(chunk) + 1)) as room, room[1:] as moved:
                moved[:] = chunk
                store.put(f"chunk-{number}", moved)


def upload(data: memoryview, directory: Path) -> None:
    """All of it, as the agent does."""
    read(data, directory)
    put(data, directory, in_place=True)


PARTS: dict[str, Callable[[memoryview, Path], None]] = {
    "nothing": lambda _data, _directory: None,
    "the processor alone, as long as hashing": compute,
    "hashing: memory is read": read,
    "a copy in memory": copy,
    "to the disk, from where it lies": partial(put, in_place=True),
    "to the disk, copied on the way": partial(put, in_place=False),
    "all of an upload": upload,
}


def serve(slot: str, directory: str, orders: Connection) -> None:
    """Do what is ordered, in a process of its own, and say how long it took."""
    import mmap

    lower_thread_priority()
    with Path(slot).open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    while (part := orders.recv()) is not None:
        with tempfile.TemporaryDirectory(dir=directory) as name:
            began, worked = time.perf_counter(), time.process_time()
            PARTS[part](data, Path(name))
            orders.send((time.perf_counter() - began, time.process_time() - worked))


class Training:
    """Steps of a length, and what they take while something else goes on."""

    def __init__(self, step_seconds: float) -> None:
        device = torch.device("cpu")
        self._work, self._num_passes = train.Work(device), train.passes_for(step_seconds, device)

    def steps(self, is_over: Callable[[], bool]) -> list[float]:
        """Make steps until it is over, one at least; return how long each took."""
        found = []
        while not found or not is_over():
            began = time.perf_counter()
            self._work.work(self._num_passes)
            found.append(time.perf_counter() - began)
        return found

    def lost(self, begin: Callable[[], Callable[[], bool]]) -> float:
        """Return how much longer the steps take while what ``begin`` begins goes on."""
        count = iter(range(USUAL_STEPS))
        usual = statistics.median(self.steps(lambda: next(count, None) is None))
        during = self.steps(begin())
        return sum(during) - len(during) * usual


@contextmanager
def slot_of(num_bytes: int) -> Iterator[str]:
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.NamedTemporaryFile(dir=memory) as file:
        file.write(os.urandom(1 << 20) * (num_bytes >> 20))
        file.flush()
        yield file.name


def by_thread(sources: list[Any], targets: list[Any], move: Callable[[Any, Any], None]) -> Callable[[], bool]:
    """Copy tensors in a thread; return a function that says whether that is over."""

    def run() -> None:
        for target, source in zip(targets, sources, strict=True):
            move(target, source)

    thread = threading.Thread(target=run)
    thread.start()
    return lambda: not thread.is_alive()


def move_memory(target: Any, source: Any) -> None:
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)


def move_in_python(target: Any, source: Any) -> None:
    """Keep the interpreter's lock, as a copy by Python's own means does."""
    with memoryview(target.numpy()).cast("B") as view, memoryview(source.numpy()).cast("B") as data:
        view[:] = data


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, default=None, help="where files go; default: TMPDIR")
    parser.add_argument("--bytes", type=float, default=1e9)
    parser.add_argument("--step-ms", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=1, help="the training's compute threads")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    num_bytes = max(1 << 20, int(options.bytes) >> 20 << 20)
    sources = [torch.ones(max(1, num_bytes // 4 // 64)) for _ in range(64)]
    targets = [torch.zeros_like(each) for each in sources]
    context = multiprocessing.get_context("spawn")
    lost: dict[str, list[float]] = {}
    took: dict[str, list[tuple[float, float]]] = {}
    copies = []
    with slot_of(num_bytes) as slot, tempfile.TemporaryDirectory(dir=options.directory) as directory:
        ours, theirs = context.Pipe()
        helper = context.Process(target=serve, args=(slot, directory, theirs), daemon=True)
        helper.start()
        training = Training(options.step_ms / 1e3)

        def order(part: str) -> Callable[[], bool]:
            ours.send(part)
            return ours.poll

        for _ in range(options.rounds):
            began = time.perf_counter()
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)
            copies.append(time.perf_counter() - began)
            for part in PARTS:
                lost.setdefault(part, []).append(training.lost(partial(order, part)))
                took.setdefault(part, []).append(ours.recv())
            for what, move in (("without", move_memory), ("with", move_in_python)):
                begin = partial(by_thread, sources, targets, move)
                lost.setdefault(f"a thread copies {what} the lock", []).append(training.lost(begin))
        ours.send(None)
        helper.join(10)
    copy_seconds = statistics.median(copies)
    print(
        f"{num_bytes / 1e9:.2f} GB, steps of {options.step_ms:.0f} ms, {options.threads} threads;"
        f" one copy into a warm buffer {1e3 * copy_seconds:.0f} ms"
    )
    for what, found in lost.items():
        each = statistics.median(found)
        line = f"{what:42} {1e3 * each:8.0f} ms {each / copy_seconds:7.2f} x copy"
        if what in took:
            whole, worked = (statistics.median(column) for column in zip(*took[what], strict=True))
            line += f"   took {1e3 * whole:.0f} ms, {1e3 * worked:.0f} ms of them on a processor"
        print(line)


if __name__ == "__main__":
    main()
