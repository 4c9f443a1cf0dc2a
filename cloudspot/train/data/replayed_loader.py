"""A loader that resumes at any batch, even if batches are fetched before they are used."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cloudspot.train.data import data_wait, epoch_state, sample_order
from cloudspot.train.errors import SessionError
from cloudspot.train.state import randomness

_log = logging.getLogger("cloudspot")

_END = object()


class ReplayedLoader:
    """Iterates a loader, and returns to a batch by loading all batches before it again.

    Accelerate's loaders, and some frameworks' trainers, fetch a batch before the previous one is used. A
    resumed run fetches such a batch again with the random state of its first fetch, not with that of the
    save. Fetching draws the same random numbers as fetching from the loader itself. Other attributes are the
    loader's.
    """

    def __init__(self, loader: Any, *, ahead: int = 0) -> None:
        """``ahead`` is the maximum number of batches that are fetched but not used yet at a save."""
        self._loader = loader
        inner: Any = getattr(loader, "base_dataloader", None)
        if hasattr(inner, "load_state_dict"):
            # Accelerate has read the loader's state; without this call, the first epoch would draw no seed.
            inner.load_state_dict({})
        self._ahead = ahead
        self._num_fetched = 0
        self._start: dict[str, Any] = {}
        self._moments: list[tuple[int, dict[str, Any]]] = []
        self._resumed: dict[str, Any] | None = None
        self._num_begun = 0  # epochs
        self._first_then: str | None = None  # the fingerprint of the resumed epoch's first batch

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # before __init__, for copy and pickle
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def num_fetched(self) -> int:
        """The number of batches of this epoch that were fetched, or used before the resume."""
        return self._num_fetched

    def state_dict(self, *, num_used: int | None = None) -> dict[str, Any]:
        """Return the position after ``num_used`` batches of this epoch, by default after all fetched ones."""
        return {
            **self._start,
            "used": self._num_fetched if num_used is None else num_used,
            "moments": list(self._moments),
        }

    def state_between(self) -> dict[str, Any]:
        """Return the position before the first batch of the next epoch."""
        return {"own": epoch_state.own_states(self._loader), "begun": self._num_begun, "used": None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next iteration at a saved position; leave the random generators unchanged."""
        self._num_begun = state.get("begun", 0)
        if state["used"] is None:
            epoch_state.load_own_states(self._loader, state["own"])
            epoch_state.warn_of_counting(self._loader, self._num_begun)
        else:
            self._resumed = state

    def __iter__(self) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, None
        self._num_fetched = 0 if resumed is None else resumed["used"]
        return self._fresh() if resumed is None else self._resume(resumed)

    def _fresh(self) -> Iterator[Any]:
        _synchronize(self._loader)
        self._start = {
            "random": randomness.capture(),
            "generators": generator_states(self._loader),
            "keeps_workers": sample_order.keeps_workers(self._loader),
            "batch_size": batch_size_of(self._loader),
            **self.state_between(),
        }
        self._num_begun += 1
        self._moments = []
        yield from self._fetch(iter(self._loader))

    def _resume(self, resumed: dict[str, Any]) -> Iterator[Any]:
        size = batch_size_of(self._loader)
        if resumed.get("batch_size", size) != size:
            raise SessionError(
                "the checkpoint was saved in the middle of an epoch with batches of "
                f"{resumed['batch_size']} samples, but the loader's batches now have {size}: use the same "
                "batch size as before"
            )
        with _randomness_kept():
            if resumed["keeps_workers"]:
                rank = int(os.environ.get("RANK", "0"))
                sample_order.warn_of_workers(sample_order.KEPT_WORKERS, rank=rank)
                iter(self._loader)  # start the workers, so that the epoch draws no seed for them
            randomness.restore(resumed["random"])
            restore_generators(self._loader, resumed["generators"])
            epoch_state.load_own_states(self._loader, resumed.get("own", []))
            self._num_begun += 1
            self._first_then = resumed.get("first")
            self._start = {name: each for name, each in resumed.items() if name not in {"used", "moments"}}
            self._num_fetched, self._moments = 0, []
            iterator = iter(self._loader)
            for _ in range(resumed["used"]):
                if self._fetch_as_then(iterator, resumed["moments"]) is _END:
                    raise SessionError(
                        f"the loader ended after {self._num_fetched} batches, but {resumed['used']} were"
                        " consumed before the checkpoint: is it the same dataset?"
                    )
        last = max((number for number, _ in resumed["moments"]), default=0)
        while self._num_fetched < last:
            with _randomness_kept():
                batch = self._fetch_as_then(iterator, resumed["moments"])
            if batch is _END:
                return
            yield batch
        yield from self._fetch(iterator)

    def _fetch(self, iterator: Iterator[Any]) -> Iterator[Any]:
        while True:
            batch = self._fetch_one(iterator)
            if batch is _END:
                return
            yield batch

    def _fetch_as_then(self, iterator: Iterator[Any], moments: list[Any]) -> Any:
        for number, moment in moments:
            if number == self._num_fetched + 1:
                randomness.restore(moment)
        return self._fetch_one(iterator)

    def _fetch_one(self, iterator: Iterator[Any]) -> Any:
        number = self._num_fetched + 1
        moments = self._moments
        moments.append((number, randomness.capture()))
        while moments[0][0] < number - self._ahead:
            del moments[0]
        with data_wait.waiting():
            batch = next(iterator, _END)
        if batch is not _END:
            self._num_fetched = number
        if number == 1:
            self._start["first"] = epoch_state.fingerprint(batch)
            then, self._first_then = self._first_then, None
            epoch_state.warn_of_other_batches(self._loader, then, self._start["first"])
        return batch


