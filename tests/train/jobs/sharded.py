"""A tiny transformer, sharded: by FSDP, over replicas too, by tensor parallelism, or by both; or not at all."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import cloudspot.train as spot
from cloudspot.train import handoff

WIDTH, HEADS, WORDS, LENGTH, BATCH = 16, 4, 19, 6, 8


class Block(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.down = torch.nn.Linear(3 * WIDTH, WIDTH)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x):
        normed = self.norm(x)
        heads = [
            each(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        ]
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.dropout(self.down(torch.relu(self.up(x))))


class Gate(torch.nn.Module):
    """Weights of another type, fewer than there are ranks."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16))

    def forward(self, x):
        return x * self.weight.float().mean()


class Model(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.ModuleList(Block(dropout) for _ in range(2))
        self.gate = Gate()
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("num_batches", torch.zeros((), dtype=torch.int64))

    def forward(self, words):
        self.num_batches += 1
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.gate(x))


def shard(model, layout, world_size):
    """Shard the model; return along how many ranks the batch is divided, and this rank's place there."""
    rank = dist.get_rank()
    if layout == "tp":
        parallelize(model, init_device_mesh("cpu", (world_size,), mesh_dim_names=("tp",)))
        return 1, 0
    num_data = world_size
    if layout == "fsdp":
        mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("dp",))
    elif layout == "hsdp":
        mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize(model, mesh["tp"])
        mesh, num_data, rank = mesh["dp"], world_size // 2, rank // 2
    for each in (*model.blocks, model.gate, model):
        fully_shard(each, mesh=mesh)
    return num_data, rank


def parallelize(model, mesh):
    plan = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
    plan |= {name: RowwiseParallel() for name in ("out", "down")}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="fsdp")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--drain-at", type=int, default=-1)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    spot.init_process_group()
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    torch.manual_seed(5)
    model = Model(options.dropout)
    num_data, place = shard(model, options.layout, world_size) if options.layout != "none" else (1, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run = spot.session(model=model, optimizer=optimizer)
    torch.manual_seed(100 + place)
    losses = {}
    for step in run.steps(options.steps):
        # The same words in every world, divided among its ranks.
        words = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
        words = words.chunk(num_data)[place]
        is_last = step % options.accumulate == options.accumulate - 1
        if options.accumulate > 1:
            model.set_requires_gradient_sync(is_last)
        loss = torch.nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        mean = loss.detach() / num_data
        if world_size > 1:
            dist.all_reduce(mean)
            mean *= num_data / world_size
        losses[step] = mean.item()
        if step == options.drain_at and run.rank == world_size - 1:
            handoff.write_drain(
                Path(os.environ[handoff.HANDOFF]), handoff.Drain("notice", time.monotonic() + 60)
            )
            while run._service._link.rounds._hold is None:
                time.sleep(0.001)
        if options.results is not None and run.rank == 0:
            (options.results / "losses.json").write_text(json.dumps(losses))
    state = {name: full(tensor) for name, tensor in model.state_dict().items()}
    if options.results is not None and run.rank == 0:
        torch.save(state, options.results / "state.pt")


if __name__ == "__main__":
    main()
