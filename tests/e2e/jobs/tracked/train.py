"""A training that logs to three experiment trackers, as their own documentation says, and knows nothing else.

The ranks in TRACKED_RANKS do; each step once.
"""

from __future__ import annotations

import os
import time

import mlflow
import torch
import torch.distributed as dist
import wandb
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.tensorboard import SummaryWriter

import cloudspot.train as spot

STEP_SECONDS = float(os.environ.get("TRACKED_STEP_SECONDS", "0.2"))
EPOCHS = int(os.environ.get("TRACKED_EPOCHS", "10"))
RANKS = [int(rank) for rank in os.environ.get("TRACKED_RANKS", "0").split(",")]


def main() -> None:
    """Train, and log the loss of each step."""
    spot.init_process_group()
    torch.manual_seed(1)
    data = torch.randn(320, 16)
    dataset = TensorDataset(data, data[:, :4].sum(1, keepdim=True))
    model: nn.Module = nn.Linear(16, 1)
    sampler = None
    if dist.is_initialized() and dist.get_world_size() > 1:
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(dataset, shuffle=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = spot.session(model=model, optimizer=optimizer)
    logs = run.rank in RANKS
    if logs:
        wandb.init(project="tracked")
        mlflow.start_run()
        writer = SummaryWriter(f"runs/rank{run.rank}")
    for inputs, wanted in run.batches(DataLoader(dataset, batch_size=16, sampler=sampler), epochs=EPOCHS):
        loss = nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if logs:
            wandb.log({"loss": loss.item()}, step=run.step)
            mlflow.log_metric("loss", loss.item(), step=run.step)
            writer.add_scalar("loss", loss.item(), run.step)
            writer.flush()
        print(f"step {run.step}", flush=True)
        time.sleep(STEP_SECONDS)
    if logs:
        writer.close()
        mlflow.end_run()
        wandb.finish()


if __name__ == "__main__":
    main()
