"""The training of the whole-job kit: small, slow enough for a reclaim, and reproducible bit by bit."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cloudspot.train as spot

STEPS = int(os.environ.get("KIT_STEPS", "300"))
STEP_SECONDS = 0.05


def main() -> None:
    """Learn the sum of random numbers, which each process draws at each step."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    )
    optimizer = torch.optim.Adam(model.parameters())
    torch.manual_seed(dist.get_rank())
    run = spot.session(model=model, optimizer=optimizer)
    for _ in run.steps(STEPS):
        time.sleep(STEP_SECONDS)
        drawn = torch.randn(16, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(drawn), drawn.sum(1, keepdim=True)).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
