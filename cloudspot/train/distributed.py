"""This process's rank, and the process group of training on CPUs or GPUs."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from cloudspot.train import handoff
from cloudspot.train.errors import SessionError
from cloudspot.train.uncaught_errors import report_errors

_PREFIX = "cloudspot"
_NCCL_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_GLOO = "gloo"
"""The backend for all devices. With ``cpu:gloo``, torch 2.13 sets no default backend once
``torch.distributed.fsdp``, which the session imports, has registered its own; then each rank warns when it
ends."""
_log = logging.getLogger("cloudspot")
_shared_gpus: list[str] = []
"""This rank's GPU, if ranks share a GPU; otherwise empty."""


@dataclass(frozen=True)
class World:
    """This rank and the number of ranks, as set by torchrun."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


class Store(Protocol):
    """The key-value store through which the ranks agree: the methods of torch's Store that rounds need."""

    def set(self, key: str, value: str | bytes, /) -> None:
        """Write the key; other connections may see the new value a moment later."""

    def get(self, key: str, /) -> bytes:
        """Return the value of a key, which must be present."""

    def check(self, keys: list[str], /) -> bool:
        """Return immediately whether all keys are present."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Write the key if its value is ``expected`` (empty means absent); return its value after that."""


def start_process_group() -> Any:
    """Join the process group if torchrun started this process, and return this rank's device.

    Raises:
        SessionError: there are more ranks than GPUs on this machine.
    """
    report_errors()
    if os.environ.get(handoff.RESCUE) == "1" and os.environ.get(_NCCL_ERRORS, "1") == "1":
        # With 1, which torchrun sets, NCCL's watchdog ends the process when a peer is lost, and the process's
        # state is lost although it could have been saved. With 0, the collective hangs until the agent ends
        # the training. Source: PyTorch, "ProcessGroupNCCL Environment Variables" (checked 2026-11).
        os.environ[_NCCL_ERRORS] = "0"
    if "RANK" not in os.environ or not dist.is_available():
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    local_rank = int(os.environ["LOCAL_RANK"])
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not torch.cuda.is_available():
        dist.init_process_group(_GLOO)
        return torch.device("cpu")
    if local_world_size > torch.cuda.device_count():
        raise SessionError(
            f"this machine has {torch.cuda.device_count()} GPUs for {local_world_size} processes: lower"
            " procs_per_node, or set CUDA_VISIBLE_DEVICES to an empty string to train on the CPU"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    # init_process_group could do this, but the backend depends on whether ranks share a GPU.
    store, rank, world_size = next(dist.rendezvous("env://"))
    gpu = str(torch.cuda.get_device_properties(device).uuid)
    is_shared = is_any_shared(dist.PrefixStore(f"{_PREFIX}-gpus", store), rank, world_size, gpu)
    if is_shared:
        _shared_gpus.append(gpu)
    if is_shared and rank == 0:
        _log.warning(
            "several training processes share a GPU, as several local machines on one computer do: gloo"
            " connects them, which is slow, because NCCL needs a GPU for each process"
        )
    dist.init_process_group(
        _GLOO if is_shared else "cpu:gloo,cuda:nccl",
        store=dist.PrefixStore("default_pg", store),
        rank=rank,
        world_size=world_size,
    )
    return device


def shares_gpu() -> bool:
    """Return whether the process group uses gloo on GPUs because ranks share one."""
    return bool(_shared_gpus)


def is_any_shared(store: Any, rank: int, world_size: int, gpu: str) -> bool:
    """Return whether two ranks have the same GPU. Every rank must call this, and waits for the others."""
    store.set(str(rank), gpu)
    return len(set(store.multi_get([str(one) for one in range(world_size)]))) < world_size


def current_world() -> World:
    """Return this process's rank and the number of ranks.

    Raises:
        SessionError: torchrun started several ranks, but there is no process group.
    """
    if dist.is_available() and dist.is_initialized():
        return World(
            dist.get_rank(),
            dist.get_world_size(),
            int(os.environ.get("LOCAL_RANK", "0")),
            int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SessionError(
            f"torchrun started {os.environ['WORLD_SIZE']} ranks without a process group:"
            " call cloudspot.train.init_process_group() before session()"
        )
    return World(0, 1, 0, 1)


def open_store(world: World) -> tuple[Store, Any]:
    """Return a new connection to the process group's store, and that store, which must be kept alive."""
    if world.world_size == 1:
        store = dist.HashStore()
        return store, store
    from torch.distributed.distributed_c10d import _get_default_store  # torch has no public name

    default = _get_default_store()
    # Rank 0's object is also the server that the rounds need.
    return dist.PrefixStore(_PREFIX, _connect_again(default)), default


def _connect_again(store: Any) -> Any:
    if hasattr(store, "clone"):
        return store.clone()
    # Older versions of torch have no clone: connect a second client.
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not hasattr(store, "port"):
        raise SessionError(
            f"the process group uses a {type(store).__name__}, to which the session cannot connect:"
            " start the script with torchrun"
        )
    return dist.TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)
