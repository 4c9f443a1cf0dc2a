"""Lightning in two ranks: the training is stopped early, and rank 0 alone works at its end, for long."""

import time

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

from cloudspot.train.lightning import SpotCallback
from cloudspot.train.sessions import service


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(6, 1)

    def training_step(self, batch, _):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


class Export(Callback):
    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = trainer.global_step == 3

    def on_train_end(self, trainer, _):
        if trainer.is_global_zero:
            time.sleep(3 * service.LEAVE_SECONDS)


def main():
    service.LEAVE_SECONDS = 2.0
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        callbacks=[SpotCallback(), Export()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=2,
    )
    trainer.fit(Net(), DataLoader(torch.randn(40, 6), 4))


if __name__ == "__main__":
    main()
