"""Learn to read handwritten digits with a transformer that FSDP shards over all processes.

This is an ordinary FSDP script; the calls of ``spot.`` and ``run.`` are cloudspot's. Without a job, it runs
with ``torchrun --nproc-per-node 2 train.py``.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import cloudspot.train as spot

EPOCHS = 10
BATCH_SIZE = 32  # per process
NUM_TEST_IMAGES = 360
WIDTH = 64


class Reader(nn.Module):
    """Reads a scan row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(8, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True) for _ in range(3)
        )
        self.answer = nn.Linear(WIDTH, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.embed(images) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.answer(x.mean(dim=1))


def load_data() -> tuple[TensorDataset, TensorDataset]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order[:NUM_TEST_IMAGES], order[NUM_TEST_IMAGES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


@torch.no_grad()
def accuracy(model: nn.Module, test: TensorDataset, device: torch.device) -> float:
    """Return the share of correct answers; all processes must call it, each with a part of the model."""
    images, labels = test.tensors
    model.eval()
    answers = model(images.to(device)).argmax(dim=1).cpu()
    model.train()
    return (answers == labels).float().mean().item()


def main() -> None:
    device = spot.init_process_group()
    torch.manual_seed(0)
    model = Reader().to(device)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train, test = load_data()
    loader = DataLoader(train, batch_size=BATCH_SIZE, sampler=DistributedSampler(train))

    run = spot.session(model=model, optimizer=optimizer)
    torch.manual_seed(run.rank)  # dropout differs between processes
    for images, labels in run.batches(loader, epochs=EPOCHS):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.step % 23 == 22:
            share = accuracy(model, test, device)
            run.log(loss=loss.item(), accuracy=share)
            if run.rank == 0:
                print(f"step {run.step:4d}  loss {loss.item():.3f}  reads {share:6.1%}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
