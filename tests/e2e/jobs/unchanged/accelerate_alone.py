"""A training with Accelerate that knows nothing of cloudspot: it saves on SIGTERM, and goes on from its newest checkpoint."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))
SAVE_EVERY = 500
OUTPUT = Path("output")


def newest():
    found = OUTPUT.glob("checkpoint-*")
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def main(epochs):
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    set_seed(0)
    inputs = torch.randn(640, 8)
    targets = inputs @ torch.arange(8.0).unsqueeze(1) + torch.randn(640, 1)
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
    )
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.003)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 400, 0.9)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    step, saved = 0, newest()
    if saved is not None:
        accelerator.load_state(str(saved))
        step = int(saved.name.rpartition("-")[2])
    for epoch in range(step // len(loader), epochs):
        loader.set_epoch(epoch)
        num_done = step - epoch * len(loader)
        batches = accelerator.skip_first_batches(loader, num_done) if num_done else loader
        for batch in batches:
            loss = (model(batch[0]) - batch[1]).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            time.sleep(STEP_SECONDS)
            step += 1
            print(f"step {step}", flush=True)
            must_leave = bool(told)
            if must_leave or step % SAVE_EVERY == 0:
                accelerator.save_state(str(OUTPUT / f"checkpoint-{step}"))
            if must_leave:
                sys.exit(0)
    with torch.no_grad():
        loss = (model(inputs) - targets).square().mean().item()
    print(f"trained {step} steps, loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
