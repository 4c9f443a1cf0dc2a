"""A small training under torchrun, for the tests: prints its loss, drains where it is told to."""

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import cloudspot.train as spot
from cloudspot.train import handoff

parser = argparse.ArgumentParser()
parser.add_argument("--drain-at", type=int, default=-1)
parser.add_argument("--die-at", type=int, default=-1)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--step-seconds", type=float, default=0.0)
options = parser.parse_args()

device = spot.init_process_group()
torch.manual_seed(7)
random.seed(7)
np.random.seed(7)
model = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.3), torch.nn.Linear(32, 4)
).to(device)
if torch.distributed.is_initialized():
    model = DistributedDataParallel(model, find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
generator = torch.Generator().manual_seed(1)
dataset = TensorDataset(torch.randn(192, 16, generator=generator), torch.arange(192) % 4)
run = spot.session(model=model, optimizer=optimizer, scheduler=scheduler)
torch.manual_seed(100 + run.rank)  # ranks drop different units
sampler = DistributedSampler(dataset, run.world_size, run.rank, seed=3)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
for x, y in run.batches(loader, epochs=options.epochs):
    noise = 0.1 * random.random() + 0.1 * float(np.random.rand())
    loss = torch.nn.functional.cross_entropy(model(x + noise), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    run.log(loss=loss.item())
    time.sleep(options.step_seconds)
    if run.step == options.die_at and run.rank == run.world_size - 1:
        import os, signal

        os.kill(os.getpid(), signal.SIGKILL)
    if run.step == options.drain_at and run.rank == 0:
        directory = Path(run._link.handoff)
        handoff.write_drain(directory, handoff.Drain("notice", time.monotonic() + 60))
        while run._link.rounds._hold is None:
            time.sleep(0.001)
print("loop ended at", run.step, flush=True)
