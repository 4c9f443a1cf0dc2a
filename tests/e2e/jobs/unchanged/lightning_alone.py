"""A training with Lightning that knows nothing of cloudspot: it saves on SIGTERM, and goes on from its newest checkpoint."""

import os
import sys
import time
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)

    def loss(self, batch):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def training_step(self, batch, _):
        time.sleep(STEP_SECONDS)
        return self.loss(batch)

    def on_train_batch_end(self, *_):
        print(f"step {self.global_step}", flush=True)

    def validation_step(self, batch, _):
        time.sleep(STEP_SECONDS)
        self.log("validation", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.003)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)]


def main(epochs):
    torch.manual_seed(0)
    inputs = torch.randn(640, 8)
    targets = inputs @ torch.arange(8.0).unsqueeze(1) + torch.randn(640, 1)
    data = TensorDataset(inputs, targets)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(
                "checkpoints",
                filename="{step}",
                # Never on an epoch's last step: stopped at such a save, Lightning 2.6.6 makes some steps twice.
                every_n_train_steps=499,
                save_top_k=-1,
                save_on_exception=True,
            )
        ],
    )
    model = Line()
    loader = DataLoader(data, batch_size=16, shuffle=True)
    found = Path("checkpoints").glob("step=*.ckpt")
    newest = max(found, key=lambda path: int(path.stem.partition("=")[2]), default=None)
    trainer.fit(model, loader, DataLoader(data, batch_size=64), ckpt_path=newest)
    print(f"trained {trainer.global_step} steps, loss {model.loss((inputs, targets)).item():.6f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
