"""Fits a line with an engine of ignite."""

import os
import time
from pathlib import Path

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # as if the model were larger than it is


def main():
    torch.manual_seed(0)
    inputs = torch.randn(384, 8)
    loader = DataLoader(
        TensorDataset(inputs, inputs @ torch.arange(8.0).unsqueeze(1)), batch_size=16, shuffle=True
    )
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.003)

    def train_step(_, batch):
        loss = (model(batch[0]) - batch[1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(STEP_SECONDS)
        return loss.item()

    trainer = Engine(train_step)

    @trainer.on(Events.ITERATION_COMPLETED)
    def _(engine):
        print(f"step {engine.state.iteration}", flush=True)

    objects = {"model": model, "optimizer": optimizer, "trainer": trainer}
    saver = DiskSaver("checkpoints", create_dir=True, require_empty=False)
    step = lambda engine, _: engine.state.iteration  # noqa: E731
    trainer.add_event_handler(
        Events.EPOCH_COMPLETED, Checkpoint(objects, saver, n_saved=2, global_step_transform=step)
    )
    found = Path("checkpoints").glob("checkpoint_*.pt")
    newest = max(found, key=lambda path: int(path.stem.split("_")[1]), default=None)
    if newest is not None:
        Checkpoint.load_objects(objects, checkpoint=newest)
    trainer.run(loader, max_epochs=40)
    torch.save(model.state_dict(), "line.pt")


if __name__ == "__main__":
    main()
