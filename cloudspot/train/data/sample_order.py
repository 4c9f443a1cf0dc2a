"""The order of an epoch's samples, and how ranks divide the rest of an epoch that another world began."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from cloudspot.train.data import epoch_state
from cloudspot.train.errors import CheckpointError
from cloudspot.train.state.tree import Json, flatten, rebuild

_log = logging.getLogger("cloudspot")
KEPT_WORKERS = "persistent_workers keeps them from one epoch to the next"
STATEFUL_WORKERS = "a StatefulDataLoader does not keep their random state"


@dataclass(frozen=True)
class SampleOrder:
    """The order in which all ranks together take an epoch's samples; a world of any size can compute it.

    Without a seed or a state, it is the order of the dataset.
    """

    length: int
    """The number of samples in an epoch, before any are repeated or dropped to divide them evenly."""
    seed: int | None = None
    """The seed of the generator that shuffles."""
    state: Any = None
    """The state of the generator that shuffles, if the script created it: uint8 [any], CPU."""

    def indices(self) -> Any:
        """Return the samples' indices: int64 [length], CPU.

        Raises:
            CheckpointError: torch rejects the seed or the state.
        """
        if self.seed is None and self.state is None:
            return torch.arange(self.length, device="cpu")
        generator = torch.Generator()
        try:
            if self.state is None:
                generator.manual_seed(self.seed)
            else:
                generator.set_state(self.state)
        except (TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint's order of samples is malformed: {error}") from error
        return torch.randperm(self.length, generator=generator, device="cpu")

    def to_json(self) -> Json:
        """Return the order in the form in which a checkpoint stores it."""
        return flatten("order", {"length": self.length, "seed": self.seed, "state": self.state}, None)

    @classmethod
    def from_json(cls, value: Json) -> SampleOrder:
        """Return the order for which ``to_json`` returned this value.

        Raises:
            CheckpointError: the value is malformed.
        """
        order = rebuild("order of samples", value)
        if not isinstance(order, dict) or set(order) != {"length", "seed", "state"}:
            raise CheckpointError(
                "the checkpoint's order of samples is malformed: expected length, seed and state"
            )
        length, seed, state = order["length"], order["seed"], order["state"]
        is_length = type(length) is int and 0 <= length < 2**62
        if not is_length or not (seed is None or type(seed) is int):
            raise CheckpointError(
                f"the checkpoint's order of samples has an impossible length or seed: {length!r}, {seed!r}"
            )
        return cls(length, seed, state)


def obstacle(loader: Any, *, world_size: int) -> str | None:
    """Return why the order of a loader's epochs cannot be known, as a clause; None if it can be known."""
    kind = type(loader)
    if getattr(kind, "__iter__", None) is not DataLoader.__iter__ or hasattr(loader, "state_dict"):
        return f"the loader is a {kind.__name__}"
    if isinstance(loader.dataset, IterableDataset):
        return "its dataset is iterable"
    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    if loader.batch_size is None or type(batch_sampler) is not BatchSampler:
        return "the loader does not make the batches itself"
    name = type(sampler).__name__
    # Subclasses may add anything that does not change the order.
    iterate = getattr(type(sampler), "__iter__", None)
    if iterate is DistributedSampler.__iter__:
        if sampler.num_replicas != world_size:
            return f"its {name} shares among {sampler.num_replicas} ranks"
    elif iterate is SequentialSampler.__iter__ or iterate is RandomSampler.__iter__:
        if world_size > 1:
            return f"its {name} does not share among ranks"
        if iterate is RandomSampler.__iter__ and (
            sampler.replacement or sampler.num_samples != len(sampler.data_source)
        ):
            return f"its {name} does not take every sample once"
    else:
        return f"the order of its {name} is not known"
    return None


def length_of(loader: Any) -> int:
    """Return the number of samples in an epoch, for a loader for which ``obstacle`` returns None."""
    sampler = loader.sampler
    return len(sampler.dataset if isinstance(sampler, DistributedSampler) else sampler.data_source)


def keeps_workers(loader: Any) -> bool:
    """Return whether ``iter`` reuses the last epoch's workers, and therefore draws no seed for them."""
    persistent = bool(getattr(loader, "persistent_workers", False))
    return persistent and getattr(loader, "_iterator", None) is not None


def warn_of_workers(why: str, *, rank: int) -> None:
    """Warn that a loader's workers have lost their random state, and why."""
    if rank == 0:
        _log.warning(
            "the resumed batches differ from those of an uninterrupted run if the loader's workers draw"
            " random numbers: %s, so they draw other numbers now",
            why,
        )


