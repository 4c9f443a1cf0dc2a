"""Epochs, each with an evaluation by all ranks or by one, in which a notice may come."""

import argparse
import logging
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import cloudspot.train as spot
from cloudspot.train import handoff


def until_open(run):
    """Wait until this rank has promised a boundary."""
    while run._service._link.rounds._hold is None:
        time.sleep(0.001)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--evaluates", default="all", help="all, which meet at each batch; or a rank")
    parser.add_argument(
        "--drain-in", type=int, default=-1, help="the epoch in whose evaluation the notice comes"
    )
    parser.add_argument("--noticed", type=int, default=-1, help="the rank that has the notice")
    parser.add_argument("--head", action="store_true", help="evaluate at the beginning of every fourth step")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    spot.init_process_group()
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    data = TensorDataset(torch.randn(48, 3), torch.randn(48, 1))
    torch.manual_seed(100 + rank)
    random.seed(100 + rank)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    run = spot.session(model=model, optimizer=optimizer, scheduler=scheduler)
    run.check()
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    print(f"rank {rank} begins at {run.step}", flush=True)

    def evaluate(number):
        if options.evaluates != "all" and rank != int(options.evaluates):
            return
        with torch.no_grad():
            model.module.eval()
            for batch in range(40):
                loss = model.module(torch.randn(2, 3)).mean() + random.random()
                if options.evaluates == "all":
                    dist.all_reduce(loss)
                if number == options.drain_in and batch == 3 and rank == options.noticed % run.world_size:
                    directory = Path(os.environ[handoff.HANDOFF])
                    handoff.write_drain(directory, handoff.Drain("notice", time.monotonic() + 3600))
                    until_open(run)
                run.check()
            model.module.train()
        print(f"rank {rank} evaluated {number}", flush=True)

    for epoch in run.epochs(4):
        for inputs, targets in run.batches(loader):
            if options.head and run.step % 4 == 3:
                evaluate(run.step // 4)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        scheduler.step()
        if not options.head:
            evaluate(epoch)
    print(f"rank {rank} ended at {run.step}", flush=True)


if __name__ == "__main__":
    main()
