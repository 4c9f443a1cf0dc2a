"""The training process's side of cloudspot, which needs only the standard library and torch.

Importing this package does not import torch; ``session()`` and ``init_process_group()`` do::

    import cloudspot.train as spot

    device = spot.init_process_group()
    ...
    run = spot.session(model=model, optimizer=optimizer)
    for step in run.steps(10_000):
        ...

The same script runs under ``cloudspot run``, under plain torchrun and as ``python train.py``; only
``cloudspot run`` saves and resumes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudspot.train.errors import CheckpointError, SessionError, TrainError

if TYPE_CHECKING:
    from cloudspot.train.sessions.training import Session

__all__ = ["CheckpointError", "SessionError", "TrainError", "init_process_group", "session"]


def init_process_group() -> Any:
    """Join the process group that torchrun prepared, if there is one, and return this rank's device.

    Returns a ``torch.device``. On CPUs the backend is gloo. With GPUs, gloo is used for CPU tensors and NCCL
    for CUDA tensors, and the rank's own GPU becomes the current device. If ranks share a GPU, as several
    machines of the ``local`` provider do, gloo is used for both, and rank 0 warns that this is slow.

    Raises:
        SessionError: there are more ranks than GPUs on this machine.
    """
    from cloudspot.train.distributed import start_process_group

    return start_process_group()


def session(
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    dataloader: Any = None,
    scaler: Any = None,
    exact: bool = False,
    **others: Any,
) -> Session:
    """Open the process's session: track the given objects, and load the restored checkpoint into them.

    Call this once, after all objects exist (models wrapped in DistributedDataParallel, optimizers and
    schedulers created). When it returns, the objects hold the state of the restored checkpoint, if there is
    one.

    The random generators of Python, NumPy, torch and the CUDA devices in use are part of the state.
    Resuming is bit-equal for the same number of ranks on the same type of machine. With a different number of
    ranks, the state is loaded too, but the generators are seeded anew from the seed, the step and the rank,
    so the result is not bit-equal.

    Args:
        model: An ``nn.Module``, which may be wrapped (DistributedDataParallel, torch.compile). It may be
            sharded (``fully_shard``, tensor parallelism) over device meshes that are slices of one mesh of
            all ranks: each rank saves the shards that it holds, and any number of ranks can resume.
        optimizer: A ``torch.optim.Optimizer``.
        scheduler: A learning-rate scheduler.
        dataloader: A loader that knows its own position (torchdata's StatefulDataLoader); iterate
            ``run.dataloader``. ``run.batches(loader)`` does not need it and accepts any loader.
        scaler: A ``torch.amp.GradScaler``.
        exact: With three or more ranks, require a DistributedDataParallel whose buckets do not change
            after the first step, so that resuming is bit-equal with that many ranks, too.
        others: Further objects with ``state_dict`` and ``load_state_dict``, under names of your choice. Their
            state is equal on all ranks, or sharded over them.

    Raises:
        SessionError: an object cannot be saved (such as ``FullyShardedDataParallel``, the first FSDP), or the
            process has a session already.
        CheckpointError: the restored checkpoint is malformed or does not fit the objects.
    """
    from cloudspot.train.sessions.opening import open_session

    named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    return open_session({**named, **others}, dataloader=dataloader, exact=exact)
