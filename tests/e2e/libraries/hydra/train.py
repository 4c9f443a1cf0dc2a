"""Trains with the habits of a Hydra template: a new directory, named after the time, for each start.

Lightning's checkpoints lie below it, and ``ckpt_path`` names the one to resume from.
Source: github.com/ashleve/lightning-hydra-template, src/train.py, configs/hydra/default.yaml and
configs/callbacks/default.yaml at bddbc24 (read 2026-11).
"""

import os
import time
from pathlib import Path

import hydra
import lightning
import torch
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # as if the model were larger than it is


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)

    def training_step(self, batch, _):
        time.sleep(STEP_SECONDS)
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_batch_end(self, *_):
        print(f"step {self.global_step}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.003)


def newest_checkpoint():
    found = Path("logs/train/runs").glob("*/checkpoints/last.ckpt")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def main(cfg):
    output = Path(HydraConfig.get().runtime.output_dir)
    torch.manual_seed(0)
    inputs = torch.randn(384, 8)
    data = TensorDataset(inputs, inputs @ torch.arange(8.0).unsqueeze(1))
    checkpoints = ModelCheckpoint(
        output / "checkpoints",
        filename="epoch_{epoch:03d}",
        monitor="train/loss",
        save_last=True,
        auto_insert_metric_name=False,
    )
    trainer = lightning.Trainer(
        default_root_dir=output,
        max_epochs=cfg.max_epochs,
        accelerator="cpu",
        logger=CSVLogger(output, name="csv"),
        log_every_n_steps=1,
        enable_progress_bar=False,
        callbacks=[checkpoints],
    )
    trainer.fit(Line(), DataLoader(data, batch_size=16, shuffle=True), ckpt_path=newest_checkpoint())


if __name__ == "__main__":
    main()
