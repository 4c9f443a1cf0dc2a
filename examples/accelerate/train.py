"""A small network learns to read handwritten digits, with Accelerate. The lines for cloudspot are marked."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cloudspot.train.accelerate import session  # cloudspot


def accuracy(accelerator, model, loader, run):
    model.eval()
    right = []
    for images, labels in loader:
        run.check()  # cloudspot: obey a notice here too
        with torch.no_grad():
            answers = model(images).argmax(dim=1)
        right.append(accelerator.gather_for_metrics(answers == labels))
    model.train()
    return torch.cat(right).float().mean().item()


def main(epochs):
    set_seed(0)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    loader = DataLoader(TensorDataset(images[360:], labels[360:]), batch_size=16, shuffle=True)
    test_loader = DataLoader(TensorDataset(images[:360], labels[:360]), batch_size=60)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.9)
    model, optimizer, scheduler, loader, test_loader = accelerator.prepare(
        model, optimizer, scheduler, loader, test_loader
    )
    run = session(accelerator)  # cloudspot
    for _epoch in run.epochs(epochs):  # cloudspot; it was range(epochs)
        for images, labels in run.batches(loader):  # cloudspot; it was loader
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            run.log(loss=loss.item())  # cloudspot
        run.log(accuracy=accuracy(accelerator, model, test_loader, run))  # cloudspot
    accelerator.end_training()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
