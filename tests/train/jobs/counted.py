"""A small training that writes down which samples each rank takes, and the loss of all ranks at each step."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import cloudspot.train as spot
from cloudspot.train import handoff

EPOCHS = 2
NUM_SAMPLES = 190
NUM_FEATURES = 8
BATCH_SIZE = 4


class Indexed(Dataset):
    """Returns each sample with its index; in float64, so that sums differ little in another order."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=generator, dtype=torch.float64)
        self.y = self.x @ torch.randn(NUM_FEATURES, 1, generator=generator, dtype=torch.float64)

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return index, self.x[index], self.y[index]


def make_training():
    """Return a model, and the optimizer and scheduler whose state counts at every step."""
    torch.manual_seed(7)
    model = torch.nn.Linear(NUM_FEATURES, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)


def until_held(run):
    """Wait until this rank has promised a boundary: a round is open."""
    while run._service._link.rounds._hold is None:
        time.sleep(0.001)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--drain-at", type=int, default=-1)
    parser.add_argument("--taken", type=Path)
    options = parser.parse_args()
    spot.init_process_group()
    model, optimizer, scheduler = make_training()
    wrapped = DistributedDataParallel(model)
    run = spot.session(model=wrapped, optimizer=optimizer, scheduler=scheduler)
    dataset = Indexed()
    sampler = DistributedSampler(dataset, run.world_size, run.rank, seed=3)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler)
    with (options.taken / f"{run.step}-{run.rank}.jsonl").open("w", buffering=1) as taken:
        for indices, x, y in run.batches(loader, epochs=EPOCHS):
            loss = torch.nn.functional.mse_loss(wrapped(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total = loss.detach().clone()
            torch.distributed.all_reduce(total)
            line = {"step": run.step, "epoch": run.epoch, "indices": indices.tolist()}
            taken.write(json.dumps({**line, "loss": total.item() / run.world_size}) + "\n")
            if run.step == options.drain_at and run.rank == run.world_size - 1:
                directory = Path(os.environ[handoff.HANDOFF])
                handoff.write_drain(directory, handoff.Drain("notice", time.monotonic() + 60))
                until_held(run)


if __name__ == "__main__":
    main()
