"""A training with a session, until a file tells it to fail."""

import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import cloudspot.train as spot

spot.init_process_group()
torch.manual_seed(1)
data = torch.randn(6400, 16)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 1))
)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
dataset = TensorDataset(data, data.sum(1, keepdim=True))
loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
run = spot.session(model=model, optimizer=optimizer)
for inputs, wanted in run.batches(loader, epochs=1000):
    if Path(os.environ["TELL"]).exists():
        raise ValueError("told to fail")
    loss = nn.functional.mse_loss(model(inputs), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log(loss=loss.item())
    if run.rank == 0 and run.step % 10 == 0:
        print(f"step {run.step} loss {loss.item():.4f}", flush=True)
        Path("out").mkdir(exist_ok=True)
        Path("out/samples.txt").write_text(f"{run.step} {inputs[0].tolist()}\n")
    time.sleep(0.1)