def may_draw(loader: Any) -> bool:
    """Return whether the loader may choose samples with this process's generators during an epoch.

    torch's own samplers draw only at the beginning of an epoch, if at all. Workers draw from their own
    generators.
    """
    if not isinstance(loader, DataLoader):
        return True
    if isinstance(loader.dataset, IterableDataset):
        return int(loader.num_workers) == 0
    owners = (loader.sampler, loader.batch_sampler)
    return not all(one is None or type(one).__module__.startswith("torch.utils.data") for one in owners)


def samplers_of(loader: Any) -> list[Any]:
    """Return a loader's samplers, including the samplers that these wrap."""
    found: dict[int, Any] = {}
    owners = [loader]
    for owner in owners:  # the loop appends to the list
        for each in (getattr(owner, "sampler", None), getattr(owner, "batch_sampler", None)):
            if each is not None and id(each) not in found:
                found[id(each)] = each
                owners.append(each)
    return list(found.values())


def own_order(loader: Any, *, seeds: Collection[int] = ()) -> str | None:
    """Return why other ranks cannot compute which samples of an epoch come next on this rank, as a clause.

    It is None if they can compute this from the rank's number, the epoch, the number of batches that each
    rank took, and values that all ranks share, such as these ``seeds``.
    """
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return "the dataset is iterable"
    # In each epoch, Accelerate gives all ranks rank 0's generator.
    is_synchronized = "generator" in (getattr(loader, "rng_types", None) or ())
    synchronized = loader.synchronized_generator if is_synchronized else None
    samplers = samplers_of(loader)
    if not samplers and not isinstance(loader, Sequence):
        return f"the order of the {type(loader).__name__} is not known"
    for each in samplers:
        name, iterate = type(each).__name__, getattr(type(each), "__iter__", None)
        if not getattr(iterate, "__module__", "").startswith(epoch_state.KNOWN):
            return f"the order of its {name} is not known"
        generator, seed = getattr(each, "generator", None), getattr(each, "initial_seed", None)
        is_shared = seed in seeds if seed is not None else generator is not None and generator is synchronized
        if not is_shared and not isinstance(each, (SequentialSampler, DistributedSampler, BatchSampler)):
            return f"its {name} shuffles by a generator of this rank"
    if epoch_state.keeps_states(loader):
        return "its dataset or sampler has a state of its own"
    return None


def find_order(loader: Any, *, world_size: int) -> SampleOrder | None:
    """Return the order of the epoch that ``iter(loader)`` would begin now; None if it cannot be known.

    This draws no number from the generators that ``iter`` is about to use.
    """
    if obstacle(loader, world_size=world_size) is not None:
        return None
    sampler, length = loader.sampler, length_of(loader)
    if isinstance(sampler, DistributedSampler):
        return SampleOrder(length, seed=int(sampler.seed) + int(sampler.epoch) if sampler.shuffle else None)
    if not isinstance(sampler, RandomSampler):
        return SampleOrder(length)
    generator = torch.Generator()
    own = sampler.generator
    generator.set_state(torch.get_rng_state() if own is None else own.get_state())
    if loader.generator is own and not keeps_workers(loader):
        _draw(generator)  # the loader first draws its workers' seed
    if own is None:
        return SampleOrder(length, seed=_draw(generator))
    return SampleOrder(length, state=generator.get_state())


def share(order: SampleOrder, taken: int, *, num_ranks: int, rank: int, drop_last: bool) -> list[int]:
    """Return one rank's indices in the rest of an epoch, of which ``taken`` samples have been used.

    All ranks get the same number of indices. As in DistributedSampler, samples that cannot be divided evenly
    are dropped with ``drop_last``; otherwise, the epoch's first samples are added to complete the shares.
    """
    indices = order.indices()
    rest = indices[taken:]
    if drop_last:
        rest = rest[: len(rest) // num_ranks * num_ranks]
    else:
        num_missing = -len(rest) % num_ranks
        rest = torch.cat([rest, indices.repeat(-(-num_missing // max(order.length, 1)))[:num_missing]])
    result: list[int] = rest[rank::num_ranks].tolist()
    return result


def loader_over(loader: Any, indices: Sequence[int]) -> Any:
    """Return a loader like the given one, for one epoch of these samples."""
    loader_copy = copy.copy(loader)
    # Copying keeps all arguments of this torch version's DataLoader and of the script's subclass. Use vars(),
    # because DataLoader's __setattr__ refuses to change these.
    vars(loader_copy).update(
        sampler=indices,
        batch_sampler=BatchSampler(indices, loader.batch_size, loader.drop_last),
        persistent_workers=False,
        _iterator=None,
    )
    return loader_copy


def _draw(generator: Any) -> int:
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())
