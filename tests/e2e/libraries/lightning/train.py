"""Fits a line with Lightning."""

import os
import time

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # as if the model were larger than it is


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)

    def training_step(self, batch, _):
        time.sleep(STEP_SECONDS)
        return (self.net(batch[0]) - batch[1]).square().mean()

    def on_train_batch_end(self, *_):
        print(f"step {self.global_step}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.003)


def main():
    torch.manual_seed(0)
    inputs = torch.randn(384, 8)
    data = TensorDataset(inputs, inputs @ torch.arange(8.0).unsqueeze(1))
    trainer = lightning.Trainer(
        max_epochs=40,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=[ModelCheckpoint("checkpoints", save_last=True, save_on_exception=True)],
    )
    trainer.fit(Line(), DataLoader(data, batch_size=16, shuffle=True), ckpt_path="last")
    trainer.save_checkpoint("line.ckpt", weights_only=True)


if __name__ == "__main__":
    main()
