"""Opens this process's session."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cloudspot.train import handoff
from cloudspot.train.distributed import World, current_world, shares_gpu
from cloudspot.train.errors import SessionError
from cloudspot.train.sessions.training import Session
from cloudspot.train.state import checkpoint, sharding
from cloudspot.train.state.checkpoint import Checkpoint
from cloudspot.train.uncaught_errors import report_errors

_log = logging.getLogger("cloudspot")
_open_lock = threading.Lock()
_open_handoffs: set[str] = set()


def open_session(objects: Mapping[str, Any], *, dataloader: Any, exact: bool) -> Session:
    """Open this process's session, as described in ``cloudspot.train.session()``."""
    report_errors()
    tracked = {name: each for name, each in objects.items() if each is not None}
    checkpoint.check_tracked(tracked)
    world = current_world()
    check_exact(tracked.get("model"), world, exact=exact)
    if shares_gpu():
        _check_unsharded(tracked)
    directory = os.environ.get(handoff.HANDOFF)
    if directory is not None and world.rank == 0:
        _warn_of_own_statistics(tracked)
    if directory is not None:
        with _open_lock:
            if directory in _open_handoffs:
                raise SessionError(
                    "this process already has a session: open it only once, when the batch size is known, "
                    "and pass it on; submit any other training run, such as a trial of a search, as a "
                    "separate job"
                )
            _open_handoffs.add(directory)
    restore = os.environ.get(handoff.RESTORE)
    restored = Checkpoint(Path(restore)) if restore else None
    if restored is None:
        checkpoint.check_own_state(tracked)
    session = Session(tracked, dataloader=dataloader, world=world, restored=restored)
    if directory is not None:
        session.connect(Path(directory))
        atexit.register(session.close)
    return session


def _check_unsharded(tracked: Mapping[str, Any]) -> None:
    # With gloo on GPUs, the averages that FSDP computes differ between versions of torch.
    for name, each in tracked.items():
        if isinstance(each, torch.nn.Module) and any(map(sharding.is_dtensor, each.parameters())):
            raise SessionError(
                f"session({name}=...) is sharded over processes that share a GPU, which is not supported:"
                " set CUDA_VISIBLE_DEVICES to an empty string to train on the CPU"
            )


def _warn_of_own_statistics(tracked: Mapping[str, Any]) -> None:
    for name, each in tracked.items():
        found = sharding.own_statistics(each) if isinstance(each, torch.nn.Module) else []
        if found:
            _log.warning(
                "session(%s=...) is sharded, and the statistics of its %s differ between ranks: checkpoints"
                " hold rank 0's, so resuming is not exact; use SyncBatchNorm",
                *(name, found[0]),
            )


def check_exact(model: Any, world: World, *, exact: bool) -> None:
    """If resuming must be ``exact``, check that it is bit-equal for this model.

    Raises:
        SessionError: with three or more ranks, DistributedDataParallel rearranges its buckets.
    """
    # The order of three summands affects the sum, and DDP rearranges its buckets after the first backward
    # pass, which is at a different step in a resumed run. With find_unused_parameters, DDP never rearranges
    # them.
    if not exact or world.world_size < 3 or not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return
    if not model.find_unused_parameters:
        raise SessionError(
            f"session(exact=True) with {world.world_size} ranks needs"
            " DistributedDataParallel(..., find_unused_parameters=True)"
        )
