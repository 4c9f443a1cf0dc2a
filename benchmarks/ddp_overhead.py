"""The cost of a session per real training step: DDP on two processes, with ``range`` and ``run.steps()``.

torchrun --nproc-per-node 2 benchmarks/ddp_overhead.py [--batch 4096] [--steps 12] [--rounds 15]

Blocks of four kinds alternate in one run: a bare loop, a session with rescues (``checkpoint.rescue``) and
hand-over of each rank's own state, one with rescues only, and one with neither. Each is compared with the
bare block before it. Without ``--dropout``, only rank 0 hands over state. The session tracks the model and
the optimizer, with its threads, its store and its hand-off directory; no save or drain is pending.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cloudspot.train as spot
from cloudspot.train import handoff

KINDS: Mapping[str, Mapping[str, str]] = {
    "range": {},
    "run.steps, hand-over": {handoff.RESCUE: "1", handoff.HAND_OVER: "benchmark@127.0.0.1"},
    "run.steps, rescue": {handoff.RESCUE: "1"},
    "run.steps, no rescue": {},
}
"""The environment variables of each kind of session."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4096, help="samples per step and rank")
    parser.add_argument("--steps", type=int, default=12, help="steps per block")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dropout", action="store_true", help="draw random numbers in the steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    spot.init_process_group()
    torch.manual_seed(0)
    layers = [nn.Linear(256, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    if options.dropout:
        layers.append(nn.Dropout(0.1))
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(512, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    inputs, wanted = torch.randn(options.batch, 256), torch.randint(10, (options.batch,))

    def block(steps: Iterable[int]) -> float:
        dist.barrier()
        started = time.perf_counter()
        for _ in steps:
            loss = nn.functional.cross_entropy(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (time.perf_counter() - started) / options.steps

    def served(told: Mapping[str, str]) -> float:
        with tempfile.TemporaryDirectory() as name:
            os.environ |= {handoff.HANDOFF: str(Path(name)), **told}
            run = spot.session(model=model, optimizer=optimizer)
            steps = run.steps(2 * options.steps)
            block(itertools.islice(steps, options.steps))  # warm-up
            found = block(itertools.islice(steps, options.steps))
            run.close()
            for variable in (handoff.HANDOFF, *told):
                del os.environ[variable]
        return found

    block(range(2 * options.steps))
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    sessions = [*KINDS][1:]
    ratios: dict[str, list[float]] = {kind: [] for kind in sessions}
    for _ in range(options.rounds):
        for kind in sessions:
            bare = block(range(options.steps))
            with_session = served(KINDS[kind])
            seconds["range"].append(bare)
            seconds[kind].append(with_session)
            ratios[kind].append(100 * (with_session / bare - 1))
    if dist.get_rank() == 0:
        for kind in KINDS:
            line = f"{kind:21} {1e3 * statistics.median(seconds[kind]):8.2f} ms a step"
            if kind in ratios:
                found = sorted(ratios[kind])
                quarter = len(found) // 4
                middle = f"middle half {found[quarter]:+.1f} to {found[-1 - quarter]:+.1f}"
                line += f"  {statistics.median(found):+.2f} %, {middle}"
            print(line)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
