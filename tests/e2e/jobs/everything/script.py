"""The same training without a line of cloudspot: it saves now and then, and when it is told to by SIGTERM."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
data = torch.randn(6400, 16)
net = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
dataset = TensorDataset(data, data.sum(1, keepdim=True))
loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
saves = Path("checkpoints")
newest = max(saves.glob("checkpoint-*"), key=lambda path: int(path.name[11:]), default=None)
step = 0
if newest is not None:
    state = torch.load(newest / "state.pt")
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    step = int(newest.name[11:])
while True:
    for inputs, wanted in loader:
        if Path(os.environ["TELL"]).exists():
            raise ValueError("told to fail")
        loss = nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        leaves = torch.tensor(float(bool(told)))
        dist.all_reduce(leaves)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            Path("out").mkdir(exist_ok=True)
            Path("out/samples.txt").write_text(f"{step} {inputs[0].tolist()}\n")
        if rank == 0 and (leaves or step % 100 == 0):
            (saves / f"checkpoint-{step}").mkdir(parents=True, exist_ok=True)
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, saves / f"checkpoint-{step}" / "state.pt")
        if leaves:
            raise SystemExit(0)
        time.sleep(0.1)
