"""The state of datasets and samplers that changes from epoch to epoch, apart from random generators.

A dataset or sampler is either given the epoch (``set_epoch``) or has a state (``state_dict`` and
``load_state_dict``). If it has neither method, it may still count its epochs, and that count cannot be
restored.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset

from cloudspot.train.state.tree import tensor_bytes

_log = logging.getLogger("cloudspot")
KNOWN = ("accelerate.", "torch.utils.data", "torchdata.")
"""Packages whose samplers only draw from random generators, or divide the samples of other samplers."""


def own_states(loader: Any) -> list[Any]:
    """Return the states of a loader's dataset and samplers, except those that have ``set_epoch``."""
    return [copy.deepcopy(each.state_dict()) for each in _parts(loader) if _keeps_state(each)]


def load_own_states(loader: Any, states: list[Any]) -> None:
    """Restore the states that ``own_states`` returned; call this before the loader is iterated."""
    parts = [each for each in _parts(loader) if _keeps_state(each)]
    for part, state in zip(parts, states, strict=False):  # an earlier version saved no states
        part.load_state_dict(state)


def keeps_states(loader: Any) -> bool:
    """Return whether ``own_states`` returns any state."""
    return any(map(_keeps_state, _parts(loader)))


def warn_of_counting(loader: Any, epoch: int) -> None:
    """Warn of parts of the loader that may count epochs, if this process's first epoch is not epoch 0."""
    parts = [each for each in _parts(loader) if not _keeps_state(each) and _may_count(loader, each)]
    if parts and epoch > 0 and _is_first_rank():
        _log.warning(
            "the first epoch of this process is epoch %d, but %s has no set_epoch: if its order depends on "
            "how many times it was iterated, the order of epoch 0 is repeated; give it set_epoch(epoch), or "
            "state_dict() and load_state_dict(state)",
            *(epoch, " and ".join(type(each).__name__ for each in parts)),
        )


def warn_of_other_batches(loader: Any, then: str | None, now: str | None) -> None:
    """Warn if an epoch's first batch differs from the one loaded before the resume, by their fingerprints."""
    if then is not None and now is not None and then != now and _is_first_rank():
        _log.warning(
            "the resumed batches differ from those of an uninterrupted run: the first batch of the epoch is "
            "not the same when it is loaded again. The samples of %s must depend only on set_epoch, a saved "
            "state, fixed seeds and this process's random generators",
            type(getattr(loader, "dataset", loader)).__name__,
        )


def fingerprint(batch: Any) -> str | None:
    """Return a hash of the tensors, arrays, numbers and strings in a batch; None if it has none of these."""
    digest, is_empty = hashlib.sha256(), True
    for each in _leaves(batch):
        is_empty = False
        digest.update(each)
    return None if is_empty else digest.hexdigest()


def _leaves(value: Any) -> Iterator[bytes | memoryview]:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and not value.is_quantized:
            yield tensor_bytes(value.detach().resolve_conj().resolve_neg().cpu().contiguous())
    elif isinstance(value, str | int | float | bytes):
        yield repr(value).encode()
    elif hasattr(value, "tobytes") and not getattr(getattr(value, "dtype", None), "hasobject", False):
        yield value.tobytes()
    elif hasattr(value, "tolist"):
        yield from _leaves(value.tolist())
    elif isinstance(value, Mapping):
        yield from _leaves(list(value.items()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)


def _parts(loader: Any) -> list[Any]:
    """Return the parts that decide a loader's order: its dataset and samplers, or else the loader itself."""
    if not hasattr(loader, "dataset"):
        return [loader]
    dataset, sampler = loader.dataset, getattr(loader, "sampler", None)
    while type(dataset).__module__.startswith("accelerate."):
        dataset = dataset.dataset
    found = [dataset, sampler, getattr(loader, "batch_sampler", None)]
    while type(found[-1]).__module__.startswith(KNOWN):
        found += [getattr(found[-1], name, None) for name in ("sampler", "batch_sampler")]
    return list({id(each): each for each in found if each is not None}.values())


def _keeps_state(part: Any) -> bool:
    """Return whether a part has ``state_dict`` and ``load_state_dict``, but no ``set_epoch``."""
    if hasattr(part, "set_epoch") or not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
        return False
    try:
        inspect.signature(part.state_dict).bind()  # some need the count of used samples
    except (TypeError, ValueError):
        return False
    return True


def _may_count(loader: Any, part: Any) -> bool:
    """Return whether a part's samples may depend on how often the part was iterated."""
    if hasattr(part, "set_epoch") or type(part).__module__.startswith(KNOWN):
        return False
    if part is not getattr(loader, "dataset", loader):
        return not isinstance(part, list | tuple | range)
    # Workers get a new copy of the dataset for each epoch.
    is_indexed = hasattr(type(part), "__getitem__") and not isinstance(part, IterableDataset)
    return not is_indexed and getattr(loader, "num_workers", 0) == 0


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"
