"""Trains with ranks that are killed, and notes each step that is made; what it is to do comes from SURVIVORS_*."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torch.utils.data.distributed import DistributedSampler

import cloudspot.train as spot


def option(name, otherwise=""):
    return os.environ.get(f"SURVIVORS_{name}", otherwise)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 64), nn.Identity(), nn.Linear(64, 4)
        self.drop = nn.Identity()
        if "norm" in option("MODEL"):
            self.norm = nn.BatchNorm1d(64)
        if "drop" in option("MODEL"):
            self.drop = nn.Dropout(0.2)

    def forward(self, inputs):
        return self.last(self.drop(torch.relu(self.norm(self.first(inputs)))))


class Transformer(nn.Module):
    """A tiny one, with dropout; each number of a sample is a token."""

    def __init__(self):
        super().__init__()
        self.first, self.places = nn.Linear(1, 16), nn.Parameter(torch.zeros(16, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.last = nn.Linear(16, 4)

    def forward(self, inputs):
        return self.last(self.layer(self.first(inputs.unsqueeze(-1)) + self.places).mean(dim=1))


def main():
    torch.set_num_threads(1)
    if option("INTERFACE"):
        os.environ["GLOO_SOCKET_IFNAME"] = option("INTERFACE").format(rank=os.environ["GROUP_RANK"])
    spot.init_process_group()
    torch.manual_seed(7)
    rows = torch.arange(512.0).remainder(97).div(97)
    data = TensorDataset(torch.outer(rows, torch.linspace(-1, 1, 16)), (rows * 4).long())
    net = Transformer() if option("MODEL") == "transformer" else Net()
    # The buckets of three or more ranks sum in the same order after a restart only with this.
    model = DistributedDataParallel(net, find_unused_parameters=dist.get_world_size() > 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    sampler = DistributedSampler(data, seed=3)
    run = spot.session(model=model, optimizer=optimizer, scheduler=scheduler)
    generation = os.environ.get("CLOUDSPOT_GENERATION", "0")
    trace = Path(option("TRACE")) / f"{generation}-{run.rank}.txt"
    seconds, fail_at = float(option("SECONDS", "0.2")), int(option("FAIL_AT", "-1"))
    phases = os.open(trace.with_suffix(".phase"), os.O_CREAT | os.O_WRONLY)

    def phase(name):
        os.pwrite(phases, name.ljust(10).encode(), 0)
        if option("SPREAD"):
            time.sleep(seconds / 4)

    def collate(rows):
        phase("loader")
        return default_collate(rows)

    loader = DataLoader(data, batch_size=8, sampler=sampler, collate_fn=collate)
    if option("SPREAD"):
        model.module.last.weight.register_hook(lambda _: phase("all-reduce"))
        optimizer.register_step_post_hook(lambda *_: phase("optimizer"))

    with trace.open("a", buffering=1) as made, trace.with_suffix(".times").open("a", buffering=1) as times:
        try:
            for inputs, labels in run.batches(loader, epochs=int(option("EPOCHS", "3"))):
                phase("forward")
                if run.step == fail_at and run.rank == int(option("FAIL_RANK", "0")):
                    end(option("FAIL_HOW"))
                if run.step == int(option("PAUSE_AT", "-1")):
                    time.sleep(2)  # what this rank alone has is handed over by then
                    phase("pause")
                    time.sleep(4)
                loss = nn.functional.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                try:
                    loss.backward()
                except RuntimeError:
                    if option("CATCH") != "continue":
                        raise
                    continue
                optimizer.step()
                scheduler.step()
                made.write(f"{run.step}\n")
                times.write(f"{time.time():.3f}\n")
                if run.step % 16 == 15:
                    phase("evaluation")
                    evaluate(model, data)
                if not option("SPREAD"):
                    time.sleep(seconds)
        except RuntimeError:
            answer(model)


@torch.no_grad()
def evaluate(model, data):
    """Look at all samples on each rank, without a collective."""
    model.eval()
    for _ in range(4):
        model.module(data.tensors[0]).argmax(dim=1)
        time.sleep(0.05)
    model.train()


def end(how):
    """Fail as FAIL_HOW says."""
    if how == "raise":
        raise ValueError("this script is wrong")
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)


def answer(model):
    """Do with the error of a lost connection as scripts do: CATCH."""
    how = option("CATCH", "raise")
    if how == "save":
        torch.save(model.state_dict(), "own.pt")
    elif how == "destroy":
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    elif how == "cpu":
        model.cpu()
    elif how == "exit":
        sys.exit(3)
    raise  # noqa: PLE0704 - called where an error is handled


if __name__ == "__main__":
    main()
