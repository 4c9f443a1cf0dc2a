"""Trains as the ImageNet example of PyTorch does.

Its habits: one file, ``checkpoint.pth.tar``, written in place after each epoch, the best one copied to
``model_best.pth.tar``, and ``--resume`` with a path that need not exist.
Source: github.com/pytorch/examples, imagenet/main.py at 77f55b9 (read 2026-11).
"""

import argparse
import os
import shutil
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # as if the model were larger than it is


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=40, type=int)
    parser.add_argument("--resume", default="", help="path to latest checkpoint")
    args = parser.parse_args()
    torch.manual_seed(0)
    inputs = torch.randn(384, 8)
    targets = (inputs.sum(1) > 0).long()
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    start_epoch, best_acc1 = 0, 0.0
    if args.resume:
        if Path(args.resume).is_file():
            checkpoint = torch.load(args.resume)
            start_epoch, best_acc1 = checkpoint["epoch"], checkpoint["best_acc1"]
            model.load_state_dict(checkpoint["state_dict"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            print(f"=> loaded checkpoint '{args.resume}' (epoch {start_epoch})", flush=True)
        else:
            print(f"=> no checkpoint found at '{args.resume}'", flush=True)
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
            acc1 = (model(inputs).argmax(1) == targets).float().mean().item()
        is_best, best_acc1 = acc1 > best_acc1, max(acc1, best_acc1)
        state = {
            "epoch": epoch + 1,
            "state_dict": model.state_dict(),
            "best_acc1": best_acc1,
            "optimizer": optimizer.state_dict(),
        }
        torch.save(state, "checkpoint.pth.tar")
        if is_best:
            shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")


if __name__ == "__main__":
    main()
