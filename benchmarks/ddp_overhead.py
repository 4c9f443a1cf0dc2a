"""What a session costs a real training step: DDP on two processes, with ``run.steps()`` and with ``range``.

torchrun --nproc-per-node 2 benchmarks/ddp_overhead.py [--steps 200] [--rounds 21]

Blocks of both kinds alternate in one run, and each is compared with its neighbour. Nothing is pending:
no save, no drain. The session has its background thread, its store and its hand-off directory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cloudspot.train as spot
from cloudspot.train import handoff


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    torch.set_num_threads(1)
    spot.init_process_group()
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, wanted = torch.randn(128, 256), torch.randint(10, (128,))

    def block(steps: Iterable[int]) -> float:
        dist.barrier()
        started = time.perf_counter()
        for _ in steps:
            loss = nn.functional.cross_entropy(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (time.perf_counter() - started) / options.steps

    block(range(options.steps))
    bare, served = [], []
    for _ in range(options.rounds):
        bare.append(block(range(options.steps)))
        with tempfile.TemporaryDirectory() as name:
            os.environ[handoff.HANDOFF] = str(Path(name))
            run = spot.session(model=nn.Linear(2, 2))
            served.append(block(run.steps(options.steps)))
            run.close()
            del os.environ[handoff.HANDOFF]
    if dist.get_rank() == 0:
        ratios = sorted(
            100 * (with_session / alone - 1) for alone, with_session in zip(bare, served, strict=True)
        )
        print(f"range      {1e3 * statistics.median(bare):7.3f} ms a step, median of {options.rounds} blocks")
        print(f"run.steps  {1e3 * statistics.median(served):7.3f} ms a step")
        spread = f"block by block: {ratios[0]:+.1f} to {ratios[-1]:+.1f} %"
        print(f"difference {statistics.median(ratios):+.2f} % ({spread})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
