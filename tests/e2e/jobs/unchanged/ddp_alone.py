"""A training on several nodes that knows nothing of cloudspot: on SIGTERM rank 0 saves, and all leave."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))
SAVE_EVERY = 500
OUTPUT = Path("output")


def newest():
    found = OUTPUT.glob("checkpoint-*")
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def main(num_steps):
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    # torchrun gives each process its rank; without it there is one process on each node.
    rank = int(os.environ["RANK" if "RANK" in os.environ else "NODE_RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    torch.manual_seed(0)
    inputs = torch.randn(640, 8)
    targets = inputs @ torch.arange(8.0).unsqueeze(1)
    net = nn.Linear(8, 1)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    step, saved = 0, newest()
    if saved is not None:
        state = torch.load(saved / "state.pt", weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        step = int(saved.name.rpartition("-")[2])
    while step < num_steps:
        chosen = torch.randperm(640, generator=torch.Generator().manual_seed(step * 1000 + rank))[:32]
        optimizer.zero_grad()
        (model(inputs[chosen]) - targets[chosen]).square().mean().backward()
        optimizer.step()
        time.sleep(STEP_SECONDS)
        step += 1
        must_leave = torch.tensor(float(bool(told)))
        dist.broadcast(must_leave, src=0)
        if rank == 0:
            print(f"step {step}", flush=True)
        if must_leave or step % SAVE_EVERY == 0:
            path = OUTPUT / f"checkpoint-{step}"
            path.mkdir(parents=True, exist_ok=True)
            torch.save(torch.get_rng_state(), path / f"rng_state_{rank}.pth")  # as trainers do, on every rank
            if rank == 0:
                torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, path / "state.pt")
                (path / "done").touch()
        if must_leave:
            break
    else:
        with torch.no_grad():
            loss = (net(inputs) - targets).square().mean().item()
        print(f"rank {rank} trained {step} steps, loss {loss!r}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
