"""The savings and the cost of compressed checkpoints, on a state trained by AdamW.

python benchmarks/compression.py [--width 2048] [--steps 30] [--rounds 3] [--directory DIR]

Train a small network, then compress and restore each kind of state in one thread, and upload and fetch all of
it, uncompressed and compressed, with a store on the disk.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import torch
import zstandard

from cloudspot.jobstore.checkpoints.compression import Compression, compress, decompress
from cloudspot.jobstore.checkpoints.fetching import fetch
from cloudspot.jobstore.checkpoints.manifests import write_manifest
from cloudspot.jobstore.checkpoints.parts import CHUNK_BYTES, Upload, directory_part, lend_files
from cloudspot.jobstore.layout.records import File, SaveId
from cloudspot.local.filestore import FileStore


def trained(width: int, num_steps: int) -> dict[str, bytes]:
    """Return the bytes of each kind of state, mostly float32 numbers."""
    torch.manual_seed(0)
    layers = [one for _ in range(4) for one in (torch.nn.Linear(width, width), torch.nn.GELU())]
    model, teacher = torch.nn.Sequential(*layers), torch.nn.Linear(width, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(num_steps):
        inputs = torch.randn(64, width)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), teacher(inputs).detach()).backward()
        optimizer.step()
    weights = [parameter.detach() for parameter in model.parameters()]
    states = optimizer.state.values()
    kinds = {
        "bfloat16 weights": [one.bfloat16() for one in weights],
        "float32 weights": weights,
        "exp_avg": [one["exp_avg"] for one in states],
        "exp_avg_sq": [one["exp_avg_sq"] for one in states],
    }
    return {
        kind: b"".join(one.contiguous().view(torch.uint8).numpy().tobytes() for one in tensors)
        for kind, tensors in kinds.items()
    }


def took(action: Callable[[int], object], rounds: int) -> tuple[float, float]:
    """Return the median wall and CPU seconds of an action, which gets the number of the round."""
    walls, cpus = [], []
    for number in range(rounds):
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        action(number)
        walls.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(walls), statistics.median(cpus)


def in_one_thread(kind: str, data: bytes, rounds: int) -> None:
    chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    made = [compress(chunk) for chunk in chunks]
    pairs = [(one, chunk) for one, chunk in zip(made, chunks, strict=True) if one is not None]
    saved = sum(len(chunk) - len(one) for one, chunk in pairs)
    there, _ = took(lambda _: [compress(chunk) for chunk in chunks], rounds)
    back, _ = took(lambda _: [list(decompress(iter([one]), len(chunk), "")) for one, chunk in pairs], rounds)
    alone = sum(len(zstandard.ZstdCompressor(level=1).compress(chunk)) for chunk in chunks) / len(data)
    speeds = f"compress {len(data) / there / 1e9:.2f} GB/s, restore {len(data) / back / 1e9:.2f} GB/s"
    ratios = f"ratio {1 - saved / len(data):.2f} (zstd alone {alone:.2f})"
    print(f"{kind:17} {len(data) / 1e6:5.0f} MB, {ratios}, {speeds}")


def with_a_store(state: bytes, scratch: Path, compression: Compression | None, rounds: int) -> None:
    root = scratch / "state"
    root.mkdir(parents=True)
    (root / "state.bin").write_bytes(state)
    store = FileStore(f"file://{scratch}/store")
    files = [File(path="state.bin", size=len(state), mode=0o600)]

    def save(number: int) -> None:
        now = datetime.now(timezone.utc)
        part = directory_part(SaveId(1, number, 0), files, directory="state", sealed_at=now)
        upload = Upload(store, "job", part, compression=compression)
        upload.run(partial(lend_files, root, files), in_background=True)

    saved = took(save, rounds)
    manifest = write_manifest(store, "job", SaveId(1, 0, 0))
    assert manifest is not None
    restored = took(lambda number: fetch(store, "job", manifest, scratch / f"{number}"), rounds)
    print(
        f"{'compressed' if compression else 'uncompressed':17} {manifest.sent / 1e6:5.0f} MB sent, ", end=""
    )
    print(f"save {saved[0]:.2f} s ({saved[1]:.2f} s of CPU), ", end="")
    print(f"restore {restored[0]:.2f} s ({restored[1]:.2f} s of CPU)")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="a directory on the disk to measure")
    options = parser.parse_args()
    kinds = trained(options.width, options.steps)
    state = b"".join(kinds.values())
    for kind, data in {**kinds, "all": state}.items():
        in_one_thread(kind, data, options.rounds)
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        for name, compression in (("plain", None), ("compressed", Compression())):
            with_a_store(state, Path(scratch, name), compression, options.rounds)


if __name__ == "__main__":
    main()
