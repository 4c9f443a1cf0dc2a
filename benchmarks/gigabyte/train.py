"""Train with short steps and a large state, saved by cloudspot or another method; note each step's start."""

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
        # Change each tensor, so that no chunk of a checkpoint equals one of the previous checkpoint.
        self._first = [weight.detach()[:1] for weight in self.weights if weight.requires_grad]

    def change(self) -> None:
        """Change the first element of each tensor that is not frozen."""
        torch._foreach_add_(self._first, 1.0)


def train(
    ballast: Ballast, steps: Iterator[int], on_step: Callable[[], None], out: Path, device: torch.device
) -> None:
    """Make steps of some 3 ms until time is up, and write down when each began (monotonic)."""
    width, batch = (512, 192) if device.type == "cpu" else (4096, 1024)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, wanted = torch.randn(batch, width, device=device), torch.randint(10, (batch,), device=device)
    began: list[float] = []
    end = time.monotonic() + SECONDS
    try:
        for _ in steps:
            began.append(time.monotonic())
            on_step()
            loss = nn.functional.cross_entropy(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ballast.change()
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
    torch.set_num_threads(1)
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

    torch.set_num_threads(1)
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
