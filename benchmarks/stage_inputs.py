"""Staging of small and large inputs against a plain parallel copy of the same files, in the same run.

python benchmarks/stage_inputs.py [--directory DIR] [--small 500] [--large 3] [--large-mib 32] [--rounds 3]

The source is a directory (file://), so that only the disk and this program are measured, and no network. Each
round stages into an empty cache and copies into an empty directory with the same number of threads, in turns.
The copy is made without and with a sync of each file, because staging syncs them. Then the input is staged
again, which fetches nothing. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from cloudspot.jobfile.data import DataSpec
from cloudspot.jobstore.inputs.input_cache import NUM_THREADS, InputCache, Staging
from cloudspot.jobstore.inputs.inputs import open_input

SMALL_BYTES = 4096


@contextmanager
def no_progress(_total: int, _here: int) -> Iterator[Callable[[int], None]]:
    yield lambda _count: None


def stage(source: Path, cache: Path) -> int:
    staging = Staging(lambda request: request(), time.sleep, no_progress)
    return InputCache(cache).stage(open_input(DataSpec(url=f"file://{source}/")), staging).fetched_bytes


def copy(source: Path, target: Path, *, synced: bool) -> None:
    def copy_one(path: Path) -> None:
        to = target / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
        if synced:
            with to.open("rb+") as file:
                os.fsync(file.fileno())

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        list(pool.map(copy_one, (path for path in source.rglob("*") if path.is_file())))


def seconds_of(call: Callable[[], object]) -> float:
    os.sync()  # finish the writes of earlier rounds
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(name: str, source: Path, root: Path, rounds: int) -> None:
    size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    found: dict[str, list[float]] = {"staged": [], "copied": [], "copied and synced": [], "staged again": []}
    for number in range(rounds):
        cache, plain, synced = (root / f"{name}-{kind}-{number}" for kind in ("cache", "plain", "synced"))
        found["staged"].append(seconds_of(lambda cache=cache: stage(source, cache)))
        found["copied"].append(seconds_of(lambda plain=plain: copy(source, plain, synced=False)))
        found["copied and synced"].append(seconds_of(lambda synced=synced: copy(source, synced, synced=True)))
        found["staged again"].append(seconds_of(lambda cache=cache: stage(source, cache)))
        assert stage(source, cache) == 0, "a second staging fetched something"
        for path in (cache, plain, synced):
            shutil.rmtree(path)
    took = {what: statistics.median(seconds) for what, seconds in found.items()}
    print(f"{name}: {size / 2**20:.1f} MiB")
    for what, seconds in took.items():
        ratios = [one / other for one, other in zip(found["staged"], found[what], strict=True)]
        times = f"; staging takes {statistics.median(ratios):.2f} x as long"
        ratio = "" if what.startswith("staged") else times
        print(f"  {what:18} {seconds:8.3f} s{ratio}")


def main() -> None:
    """Make the files, measure, and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--directory", type=Path, help="the directory for all files (default: a temporary one)"
    )
    parser.add_argument("--small", type=int, default=500, help=f"files of {SMALL_BYTES} bytes")
    parser.add_argument("--large", type=int, default=3, help="the number of large files")
    parser.add_argument("--large-mib", type=int, default=32, help="the size of each large file in MiB")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        root = Path(name)
        for kind, count, size in (
            ("small", given.small, SMALL_BYTES),
            ("large", given.large, given.large_mib << 20),
        ):
            source = root / kind
            for number in range(count):
                path = source / f"{number % 16:02}" / f"{number:06}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(os.urandom(size))
            measure(kind, source, root, given.rounds)


if __name__ == "__main__":
    main()
