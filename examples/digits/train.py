"""Learn to read handwritten digits: 1,797 scans of 8 by 8 pixels that scikit-learn ships.

This is an ordinary DistributedDataParallel script; the calls of ``spot.`` and ``run.`` are cloudspot's.
It also runs without a job: ``python train.py``, or ``torchrun --nproc-per-node 2 train.py``.
"""

import json
import random

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import cloudspot.train as spot

EPOCHS = 20
BATCH_SIZE = 32  # per process
NUM_TEST_IMAGES = 360


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 48, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(48, 96, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(96 * 4 * 4, 128),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(128, 10),
    )


def load_data(device: torch.device) -> tuple[TensorDataset, TensorDataset]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64, device=device)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(device)
    test, train = order[:NUM_TEST_IMAGES], order[NUM_TEST_IMAGES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


@torch.no_grad()
def count_answers(model: nn.Module, test: TensorDataset) -> torch.Tensor:
    """Return how often each digit (row) was read as each digit (column)."""
    images, labels = test.tensors
    model.eval()
    answers = model(images).argmax(dim=1)
    model.train()
    return torch.bincount(labels * 10 + answers, minlength=100).reshape(10, 10).cpu()


def accuracy(counts: torch.Tensor) -> float:
    return (counts.trace() / counts.sum()).item()


def main() -> None:
    device = spot.init_process_group()
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global generator, as in most scripts
    torch.manual_seed(0)

    train, test = load_data(device)
    model = make_model().to(device)
    trained = DistributedDataParallel(model) if torch.distributed.is_initialized() else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
    sampler = DistributedSampler(train) if torch.distributed.is_initialized() else None
    loader = DataLoader(train, batch_size=BATCH_SIZE, sampler=sampler, shuffle=sampler is None)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader))

    run = spot.session(model=trained, optimizer=optimizer, scheduler=scheduler)
    if run.rank == 0:
        if run.resumed:
            print(f"back again: going on at step {run.step}, nothing to learn twice", flush=True)
        else:
            print(f"{len(train)} digits to learn from, {len(test)} to be examined on", flush=True)
    torch.manual_seed(run.rank)  # dropout differs between processes

    for images, labels in run.batches(loader, epochs=EPOCHS):
        loss = nn.functional.cross_entropy(trained(images), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if run.rank == 0 and run.step % 46 == 0:
            share = accuracy(count_answers(model, test))
            run.log(loss=loss.item(), accuracy=share)
            bar = "#" * round(40 * share)
            progress = f"epoch {run.epoch:2d}  step {run.step:4d}  loss {loss.item():.3f}"
            print(f"{progress}  reads {share:6.1%}  {bar}", flush=True)

    if run.rank == 0:
        counts = count_answers(model, test)
        run.log(accuracy=accuracy(counts))
        (run.artifacts / "confusion.json").write_text(json.dumps(counts.tolist()))
        print(f"done after {run.step} steps: reads {accuracy(counts):.1%} of the digits it never saw")
        print("written digit (row) and what it was taken for (column):")
        print("      " + "".join(f"{digit:4d}" for digit in range(10)))
        for digit, row in enumerate(counts.tolist()):
            print(f"  {digit}   " + "".join(f"{count or '.':>4}" for count in row))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
