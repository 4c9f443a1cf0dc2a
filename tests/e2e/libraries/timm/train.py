"""Trains with the habits of timm's train.py.

After each epoch it writes ``tmp.pth.tar``, renames it to ``last.pth.tar``, links that to ``checkpoint-N.pth.tar`` and, if
it is the best, to ``model_best.pth.tar``, deletes all but the best two, and adds a line to ``summary.csv``. A path
to resume from has to exist.
Source: github.com/huggingface/pytorch-image-models, train.py and timm/utils/checkpoint_saver.py at aa4b5850
(read 2026-11).
"""

import argparse
import csv
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # as if the model were larger than it is
KEEP = 2


class CheckpointSaver:
    def __init__(self, directory):
        self.directory = directory
        self.files = []

    def save(self, state, epoch, metric):
        temporary, last = self.directory / "tmp.pth.tar", self.directory / "last.pth.tar"
        torch.save(state, temporary)
        last.unlink(missing_ok=True)
        temporary.replace(last)
        if len(self.files) < KEEP or metric > self.files[-1][1]:
            for path, _ in self.files[KEEP - 1 :]:
                path.unlink(missing_ok=True)
            path = self.directory / f"checkpoint-{epoch}.pth.tar"
            path.unlink(missing_ok=True)
            os.link(last, path)
            self.files = sorted([*self.files[: KEEP - 1], (path, metric)], key=lambda file: -file[1])
            if self.files[0][0] == path:
                best = self.directory / "model_best.pth.tar"
                best.unlink(missing_ok=True)
                os.link(last, best)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=40, type=int)
    parser.add_argument("--experiment", default="")
    parser.add_argument("--resume", default="", help="Resume full model and optimizer state from checkpoint")
    args = parser.parse_args()
    output = Path("output", "train", args.experiment or time.strftime("%Y%m%d-%H%M%S"))
    output.mkdir(parents=True, exist_ok=True)
    (output / "args.yaml").write_text(f"epochs: {args.epochs}\n")
    torch.manual_seed(0)
    inputs = torch.randn(384, 8)
    targets = (inputs.sum(1) > 0).long()
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    start_epoch = 0
    if args.resume:
        checkpoint = torch.load(args.resume)
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start_epoch = checkpoint["epoch"] + 1
    saver = CheckpointSaver(output)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True)
    for epoch in range(start_epoch, args.epochs):
        for index, (batch, wanted) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(batch), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(STEP_SECONDS)
            print(f"step {epoch * len(loader) + index + 1}", flush=True)
        with torch.no_grad():
            metric = (model(inputs).argmax(1) == targets).float().mean().item()
        with (output / "summary.csv").open("a") as file:
            csv.writer(file).writerow([epoch, loss.item(), metric])
        state = {"epoch": epoch, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
        saver.save(state, epoch, metric)


if __name__ == "__main__":
    main()
