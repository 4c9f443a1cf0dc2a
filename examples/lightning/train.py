"""A small network learns to read handwritten digits, with Lightning. The lines for cloudspot are marked."""

import os
import sys

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cloudspot.train.lightning import SpotCallback  # cloudspot


class Reader(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 10))

    def training_step(self, batch, _):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(dim=1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


def main(epochs):
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),  # the number of processes of torchrun
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        callbacks=[SpotCallback()],  # cloudspot
        enable_checkpointing=False,  # the session saves
        enable_progress_bar=False,
        logger=False,
        log_every_n_steps=10,
    )
    trainer.fit(
        Reader(),
        DataLoader(TensorDataset(images[360:], labels[360:]), batch_size=32, shuffle=True),
        DataLoader(TensorDataset(images[:360], labels[:360]), batch_size=60),
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
