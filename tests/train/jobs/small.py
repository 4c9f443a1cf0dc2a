"""A small training whose resume can go wrong in every way; run by the tests, with and without torchrun."""

# ruff: noqa: NPY002 - NumPy's global generator is what must come back

import argparse
import contextlib
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import cloudspot.train as spot
from cloudspot.train import handoff
from cloudspot.train.rounds import link
from cloudspot.train.rounds.step_seconds import StepSeconds

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--drain-at", type=int, default=-1)
parser.add_argument("--kill-at", type=int, default=-1)
parser.add_argument("--exact", action="store_true")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--leave-at", type=int, default=-1)
parser.add_argument("--save-at", type=int, default=-1)
parser.add_argument("--drain-with-save", action="store_true")  # at the step of --save-at
parser.add_argument("--die-relieved", action="store_true")
options = parser.parse_args()


def until_held(run):
    """Wait until this rank has promised a boundary: a round is open."""
    while run._service._link.rounds._hold is None:
        time.sleep(0.001)


def drain():
    """Give this rank's machine a notice: the last one's alone, if the ranks have directories of their own."""
    directory = Path(os.environ[handoff.HANDOFF])
    handoff.write_drain(directory, handoff.Drain("notice", time.monotonic() + 60))


def drain_with_save(run):
    """Order the drain between the copy of an interval save and the end of its boundary."""
    rounds, served = run._service._link.rounds, run._service._link.rounds.served

    def served_and_drained():
        served()
        if run.rank == run.world_size - 1:
            drain()
        until_held(run)

    StepSeconds.lookahead = lambda _self: 2
    rounds.served = served_and_drained


def die_relieved(run):
    """Lose the machine at the moment at which what only it has is another's."""
    rounds, hand_over = run._service._link.rounds, run._service._link.rounds.hand_over

    def hand_over_and_die(handover):
        is_done = hand_over(handover)
        if handover.gives is not None and is_done:
            os.kill(os.getpid(), signal.SIGKILL)
        return is_done

    rounds.hand_over = hand_over_and_die
    link.PART_SECONDS = 1.0  # for which rank 0 waits for the dead one


def main():
    device = spot.init_process_group()
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.3), torch.nn.Linear(32, 4)
    ).to(device)
    if torch.distributed.is_initialized():
        model = DistributedDataParallel(model, find_unused_parameters=options.exact)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    generator = torch.Generator().manual_seed(1)
    dataset = TensorDataset(torch.randn(192, 16, generator=generator), torch.arange(192) % 4)
    run = spot.session(model=model, optimizer=optimizer, scheduler=scheduler, exact=options.exact)
    torch.manual_seed(100 + run.rank)  # each rank drops other units
    sampler = DistributedSampler(dataset, run.world_size, run.rank, seed=3)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    print(f"rank {run.rank} of {run.world_size} begins at {run.step}", flush=True)
    if options.drain_with_save:
        drain_with_save(run)
    if options.die_relieved:
        die_relieved(run)
    for x, y in run.batches(loader, epochs=options.epochs):
        noise = 0.1 * random.random() + 0.1 * float(np.random.rand())
        loss = torch.nn.functional.cross_entropy(model(x + noise), y)
        if run.step % options.accumulate == 0:
            optimizer.zero_grad()
        is_last = run.step % options.accumulate == options.accumulate - 1
        with contextlib.nullcontext() if is_last or run.world_size == 1 else model.no_sync():
            loss.backward()
        if is_last:
            optimizer.step()
        scheduler.step()
        run.log(loss=loss.item())
        if run.step == options.kill_at and run.rank == run.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if run.step == options.drain_at and run.rank == run.world_size - 1:
            drain()
            until_held(run)
        if run.step == options.leave_at:
            break
        if run.step == options.save_at and run.rank == 0:
            run._service._link.rounds.request_interval()
            until_held(run)
    print(f"rank {run.rank} ended at {run.step}", flush=True)


if __name__ == "__main__":
    main()
