"""The batches of a loader, epoch after epoch, starting from a position stored in a checkpoint (P6)."""

from __future__ import annotations

import collections
import copy
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from cloudspot.train.data import data_wait, epoch_state, sample_order
from cloudspot.train.data.replayed_loader import (
    ReplayedLoader,
    fetches_ahead,
    generator_states,
    restore_generators,
    set_epoch,
)
from cloudspot.train.data.sample_order import SampleOrder
from cloudspot.train.errors import CheckpointError, SessionError
from cloudspot.train.state import randomness
from cloudspot.train.state.noted_state import Noted

_log = logging.getLogger("cloudspot")


class ResumableBatches:
    """Iterates a loader for a number of epochs, and can resume at a saved position."""

    def __init__(
        self,
        loader: Any,
        *,
        epochs: int,
        first: int = 0,
        world_size: int,
        rank: int = 0,
        devices: tuple[int, ...] = (),
    ) -> None:
        """Begin at the first batch of epoch ``first``, and stop before epoch ``epochs``.

        ``loader`` is a DataLoader, a StatefulDataLoader or any iterable that can be iterated repeatedly. All
        ranks take batches of the same size from their shares of the data. ``devices`` are the CUDA devices
        whose random generators are part of the state.
        """
        self._given = loader
        self._loader = ReplayedLoader(loader) if fetches_ahead(loader) else loader
        self._loaded: Any = None
        """The state that was loaded into the loader; None once a batch has been fetched."""
        self._ended: dict[str, Any] | None = None
        """For a loader that knows its position, its state at the end of the previous epoch."""
        self._epochs = epochs
        self._world_size = world_size
        self._rank = rank
        self._devices = devices
        self._length = _length(loader)
        self._stateful = is_stateful(self._loader)
        self._iterator: Iterator[Any] | None = None
        self._start: dict[str, Any] = {}
        self._peeked: tuple[Any] | None = None
        self._before_peek: dict[str, Any] = {}
        self.epoch = first
        self._batch = 0
        self._kept_workers = False
        self._order: SampleOrder | None = None
        self._own_order: str | None = None
        # In an epoch that a world of another size began: the number of samples it took, and a loader of this
        # rank's share of the rest.
        self._base = 0
        self._share: Any = None

    @property
    def length(self) -> int | None:
        """The number of batches in an epoch, or None if the loader does not know it."""
        return self._length

    @property
    def batches_left(self) -> int | None:
        """The number of batches left, or None if the loader does not know its length."""
        if self._length is None:
            return None
        length = self._length if self._share is None else len(self._share)
        return max(0, length - self._batch + (self._epochs - self.epoch - 1) * self._length)

    def has_next(self) -> bool:
        """Return whether there is another batch. True may be returned even though the next epoch is empty.

        If the loader's length is unknown, this fetches the next batch, and keeps the state before the fetch
        for a save. Call this before a boundary: only the state in which the loop ends may be saved under the
        number of the last step.
        """
        if self._length is not None:
            return self.batches_left != 0
        if self._iterator is not None and self._peeked is None:
            self._before_peek = {"random": randomness.capture(self._devices)}
            if self._stateful:
                self._before_peek["loader"] = self._loader_state()
            self._peek()
        return self.epoch < self._epochs

    @property
    def random(self) -> dict[str, Any] | None:
        """The state of the random generators before the next batch was fetched; None if it is not fetched."""
        return None if self._peeked is None else self._before_peek["random"]

    def extend(self, loader: Any, *, first: int, epochs: int) -> bool:
        """Iterate further epochs. If these use another loader, do nothing and return False."""
        if loader is self._given:
            self.epoch, self._epochs, self._length = first, epochs, _length(loader)
        return loader is self._given

    def end_epoch(self) -> None:
        """Skip the rest of the current epoch, if that has begun."""
        if self._iterator is not None or self._peeked is not None:
            self._peeked = None
            self._step_to_next_epoch()

    def fetch(self) -> tuple[Any] | None:
        """Return a tuple with the next batch, or None after the last epoch."""
        while self.epoch < self._epochs:
            if self._iterator is None:
                self._mark_start()
                self._iterator = self._open()
            if self._peek():
                assert self._peeked is not None
                batch, self._peeked = self._peeked, None
                if self._batch == 0 and not self._stateful:
                    self._start["first"] = epoch_state.fingerprint(batch[0])
                self._batch += 1
                return batch
        return None

    def close(self) -> None:
        """Release the iterator and its worker processes; called at the end of the loop."""
        self._iterator = None

    @property
    def has_workers(self) -> bool:
        """Whether the loader has worker processes, which have random generators of their own."""
        return bool(getattr(self._loader, "num_workers", 0))

    @property
    def own_order(self) -> str | None:
        """Why other ranks cannot compute which batches of this epoch come next on this rank, or None."""
        return self._own_order if self._batch > 0 else None

    @property
    def is_common(self) -> bool:
        """Whether another rank could use this rank's part of ``take``, except for its random state."""
        return self._own_order is None

    def take(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the position that all ranks share, and this rank's own state at that position.

        Both can be stored in a checkpoint. ``samples`` is the number of samples of this epoch that all ranks
        took together; ``base`` of them were taken in worlds of other sizes, before ``batch`` was counted.
        ``order`` is the epoch's order, or None if it is unknown.
        """
        rank_position: dict[str, Any] = {"generators": generator_states(self._loader)}
        epoch, batch, base = self.epoch, self._batch, self._base
        if self._length is not None:
            length = self._length if self._share is None else len(self._share)
            if batch >= length:
                epoch, batch, base = epoch + 1, 0, 0
        if batch > 0 and self._stateful:
            known = self._before_peek if self._peeked is not None else None
            rank_position["loader"] = self._loader_state() if known is None else known["loader"]
        elif batch > 0:
            rank_position["start"] = self._start
        elif isinstance(self._loader, ReplayedLoader):
            rank_position["ended"] = {"loader": self._loader.state_between(), "iterates": False}
        elif self._stateful:
            rank_position["ended"] = (
                self._ended if self._iterator is None else self._end(is_over=epoch < self._epochs)
            )
        else:
            rank_position["own"] = epoch_state.own_states(self._loader)
        kept = self._kept_workers if batch > 0 else sample_order.keeps_workers(self._loader)
        rank_position["keeps_workers"] = kept
        batch_size = getattr(self._loader, "batch_size", None)
        samples = base + batch * batch_size * self._world_size if isinstance(batch_size, int) else None
        order = self._order.to_json() if self._order is not None and (batch > 0 or base > 0) else None
        position = {"epoch": epoch, "batch": batch, "base": base, "samples": samples, "order": order}
        return position, rank_position

    def _loader_state(self) -> Any:
        # Some loaders must not be asked for their state between load_state_dict and the first batch.
        return self._ask_state() if self._loaded is None else self._loaded

    def _ask_state(self) -> Any:
        state = self._loader.state_dict()
        # Loaders of other kinds may return their live state and change it later, so copy it. A ReplayedLoader
        # returns a new state, and copying all the numbers of its random generators would take ten times as
        # long as marking a boundary.
        return state if isinstance(self._loader, ReplayedLoader) else copy.deepcopy(state)

    def _peek(self) -> bool:
        """Fetch the epoch's next batch. If there is none, move to the next epoch and return False."""
        if self._peeked is None and self._iterator is not None:
            self._loaded = None
            with data_wait.waiting():
                for batch in self._iterator:
                    self._peeked = (batch,)
                    break
            if self._peeked is None:
                self._step_to_next_epoch(is_over=True)
        return self._peeked is not None

    def _end(self, *, is_over: bool = False) -> dict[str, Any] | None:
        """Return the loader's state at the end of an epoch, and how to resume from that state."""
        known = self._before_peek.get("loader") if is_over else None
        state = self._ask_state() if known is None else known
        return {"loader": state, "iterates": True, "is_over": is_over}

    def _step_to_next_epoch(self, *, is_over: bool = False) -> None:
        if self._stateful and not isinstance(self._loader, ReplayedLoader):
            self._ended = self._end(is_over=is_over)
        self._before_peek = {}
        self._iterator = None
        self.epoch += 1
        self._batch = self._base = 0
        self._order = self._share = None

    def resume(
        self,
        position: dict[str, Any],
        rank_position: dict[str, Any] | None,
        *,
        world_size: int,
        random: dict[str, Any] | None = None,
    ) -> None:
        """Resume at a position. This draws random numbers: restore the generators afterwards.

        ``position`` is shared by the ``world_size`` ranks that saved it; ``rank_position`` is this rank's
        own, or None if the world had another size; ``random`` is the saved state of the rank's generators. A
        warning is logged if the batches may differ from those of an uninterrupted run.

        Raises:
            CheckpointError: the position is malformed.
            SessionError: the position does not fit this loader.
        """
        self.epoch, self._batch = position["epoch"], position["batch"]
        base = position.get("base", 0)
        if base > 0 or (self._batch > 0 and world_size != self._world_size):
            self._resume_in_share(position, world_size, base)
        if rank_position is not None and rank_position.get("keeps_workers"):
            sample_order.warn_of_workers(sample_order.KEPT_WORKERS, rank=self._rank)
            iter(self._loader)  # start the workers, so that the epoch draws no seed for them
        if self._batch == 0 and rank_position is not None:
            self._resume_between(rank_position)
        if self._batch > 0 and self.epoch < self._epochs:
            if rank_position is None:
                epoch_state.warn_of_counting(self._loader, self.epoch)
            if rank_position is not None and "loader" in rank_position:
                self._restart_stateful(rank_position)
            else:
                drawn = self._replay(rank_position)
                if random is not None and drawn:
                    self._warn_of_draws(drawn & {*randomness.drawn_since(random, self._devices)})
        if rank_position is not None:
            restore_generators(self._loader, rank_position["generators"])

    def _resume_between(self, rank_position: dict[str, Any]) -> None:
        """Resume before an epoch's first batch, with a loader that has not iterated any earlier epoch."""
        epoch_state.load_own_states(self._loader, rank_position.get("own", []))
        self._ended = ended = rank_position.get("ended")
        if ended is not None:
            self._loader.load_state_dict(ended["loader"])
            if ended["iterates"]:
                set_epoch(self._loader, self.epoch - 1)
                rest = iter(self._loader)
                if ended["is_over"] and next(rest, self) is not self:
                    # The loader, such as litdata's, has already begun the next epoch.
                    self._loader.load_state_dict(ended["loader"])
                elif not is_of_torchdata(self._loader):  # torchdata's resume where the script left the epoch
                    collections.deque(rest, maxlen=0)
        if not self._stateful or is_of_torchdata(self._loader):
            epoch_state.warn_of_counting(self._loader, self.epoch)

    def _resume_in_share(self, position: dict[str, Any], world_size: int, base: int) -> None:
        """Resume in an epoch whose rest is divided anew now, or was divided anew before the save."""
        samples, order = position["samples"], None
        reason = sample_order.obstacle(self._loader, world_size=self._world_size)
        if reason is None and (position.get("order") is None or samples is None):
            reason = "the order of its samples was not known when it was saved"
        elif reason is None:
            order, length = SampleOrder.from_json(position["order"]), sample_order.length_of(self._loader)
            if order.length != length:
                reason = f"the dataset has {length} samples and had {order.length}"
        if reason is not None or order is None:
            self._batch = self._round(position, world_size)
            if self._rank == 0:
                _log.warning(
                    "a checkpoint of %d ranks is resumed by %d in the middle of epoch %d, but %s: some of "
                    "the epoch's samples may be used twice",
                    *(world_size, self._world_size, self.epoch, reason),
                )
            return
        if world_size != self._world_size:
            base, self._batch = samples, 0
        if base > order.length:
            raise CheckpointError(
                f"the checkpoint's position is after {base} samples, but its epoch has only {order.length}"
            )
        sampler = self._loader.sampler
        indices = sample_order.share(
            order,
            base,
            num_ranks=self._world_size,
            rank=getattr(sampler, "rank", 0),
            drop_last=getattr(sampler, "drop_last", False),
        )
        self._order, self._base, self._share = order, base, sample_order.loader_over(self._loader, indices)

    def _round(self, position: dict[str, Any], world_size: int) -> int:
        batch, samples = int(position["batch"]), position["samples"]
        batch_size = getattr(self._loader, "batch_size", None)
        if isinstance(samples, int) and isinstance(batch_size, int):
            # Rounded down, so samples of this epoch may be used twice, but none is skipped.
            return samples // (batch_size * self._world_size)
        return batch * world_size // self._world_size

    def _restart_stateful(self, rank_position: dict[str, Any]) -> None:
        if not self._stateful:
            raise SessionError(
                "the checkpoint was saved with a loader that has a state_dict, but "
                f"{type(self._loader).__name__} has none: use the same loader"
            )
        if getattr(self._loader, "num_workers", 0):
            sample_order.warn_of_workers(sample_order.STATEFUL_WORKERS, rank=self._rank)
        if is_of_torchdata(self._loader):
            epoch_state.warn_of_counting(self._loader, self.epoch)
        self._loaded = rank_position["loader"]
        self._loader.load_state_dict(copy.deepcopy(self._loaded))
        self._iterator = self._open()

    def _replay(self, rank_position: dict[str, Any] | None) -> set[str]:
        """Load the consumed batches again; return the used generators that may have chosen the samples."""
        if rank_position is not None and "start" in rank_position:
            start = rank_position["start"]
            randomness.restore(start, self._devices)
            restore_generators(self._loader, start["generators"])
            epoch_state.load_own_states(self._loader, start.get("own", []))
            self._start = start
        else:
            self._mark_start()
        first = self._start.get("first")
        self._iterator = self._open()
        begun: dict[str, Any] | None = None
        for index in range(self._batch):
            # Load the consumed batches, because datasets may have a state that depends on this.
            batch = next(self._iterator, self)
            if index == 0 and batch is not self:
                self._start["first"] = epoch_state.fingerprint(batch)
                epoch_state.warn_of_other_batches(self._loader, first, self._start["first"])
            if batch is self:
                raise SessionError(
                    f"the loader ended after {index} batches of epoch {self.epoch}, but {self._batch} were"
                    " consumed before the checkpoint: is it the same dataset?"
                )
            if begun is None:  # torch's samplers draw with the first batch, if at all
                begun = randomness.capture(self._devices)
        if begun is None or not sample_order.may_draw(self._loader):
            return set()
        return {*randomness.drawn_since(begun, self._devices)}

    def _warn_of_draws(self, names: set[str]) -> None:
        if names and self._rank == 0:
            _log.warning(
                "the resumed batches may differ from those of an uninterrupted run: loading the data and the"
                " training both draw from %s generator; give the data a generator of its own",
                " and ".join(sorted(names)),
            )

    def _mark_start(self) -> None:
        self._start = randomness.capture(self._devices)
        self._start["generators"] = generator_states(self._loader)
        self._start["own"] = [] if self._stateful else epoch_state.own_states(self._loader)

    def _open(self) -> Iterator[Any]:
        set_epoch(self._loader, self.epoch)
        self._length = _length(self._loader)  # it may differ from epoch to epoch
        self._kept_workers = self._share is None and sample_order.keeps_workers(self._loader)
        if self._share is not None:
            return iter(self._share)
        self._own_order = own_order(self._loader)
        self._order = sample_order.find_order(self._loader, world_size=self._world_size)
        return iter(self._loader)


class _Place:
    """A tracked loader's position, whose state is read only when it is needed or is about to change."""

    def __init__(self, loader: ResumedLoader) -> None:
        self._loader = loader
        self._num_uses = loader.num_uses
        self._noted: Noted | None = None

    def note(self) -> None:
        """Read the state now, because the loader is about to be used."""
        self._noted = Noted(self._loader.state_dict())

    def __call__(self) -> Any:
        """Return the loader's state.

        Raises:
            SessionError: the loader was used since then, and its state may not be read at each step.
        """
        state = self._loader.state_dict() if self._noted is None else None
        if self._noted is not None:
            return self._noted.state()
        if self._loader.num_uses != self._num_uses:
            raise SessionError("a batch was fetched from run.dataloader")
        return state


class ResumedLoader:
    """A tracked loader for loops over steps; after a resume, its first ``iter`` draws no random numbers."""

    def __init__(
        self,
        loader: Any,
        *,
        resumed: bool,
        restored_generators: Any,
        devices: tuple[int, ...],
        on_iter: Callable[[], None],
    ) -> None:
        """Call ``on_iter`` after each ``iter``. ``generator_states`` returned ``restored_generators``."""
        self._loader = loader
        self._resumed = resumed
        self._restored_generators = restored_generators
        self._devices = devices
        self._on_iter = on_iter
        self.has_fetched = False
        """Whether a batch has been fetched."""
        self.num_uses = 0
        """The number of times that the loader was iterated or a batch was fetched from it."""
        self.num_batches = 0
        self.own_order = own_order(loader)
        """Why other ranks cannot compute which batches of an epoch come next on this rank, or None."""
        self._per_step = 0.0
        self._place: _Place | None = None

    def state_dict(self) -> Any:
        """Return the loader's state now."""
        return self._loader.state_dict()

    def place(self, num_steps: int) -> Callable[[], Any]:
        """Return a callable that returns the loader's state at this moment, after ``num_steps`` steps.

        The callable can also be called later.
        """
        if num_steps > 0:
            self._per_step = self._per_step or self.num_batches / num_steps
            if self.num_batches != self._per_step * num_steps:
                self.own_order = "its steps did not fetch the same number of batches each"
        if self._place is None:
            self._place = _Place(self)
        return self._place

    def use(self) -> None:
        """Record that the loader is about to be iterated, or a batch to be fetched."""
        place, self._place = self._place, None
        # Do not read it earlier: reading the state of a loader that was never iterated draws random numbers.
        if place is not None and self.has_fetched and is_of_torchdata(self._loader):
            place.note()
        self.num_uses += 1

    def __iter__(self) -> Iterator[Any]:
        self.use()
        try:
            return _Fetches(self, self._iterate())
        finally:
            self._on_iter()

    def _iterate(self) -> Iterator[Any]:
        if not self._resumed:
            return iter(self._loader)
        # The run that saved had already made this call, so the restored generators include its draw.
        self._resumed = False
        state = randomness.capture(self._devices)
        try:
            return iter(self._loader)
        finally:
            randomness.restore(state, self._devices)
            if self._restored_generators is not None:
                restore_generators(self._loader, self._restored_generators)

    def __len__(self) -> int:
        return len(self._loader)


class _Fetches:
    def __init__(self, loader: ResumedLoader, batches: Iterator[Any]) -> None:
        self._loader = loader
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._loader.use()
        self._loader.has_fetched = True
        batch = next(self._batches)
        self._loader.num_batches += 1
        return batch


def is_of_torchdata(loader: Any) -> bool:
    """Return whether a loader is one of torchdata's, which save the states of their dataset and samplers."""
    return any(kind.__module__.startswith("torchdata.") for kind in type(loader).__mro__)


def own_order(loader: Any, *, seeds: Collection[int] = ()) -> str | None:
    """Return the result of ``sample_order.own_order``, or a reason if only the loader knows its position."""
    if is_stateful(loader) and not (isinstance(loader, ReplayedLoader) or is_of_torchdata(loader)):
        return f"only the {type(loader).__name__} itself knows its position"
    return sample_order.own_order(loader, seeds=seeds)


def is_stateful(loader: Any) -> bool:
    """Return whether a loader can save and load its own position."""
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _length(loader: Any) -> int | None:
    dataset = getattr(loader, "dataset", loader)
    if isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__"):
        return None  # an iterable dataset's length is a guess
    try:
        return len(loader)
    except TypeError:
        return None
