"""The training of a first run: small, of the requested length, and with always exactly the same result.

Meanwhile, each process prints facts about its machine that reveal nothing about the account.
"""

from __future__ import annotations

import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from witness import watch  # type: ignore[import-not-found] # beside this script

import cloudspot.train as spot

STEPS = int(os.environ["PROVE_STEPS"])
STEP_SECONDS = float(os.environ["PROVE_STEP_SECONDS"])


def main() -> None:
    """Learn the sum of random numbers, which each process draws anew in each step."""
    threading.Thread(target=watch, args=(os.environ["PROVE_CLOUD"],), daemon=True).start()
    on_gpu = os.environ.get("PROVE_GPU") == "1"
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1)).to(device)
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters())
    torch.manual_seed(dist.get_rank())
    run = spot.session(model=model, optimizer=optimizer)
    for _ in run.steps(STEPS):
        time.sleep(STEP_SECONDS)
        drawn = torch.randn(16, 8).to(device)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(drawn), drawn.sum(1, keepdim=True)).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
