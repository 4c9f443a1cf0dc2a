"""A training that is as small as it can be while its resume can still go wrong in every way.

Dropout draws from torch's generator in each step, the noise from NumPy's and Python's, the shuffle
from the loader's; Adam has state; the scheduler moves. Any of them out of place changes the hash.
"""

from __future__ import annotations

import os
import random
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from uncompiled import data_parallel, leave_compiler_out

import cloudspot.train as spot
from cloudspot.train.sessions.training import Session

EPOCHS = int(os.environ.get("TINY_EPOCHS", "6"))
STEP_SECONDS = float(os.environ.get("TINY_STEP_SECONDS", "0.02"))
FAIL_AT = int(os.environ.get("TINY_FAIL_AT", "-1"))
HANG_AT = int(os.environ.get("TINY_HANG_AT", "-1"))
HANG_SECONDS = float(os.environ.get("TINY_HANG_SECONDS", "inf"))
EXACT = "TINY_EXACT" in os.environ
EVALUATE_AT = int(os.environ.get("TINY_EVALUATE_AT", "-1"))
TELL_DEVICE = "TINY_TELL_DEVICE" in os.environ
TELL_SAMPLES = "TINY_TELL_SAMPLES" in os.environ
WIDTH = int(os.environ.get("TINY_WIDTH", "32"))
FROZEN_MIB = int(os.environ.get("TINY_FROZEN_MIB", "0"))


class Backbone(nn.Module):
    """Parameters that nothing trains."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(6)
        values = torch.randn(FROZEN_MIB << 18, generator=generator)
        self.weight = nn.Parameter(values, requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Leave the inputs as they are."""
        return inputs


def hang_on_purpose() -> None:
    """Make no step for long, or any more; a dump of the stacks shows this function's name."""
    end = time.monotonic() + HANG_SECONDS
    while time.monotonic() < end:
        time.sleep(0.1)


def evaluate(run: Session) -> None:
    """Hold up rank 0, and with it the others, for longer than any notice; a resumed run has it shorter."""
    for _ in range(1 if run.resumed else 600):
        time.sleep(0.1)
        run.check()


def main() -> None:
    """Train, log, and print one line a step."""
    if "TINY_INTERFACE" in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["TINY_INTERFACE"].format(rank=os.environ["RANK"])
    leave_compiler_out()
    device = spot.init_process_group()
    torch.manual_seed(1)
    np.random.seed(2)  # noqa: NPY002 - the global generator is what must come back
    random.seed(3)
    data = torch.randn(320, 16, generator=torch.Generator().manual_seed(4))
    target = data[:, :4].sum(1, keepdim=True)
    dataset = TensorDataset(data, target, torch.arange(len(data)))
    model: nn.Module = nn.Sequential(nn.Linear(16, WIDTH), nn.ReLU(), nn.Dropout(0.2), nn.Linear(WIDTH, 1))
    if FROZEN_MIB:
        model = nn.Sequential(Backbone(), *model)
    model.to(device)
    sampler = None
    if dist.is_initialized() and dist.get_world_size() > 1:
        model = data_parallel(model, find_unused_parameters=EXACT)
        sampler = DistributedSampler(dataset, shuffle=True, seed=5)
    loader = DataLoader(dataset, batch_size=16, shuffle=sampler is None, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    if len(sys.argv) > 1:
        print(f"arguments {sys.argv[1:]}", flush=True)
    run = spot.session(model=model, optimizer=optimizer, scheduler=scheduler, exact=EXACT)
    if TELL_DEVICE:
        print(f"trains on {device} with {dist.get_backend_config()}", flush=True)
    if EVALUATE_AT >= 0:
        run.check()
    for inputs, wanted, samples in run.batches(loader, epochs=EPOCHS):
        if run.step == EVALUATE_AT and run.rank == 0:
            evaluate(run)
        noise = float(np.random.rand()) + random.random()  # noqa: NPY002
        loss = nn.functional.mse_loss(model(inputs.to(device)), wanted.to(device)) * (1.0 + 0.01 * noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.log(loss=loss.item())
        if run.rank == 0:
            print(f"step {run.step} loss {loss.item():.9f}", flush=True)
        if TELL_SAMPLES:
            generation = os.environ["CLOUDSPOT_GENERATION"]
            print(f"samples {generation} {run.step} {run.epoch} {samples.tolist()}", flush=True)
        if run.step == FAIL_AT:
            message = "wrong on purpose"
            raise ValueError(message)
        if run.step == HANG_AT and not run.resumed:
            hang_on_purpose()
        time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main()