@contextmanager
def _randomness_kept() -> Iterator[None]:
    state = randomness.capture()
    try:
        yield
    finally:
        randomness.restore(state)


def _synchronize(loader: Any) -> None:
    """Give all ranks rank 0's generators before their state is captured; Accelerate would do this next."""
    if fetches_ahead(loader) and getattr(loader, "rng_types", None):
        accelerates = sys.modules["accelerate.data_loader"]
        accelerates.synchronize_rng_states(loader.rng_types, loader.synchronized_generator)


def owned_generators(loader: Any) -> list[Any]:
    """Return the generators that belong to a loader and its samplers.

    The generator of a sampler with ``set_epoch`` is excluded, because the sampler seeds it with the epoch. If
    such a sampler keeps an initial seed, as Accelerate's ``SeedableRandomSampler`` does, that seed counts as
    a generator.
    """
    owners = [loader, *sample_order.samplers_of(loader)]
    generators: dict[int, Any] = {}
    for owner in owners[:1] + [each for each in owners[1:] if not hasattr(each, "set_epoch")]:
        generator = getattr(owner, "generator", None)
        if hasattr(generator, "get_state"):
            generators[id(generator)] = generator
    for owner in owners:
        if hasattr(owner, "set_epoch") and type(getattr(owner, "initial_seed", None)) is int:
            generators[id(owner)] = _InitialSeed(owner)
    return list(generators.values())


def generator_states(loader: Any) -> list[Any]:
    """Return the states of the generators that belong to a loader and its samplers."""
    return [generator.get_state() for generator in owned_generators(loader)]


def restore_generators(loader: Any, states: list[Any]) -> None:
    """Set the states of the generators that belong to a loader and its samplers."""
    generators = owned_generators(loader)
    if len(states) < len(generators):
        # An earlier version did not save seeds, which are last in the list.
        generators = [each for each in generators if not isinstance(each, _InitialSeed)]
        if os.environ.get("RANK", "0") == "0":
            _log.warning(
                "the checkpoint is from an earlier version, which did not save the seed of the loader's"
                " sampler: the resumed batches differ from those of an uninterrupted run unless the script"
                " sets a seed"
            )
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


class _InitialSeed:
    """The number to which a sampler adds the epoch to seed its generator; it may be drawn at random."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def get_state(self) -> int:
        return int(self._sampler.initial_seed)

    def set_state(self, state: int) -> None:
        self._sampler.initial_seed = state


def batch_size_of(loader: Any) -> int | None:
    """Return the number of samples in a loader's batches, or None if the loader does not know it."""
    found = getattr(loader, "batch_size", None)
    return found if found is not None else getattr(getattr(loader, "batch_sampler", None), "batch_size", None)


def set_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch`` on the loader, its dataset and its samplers, where they have that method."""
    for owner in (loader, *(getattr(loader, name, None) for name in ("dataset", "sampler", "batch_sampler"))):
        set_epoch_of_part = getattr(owner, "set_epoch", None)
        if set_epoch_of_part is not None:
            set_epoch_of_part(epoch)


def fetches_ahead(loader: Any) -> bool:
    """Return whether a loader fetches the next batch before it yields one, as Accelerate's loaders do."""
    # The loader's own state_dict does not show this, because it belongs to the inner loader, which may have
    # none.
    return any(kind.__name__ == "DataLoaderAdapter" for kind in type(loader).__mro__)
