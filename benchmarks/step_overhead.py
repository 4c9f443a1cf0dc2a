"""The cost of ``run.steps()`` per step over a bare ``range`` loop, with and without an agent.

python benchmarks/step_overhead.py [--steps 300000] [--rounds 7]
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

import cloudspot.train as spot
from cloudspot.train import handoff


def seconds_per_step(steps: Iterable[int], num_steps: int) -> float:
    started = time.perf_counter()
    for _ in steps:
        pass
    return (time.perf_counter() - started) / num_steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    bare, alone, served = [], [], []
    for _ in range(options.rounds):
        bare.append(seconds_per_step(range(options.steps), options.steps))
        os.environ.pop(handoff.HANDOFF, None)
        run = spot.session(model=torch.nn.Linear(2, 2))
        alone.append(seconds_per_step(run.steps(options.steps), options.steps))
        with tempfile.TemporaryDirectory() as name:
            os.environ[handoff.HANDOFF] = str(Path(name))
            run = spot.session(model=torch.nn.Linear(2, 2))
            served.append(seconds_per_step(run.steps(options.steps), options.steps))
            run.close()
    floor = statistics.median(bare)
    for what, found in (("for _ in range", bare), ("run.steps, no agent", alone), ("run.steps", served)):
        each = statistics.median(found)
        print(f"{what:20}  {1e9 * each:7.0f} ns a step   {1e9 * (each - floor):+7.0f} ns")


if __name__ == "__main__":
    main()
