"""Trains in the loop of a framework, and notes the samples of each step; SURVIVORS_LOOP names the loop."""

import json
import os
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import cloudspot.train as spot

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
EPOCHS, NUM_SAMPLES, BATCH_SIZE = 3, 160, 4


class Numbered(Dataset):
    """Samples that know their number."""

    def __init__(self):
        rows = torch.arange(float(NUM_SAMPLES)).remainder(97).div(97)
        self.inputs, self.labels = torch.outer(rows, torch.linspace(-1, 1, 16)), (rows * 4).long()

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return {"ids": index, "inputs": self.inputs[index], "labels": self.labels[index]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, ids, inputs, labels):
        self.ids = ids.tolist()
        return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}


class Trace:
    """Notes the samples of each step that is made."""

    def __init__(self):
        generation = os.environ.get("CLOUDSPOT_GENERATION", "0")
        path = Path(os.environ["SURVIVORS_TRACE"]) / f"{generation}-{RANK}"
        self._steps = path.with_suffix(".txt").open("a", buffering=1)
        self._samples = path.with_suffix(".samples").open("a", buffering=1)
        self._seconds = float(os.environ.get("SURVIVORS_SECONDS", "0.2"))

    def note(self, step, ids):
        self._samples.write(json.dumps([step, ids]) + "\n")
        self._steps.write(f"{step}\n")
        time.sleep(self._seconds)


def with_steps(trace):
    """Loop over ``run.steps()`` with a loader that knows its place."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    spot.init_process_group()
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = Numbered()
    sampler = DistributedSampler(data, seed=3)
    loader = StatefulDataLoader(data, batch_size=BATCH_SIZE, sampler=sampler)
    run = spot.session(model=model, optimizer=optimizer, dataloader=loader)
    batches = None
    for step in run.steps(EPOCHS * len(loader)):
        sampler.set_epoch(step // len(loader))
        if batches is None or step % len(loader) == 0:
            batches = iter(run.dataloader)
        batch = next(batches)
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
        trace.note(step, model.module.ids)


def with_accelerate(trace):
    from accelerate import Accelerator

    from cloudspot.train.accelerate import session

    accelerator = Accelerator(cpu=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9)
    loader = DataLoader(Numbered(), batch_size=BATCH_SIZE, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    run = session(accelerator)
    for _epoch in run.epochs(EPOCHS):
        for batch in run.batches(loader):
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            scheduler.step()
            trace.note(run.step, accelerator.unwrap_model(model).ids)


def with_transformers(trace):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from cloudspot.train.hf import SpotCallback

    class Noting(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            trace.note(state.global_step - 1, net.ids)

    net = Net()
    arguments = TrainingArguments(
        output_dir="output",
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        learning_rate=1e-2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(model=net, args=arguments, train_dataset=Numbered(), callbacks=[Noting()])
    trainer.add_callback(SpotCallback(trainer))
    trainer.train()


def with_lightning(trace):
    import lightning

    from cloudspot.train.lightning import SpotCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, _):
            return self.net(**batch)["loss"]

        def on_train_batch_end(self, outputs, batch, batch_idx):
            trace.note(self.global_step - 1, self.net.ids)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy="ddp",
        callbacks=[SpotCallback()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(Module(), DataLoader(Numbered(), batch_size=BATCH_SIZE, shuffle=True))


def hanging(_state, bucket):
    """Reduce as NCCL does: where a peer is lost, hang; and let a watchdog end the process, unless it is told not to.

    Source: PyTorch, "ProcessGroupNCCL Environment Variables" (checked 2026-11): only 0 leaves the process alone.
    """
    reduced = torch.futures.Future()

    def reduce():
        try:
            torch.distributed.group.WORLD.allreduce([bucket.buffer()]).wait()
        except RuntimeError:
            if os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3") != "0":
                os.abort()
            return  # and never complete
        reduced.set_result(bucket.buffer() / WORLD_SIZE)

    threading.Thread(target=reduce, daemon=True).start()
    return reduced


def with_nccl(trace):
    """Stands in for it: what DDP reduces hangs where gloo would raise."""
    spot.init_process_group()
    model = nn.parallel.DistributedDataParallel(Net())
    model.register_comm_hook(None, hanging)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = Numbered()
    loader = DataLoader(data, batch_size=BATCH_SIZE, sampler=DistributedSampler(data, seed=3))
    run = spot.session(model=model, optimizer=optimizer)
    for batch in run.batches(loader, epochs=EPOCHS):
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
        trace.note(run.step, model.module.ids)


def with_local_sgd(trace):
    """Average the weights at the beginning of each fourth step, and nothing in the others."""
    spot.init_process_group()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = Numbered()
    loader = DataLoader(data, batch_size=BATCH_SIZE, sampler=DistributedSampler(data, seed=3))
    run = spot.session(model=model, optimizer=optimizer)
    for batch in run.batches(loader, epochs=EPOCHS):
        if run.step % 4 == 3:
            sums = [each.detach().clone() for each in model.parameters()]
            for each in sums:
                torch.distributed.all_reduce(each)
            with torch.no_grad():
                for parameter, each in zip(model.parameters(), sums, strict=True):
                    parameter.copy_(each / WORLD_SIZE)
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
        trace.note(run.step, model.ids)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(7)
    globals()[f"with_{os.environ['SURVIVORS_LOOP']}"](Trace())


if __name__ == "__main__":
    main()
