"""Steps beside a large state; notes when each step began. Saves by cloudspot or by another way."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

NUM_BYTES = float(os.environ.get("GIGABYTE_BYTES", "1e9"))
FROZEN = float(os.environ.get("GIGABYTE_FROZEN", "0"))
NUM_TENSORS = 438
SECONDS = float(os.environ.get("GIGABYTE_SECONDS", "30"))
THREADS = int(os.environ.get("GIGABYTE_THREADS", "1"))
PASSES = int(os.environ.get("GIGABYTE_PASSES", "1"))
"""How many passes through a small model a step makes: of some 3 ms each, on a CPU with one thread."""
INTERVAL_SECONDS = 5.0


class Ballast(nn.Module):
    """Parameters, some of them frozen; the others change a little in each step."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        size = int(NUM_BYTES / 4 / NUM_TENSORS)
        self.weights = nn.ParameterList(
            nn.Parameter(
                torch.full((size,), float(number), device=device),
                requires_grad=number >= FROZEN * NUM_TENSORS,
            )
            for number in range(NUM_TENSORS)
        )


class Nudge(torch.optim.Optimizer):
    """Changes the first element of each parameter: no chunk of a checkpoint is what it was in the one before.

    An optimizer that changes a gigabyte takes longer than short steps do.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self._first = [each.detach()[:1] for each in parameters]

    def step(self) -> None:
        """Change them."""
        torch._foreach_add_(self._first, 1.0)


class Work:
    """The passes through a small model that take a step's time."""

    def __init__(self, device: torch.device) -> None:
        width, batch = (512, 192) if device.type == "cpu" else (4096, 1024)
        self._model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)).to(device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._inputs = torch.randn(batch, width, device=device)
        self._wanted = torch.randint(10, (batch,), device=device)

    def work(self, num_passes: int) -> None:
        """Make a step of so many passes."""
        self._optimizer.zero_grad()
        for _ in range(num_passes):
            nn.functional.cross_entropy(self._model(self._inputs), self._wanted).backward()
        self._optimizer.step()


def passes_for(step_seconds: float, device: torch.device) -> int:
    """Return how many passes take a step's time here and now, with the threads that torch has."""
    work, num_passes, found = Work(device), 0, []
    began = time.perf_counter()
    while num_passes < 20 or time.perf_counter() - began < 1.0:
        before = time.perf_counter()
        work.work(1)
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - before)
        num_passes += 1
    return max(1, round(step_seconds / sorted(found)[len(found) // 2]))


def train(
    ballast: Ballast, steps: Iterator[int], on_step: Callable[[], None], out: Path, device: torch.device
) -> None:
    """Make steps until the time is over, and write down when each began (monotonic)."""
    work = Work(device)
    nudge = Nudge([each for each in ballast.weights if each.requires_grad])
    began: list[float] = []
    end = time.monotonic() + SECONDS
    try:
        for _ in steps:
            began.append(time.monotonic())
            on_step()
            work.work(PASSES)
            nudge.step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if began[-1] > end:
                break
    finally:
        out.write_text(json.dumps(began))


def by_cloudspot() -> None:
    """Train as a job of cloudspot."""
    import cloudspot.train as spot

    device = spot.init_process_group()
    torch.set_num_threads(THREADS)
    ballast = Ballast(device)
    made = time.monotonic()
    run = spot.session(ballast=ballast)
    out = Path(os.environ["GIGABYTE_OUT"])
    if run.resumed:
        (out / "load.json").write_text(json.dumps(time.monotonic() - made))
    path = out / f"steps-{os.environ['CLOUDSPOT_GENERATION']}.json"
    train(ballast, iter(run.steps(1 << 40)), lambda: None, path, device)


def by_torch(how: str, out: Path) -> None:
    """Train without cloudspot, and save with torch.distributed.checkpoint, torchsnapshot or torch.save."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    torch.set_num_threads(THREADS)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("cpu:gloo", init_method=f"file://{out}/store", rank=0, world_size=1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ballast = Ballast(device)
    state = {"ballast": ballast.state_dict()}
    saves: list[dict[str, float]] = []
    last: list[Future[object]] = []
    waiting = ThreadPoolExecutor(1)
    next_at = time.monotonic() + INTERVAL_SECONDS

    def save() -> None:
        nonlocal next_at
        now = time.monotonic()
        if now < next_at or (last and not last[-1].done()):
            return
        next_at = now + INTERVAL_SECONDS
        path = out / f"checkpoint-{len(saves)}"
        record = {"began": now}
        saves.append(record)
        if how == "torch.save":
            torch.save(state, path)
            record["ended"] = time.monotonic()
            return
        if how == "torchsnapshot":
            pending = importlib.import_module("torchsnapshot").Snapshot.async_take(str(path), {"it": ballast})
            last.append(waiting.submit(pending.wait))
            last[-1].add_done_callback(lambda _: record.update(ended=time.monotonic()))
            return
        kind = AsyncCheckpointerType.THREAD if how == "dcp-thread" else AsyncCheckpointerType.PROCESS
        found = dcp.async_save(state, checkpoint_id=str(path), async_checkpointer_type=kind)
        future = getattr(found, "upload_completion", found)
        future.add_done_callback(lambda _: record.update(ended=time.monotonic()))
        last.append(future)

    train(ballast, iter(range(1 << 40)), save, out / "steps.json", device)
    for future in last:
        future.result()
    (out / "saves.json").write_text(json.dumps(saves))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=("dcp-thread", "dcp-process", "torch.save", "torchsnapshot"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.how is None:
        by_cloudspot()
    else:
        by_torch(options.how, options.out)
