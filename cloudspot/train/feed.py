"""A loader's batches, epoch after epoch, from a place that a checkpoint remembers (P6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from cloudspot.train import randomness
from cloudspot.train.errors import SessionError


class Feed:
    """Iterates a loader for a number of epochs, and can go on where another one stood."""

    def __init__(self, loader: Any, *, epochs: int, world_size: int, devices: tuple[int, ...] = ()) -> None:
        """Begin at the first batch of the first epoch.

        Args:
            loader: A DataLoader, a StatefulDataLoader or any iterable that can be iterated again.
            epochs: How often to iterate it.
            world_size: How many ranks take batches of the same size from their shares of the data.
            devices: The CUDA devices that this rank uses.
        """
        self._loader = loader
        self._epochs = epochs
        self._world_size = world_size
        self._devices = devices
        self._length = _length(loader)
        self._stateful = is_stateful(loader)
        self._iterator: Iterator[Any] | None = None
        self._start: dict[str, Any] | None = None
        self._peeked: tuple[Any] | None = None
        self.epoch = 0
        self._batch = 0

    @property
    def batches_left(self) -> int | None:
        """How many batches are still to come, or None when the loader does not know its length."""
        if self._length is None:
            return None
        return max(0, (self._epochs - self.epoch) * self._length - self._batch)

    def fetch(self) -> tuple[Any] | None:
        """Return the next batch in a tuple, or None after the last epoch."""
        while self.epoch < self._epochs:
            if self._iterator is None:
                self._start = randomness.capture(self._devices)
                self._start["generators"] = self._generators()
                self._iterator = self._open()
            if self._peek():
                batch, self._peeked = self._peeked, None
                self._batch += 1
                return batch
        return None

    def close(self) -> None:
        """Let go of the iterator, and so of its worker processes, at the end of the loop."""
        self._iterator = None

    def take(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the position of all ranks, and what this rank alone needs to stand there again.

        Both hold what a checkpoint can hold. Capture the random generators before, as this may fetch
        the next batch. ``samples`` are those of this epoch that all ranks together took.
        """
        rank_position: dict[str, Any] = {"generators": self._generators()}
        epoch, batch = self.epoch, self._batch
        if self._length is not None and batch >= self._length:
            epoch, batch = epoch + 1, 0
        if batch > 0:
            own = {"loader": self._loader.state_dict()} if self._stateful else {"start": self._start}
            # Only the next batch tells whether a loader of unknown length is at its end.
            if self._length is None and not self._peek():
                epoch, batch = self.epoch, self._batch
            else:
                rank_position.update(own)
        batch_size = getattr(self._loader, "batch_size", None)
        samples = batch * batch_size * self._world_size if isinstance(batch_size, int) else None
        return {"epoch": epoch, "batch": batch, "samples": samples}, rank_position

    def _peek(self) -> bool:
        """Have the next batch of the epoch at hand; otherwise step to the next epoch and return False."""
        if self._peeked is None and self._iterator is not None:
            for batch in self._iterator:
                self._peeked = (batch,)
                break
            else:
                self._iterator = None
                self.epoch += 1
                self._batch = 0
        return self._peeked is not None

    def resume(
        self, position: dict[str, Any], rank_position: dict[str, Any] | None, *, world_size: int
    ) -> None:
        """Go on from a position; it draws random numbers, so the caller restores the generators after it.

        Args:
            position: Of the world that saved.
            rank_position: This rank's; None in a world of another size.
            world_size: Of the world that saved.
        """
        self.epoch = position["epoch"]
        self._batch = self._translate(position, world_size)
        if self._batch > 0 and self.epoch < self._epochs:
            if rank_position is not None and "loader" in rank_position:
                self._restart_stateful(rank_position)
            else:
                self._replay(rank_position)
        if rank_position is not None:
            self._set_generators(rank_position["generators"])

    def _translate(self, position: dict[str, Any], world_size: int) -> int:
        batch, samples = int(position["batch"]), position["samples"]
        if world_size == self._world_size:
            return batch
        batch_size = getattr(self._loader, "batch_size", None)
        if isinstance(samples, int) and isinstance(batch_size, int):
            # Rounded down: some samples may come twice in this epoch, none is left out.
            return samples // (batch_size * self._world_size)
        return batch * world_size // self._world_size

    def _restart_stateful(self, rank_position: dict[str, Any]) -> None:
        if not self._stateful:
            raise SessionError(
                "the checkpoint was saved with a loader that has a state_dict, and"
                f" {type(self._loader).__name__} has none: use the same loader"
            )
        self._loader.load_state_dict(rank_position["loader"])
        self._iterator = self._open()

    def _replay(self, rank_position: dict[str, Any] | None) -> None:
        if rank_position is not None and "start" in rank_position:
            start = rank_position["start"]
            randomness.restore(start, self._devices)
            self._set_generators(start["generators"])
            self._start = start
        else:
            self._start = randomness.capture(self._devices)
            self._start["generators"] = self._generators()
        self._iterator = self._open()
        for index in range(self._batch):
            # Loads what was consumed, so that a dataset with a state of its own comes along. A
            # StatefulDataLoader gets there without.
            if next(self._iterator, self) is self:
                raise SessionError(
                    f"the loader ended after {index} batches of epoch {self.epoch}, of which {self._batch}"
                    " were consumed before the checkpoint: is it the same dataset?"
                )

    def _open(self) -> Iterator[Any]:
        for name in ("sampler", "batch_sampler"):
            set_epoch = getattr(getattr(self._loader, name, None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(self.epoch)
        return iter(self._loader)

    def _owned_generators(self) -> list[Any]:
        sampler = getattr(self._loader, "sampler", None)
        batch_sampler = getattr(self._loader, "batch_sampler", None)
        owners = (self._loader, sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
        found: dict[int, Any] = {}
        for owner in owners:
            generator = getattr(owner, "generator", None)
            if hasattr(generator, "get_state"):
                found[id(generator)] = generator
        return list(found.values())

    def _generators(self) -> list[Any]:
        return [generator.get_state() for generator in self._owned_generators()]

    def _set_generators(self, states: list[Any]) -> None:
        for generator, state in zip(self._owned_generators(), states, strict=True):
            generator.set_state(state)


class ResumedLoader:
    """A tracked loader for loops over steps: the first ``iter`` of a resumed one draws no random numbers."""

    def __init__(self, loader: Any, *, resumed: bool, devices: tuple[int, ...]) -> None:
        self._loader = loader
        self._resumed = resumed
        self._devices = devices

    def __iter__(self) -> Iterator[Any]:
        if not self._resumed:
            return iter(self._loader)
        # The run that saved was past this call, so its draw is not part of the training any more.
        self._resumed = False
        state = randomness.capture(self._devices)
        try:
            return iter(self._loader)
        finally:
            randomness.restore(state, self._devices)

    def __len__(self) -> int:
        return len(self._loader)


def is_stateful(loader: Any) -> bool:
    """Say whether a loader can save and load its own position."""
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _length(loader: Any) -> int | None:
    dataset = getattr(loader, "dataset", loader)
    if isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__"):
        return None  # such a length is a guess
    try:
        return len(loader)
    except TypeError:
        return None
