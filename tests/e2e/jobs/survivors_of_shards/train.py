"""Trains a model that is sharded, and notes the loss of each step; SURVIVORS_LAYOUT says how it is sharded.

``hsdp``: over the processes of a machine, with a replica on each. ``tp``: the layers are split over the
processes of a machine, which train on the same samples, and machines average their gradients. ``fsdp``: over
all processes.
"""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import cloudspot.train as spot

STEPS, WIDTH, BATCH_SIZE = 30, 16, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, inputs):
        return inputs + self.down(torch.relu(self.up(self.norm(inputs))))


def average_gradients(model, group):
    """Average the gradients over the machines, as DDP does for models that are not split."""
    for each in model.parameters():
        grad = each.grad.to_local() if isinstance(each.grad, DTensor) else each.grad
        dist.all_reduce(grad, group=group)
        grad /= dist.get_world_size(group)


def main():
    torch.set_num_threads(1)
    spot.init_process_group()
    layout, world_size = os.environ["SURVIVORS_LAYOUT"], dist.get_world_size()
    torch.manual_seed(7)
    model = nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 1))
    group, place, num_places = None, dist.get_rank(), world_size
    if layout == "tp":
        mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("machine", "part"))
        for block in model[:2]:
            parallelize_module(block, mesh["part"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        group, place, num_places = (
            mesh["machine"].get_group(),
            mesh["machine"].get_local_rank(),
            world_size // 2,
        )
    elif layout == "hsdp":
        mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("machine", "part"))
    else:
        mesh = init_device_mesh("cpu", (world_size,))
    if layout != "tp":
        for each in (*model[:2], model):
            fully_shard(each, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run = spot.session(model=model, optimizer=optimizer)
    generation = os.environ.get("CLOUDSPOT_GENERATION", "0")
    path = Path(os.environ["SURVIVORS_TRACE"]) / f"{generation}-{run.rank}"
    seconds = float(os.environ.get("SURVIVORS_SECONDS", "0.2"))
    with path.with_suffix(".txt").open("a", 1) as made, path.with_suffix(".losses").open("a", 1) as losses:
        for step in run.steps(STEPS):
            # The same samples in each start, divided among the machines or the processes.
            inputs = torch.randn(BATCH_SIZE, WIDTH, generator=torch.Generator().manual_seed(step))
            inputs = inputs.chunk(num_places)[place]
            loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if group is not None:
                average_gradients(model, group)
            optimizer.step()
            losses.write(json.dumps([step, loss.item()]) + "\n")
            made.write(f"{step}\n")
            time.sleep(seconds)


if __name__ == "__main__":
    main()
