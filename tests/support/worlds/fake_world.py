"""Many ranks of a process group in one process, one after the other; needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def fake_world(rank: int, num_ranks: int) -> Iterator[None]:
    """Be a rank of a process group whose collectives do nothing: what needs none does not notice."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from cloudspot.train.state import sharding

    dist.init_process_group("fake", rank=rank, world_size=num_ranks, store=FakeStore())
    try:
        yield
    finally:
        # Device meshes of different worlds can be equal.
        sharding._held.cache_clear()
        dist.destroy_process_group()
