"""The session: the loop of one training, which is saved at agreed boundaries and resumed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from cloudspot.train import handoff
from cloudspot.train.data import sample_order
from cloudspot.train.data.replayed_loader import generator_states
from cloudspot.train.data.resumable_batches import ResumableBatches, ResumedLoader, is_stateful
from cloudspot.train.distributed import World
from cloudspot.train.errors import SessionError
from cloudspot.train.sessions import sigterm
from cloudspot.train.sessions.loop_exit import LoopExit
from cloudspot.train.sessions.restored_state import RestoredState
from cloudspot.train.sessions.service import Service
from cloudspot.train.sessions.training_loop import TrainingLoop
from cloudspot.train.state import checkpoint, randomness
from cloudspot.train.state.boundary_marks import Description
from cloudspot.train.state.checkpoint import Checkpoint

_log = logging.getLogger("cloudspot")


class Session:
    """A training's loop and its state; created by ``cloudspot.train.session()``.

    A session drives one loop, once: ``steps``, ``batches`` or ``epochs``.
    """

    def __init__(
        self, objects: Mapping[str, Any], *, dataloader: Any, world: World, restored: Checkpoint | None
    ) -> None:
        self._objects = objects
        self._world = world
        self._restored = None if restored is None else RestoredState(restored, objects, world=world)
        self._seed = torch.initial_seed() if self._restored is None else self._restored.seed
        self._start = 0 if self._restored is None else self._restored.step
        self._loop = TrainingLoop(objects, rank=world.rank, start=self._start)
        self._feed: ResumableBatches | None = None
        self._epochs: _Epochs | None = None
        self._devices = checkpoint.cuda_devices(checkpoint.take(objects).tensors)
        self._tracked_loader = dataloader
        self._random_at_open: dict[str, Any] | None = None
        self._has_warned = False
        self._loader = self._resume_loader(dataloader)

    # --- for the script -------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's rank among all ranks of the job."""
        return self._world.rank

    @property
    def world_size(self) -> int:
        """The number of ranks that train together."""
        return self._world.world_size

    @property
    def step(self) -> int:
        """The current step, from 0; before the loop, the step to resume at; after it, the number of steps."""
        return self._loop.step

    @property
    def epoch(self) -> int:
        """The current epoch in ``epochs`` or ``batches``, from 0."""
        if self._epochs is not None:
            return self._epochs.number
        return 0 if self._feed is None else self._feed.epoch

    @property
    def resumed(self) -> bool:
        """Whether this session resumes from a checkpoint."""
        return self._restored is not None

    @property
    def artifacts(self) -> Path:
        """A directory whose files are copied to the job's store. Without cloudspot, it is ``artifacts``."""
        path = Path(os.environ.get(handoff.ARTIFACTS) or "artifacts")
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def _service(self) -> Service | None:
        return self._loop.service

    @property
    def dataloader(self) -> ResumedLoader:
        """The tracked loader; loops over ``steps`` must iterate this one.

        Raises:
            SessionError: ``session()`` did not get a loader that knows its position.
        """
        if self._loader is None:
            raise SessionError(
                "a loop over steps needs session(dataloader=...) with a loader that has a state_dict, such as"
                " torchdata's StatefulDataLoader; or loop over run.batches(loader)"
            )
        return self._loader

    def draining(self) -> bool:
        """Return whether this rank has been asked to save and leave.

        Ranks learn this at different times, so use it only in loops in which ranks do not wait for each
        other.
        """
        return self._service is not None and self._service.is_draining

    def check(self) -> None:
        """Leave now if this rank must leave; for slow code between two steps, such as an evaluation.

        Call this often in such code, on each rank that runs the code. All ranks save the state at the last
        boundary between two steps, and SystemExit is raised. A resumed script runs the code after that
        boundary from the beginning. If the tracked objects have changed since that boundary, or if this is
        called outside the loop, no state is saved and this returns: the loop ends at the next boundary.
        """
        self._loop.check()

    def log(self, **values: float) -> None:
        """Record metrics of the current step. Only the metrics of rank 0 are shown and kept."""
        metrics = {name: float(value) for name, value in values.items()}
        if self._service is not None:
            self._service.log(self.step, metrics)

    # --- the loop -------------------------------------------------------------------------------

    def steps(self, total: int | None) -> Iterator[int]:
        """Yield the steps from the restored one, or 0, to ``total`` (exclusive).

        All ranks must pass the same ``total``. If it is None, the loop continues until the script leaves it.

        The training may be saved between two steps, but not while a tracked optimizer has gradients that it
        has not used yet. When this rank must leave, SystemExit is raised there, and code after the loop
        does not run. The state after the last step is always saved. A script may leave the loop early if all
        ranks do so after the same step: the state at that step is then the last one, and code after the loop
        runs.
        """
        if self._tracked_loader is not None and self._loader is None:
            _ = self.dataloader  # raises the error
        self._open_loop()
        loop = self._loop
        if self._restored is not None:
            self._restored.check_steps()
        self._restore_randomness()
        loop.progress[1] = -1 if total is None else total
        if not self._begin_loop(total or 0):
            with LoopExit(loop.leave):
                for step in count(loop.step) if total is None else range(loop.step, total):
                    loop.begin_step(step)
                    loop.progress[2] = step + 1
                    yield step
            loop.end_step(None if total is None else max(total, self._start))
        loop.end()

    def batches(self, loader: Any, *, epochs: int = 1) -> Iterator[Any]:
        """Yield the batches of a loader for a number of epochs; each batch is a step.

        If the loader's sampler has ``set_epoch``, that method is called for each epoch. A resumed session
        continues with the next batch of the epoch in which it was saved. The training is saved and left in
        the same way as in ``steps``. In a loop over ``epochs``, these are the batches of the current epoch.

        With a different number of ranks, the rest of that epoch's samples is divided anew in the epoch's
        order: no sample is skipped or used twice. As at the end of any epoch, samples that cannot be divided
        evenly are dropped with ``drop_last``; otherwise, the epoch's first samples are added to complete the
        shares. From the next epoch on, the loader is iterated as usual. This needs a plain DataLoader of a
        map-style dataset with a ``batch_size``. Its sampler must be a DistributedSampler over all ranks or,
        with one rank, the sampler that ``shuffle`` creates. With any other loader (other samplers, a
        ``batch_sampler``, iterable datasets, StatefulDataLoader), the epoch continues at a whole batch: some
        of its samples may be used twice, and a warning is logged.
        """
        if self._tracked_loader is not None and self._tracked_loader is not loader:
            raise SessionError(
                "run.batches() and session(dataloader=...) got different loaders: pass the same loader to "
                "both"
            )
        if self._epochs is not None:
            return self._batches_of_epoch(loader, self._epochs, epochs=epochs)
        return self._batches(loader, epochs=epochs)

    def _batches(self, loader: Any, *, epochs: int) -> Iterator[Any]:
        self._open_loop()
        feed = self._feed = self._feed_of(loader, epochs=epochs)
        if self._restored is not None:
            self._restored.resume_feed(feed)
        self._restore_randomness()
        if feed.batches_left is not None:
            self._loop.progress[1] = self.step + feed.batches_left
        if not self._begin_loop(epochs):
            with LoopExit(self._loop.leave):
                yield from self._steps_of(feed)
        feed.close()
        self._loop.end()

    def _steps_of(self, feed: ResumableBatches) -> Iterator[Any]:
        """Make one step of each remaining batch."""
        loop = self._loop
        step = loop.step
        while feed.has_next():
            loop.begin_step(step)
            batch = feed.fetch()
            if batch is None:
                break
            loop.progress[2] = step + 1
            yield batch[0]
            step += 1
        loop.end_step(step)

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the epochs from the restored one, or 0, to ``total`` (exclusive).

        All ranks must pass the same ``total``. Loop over ``run.batches(loader)`` once in each epoch; other
        code may run before and after that loop. The training is saved and left in the same way as in
        ``steps``, and may also be saved between the last batch and the code after it. A resumed session
        begins its current epoch again, and continues with the next batch, if there is one. If it was saved
        between the last batch and the code after it, that code runs again.
        """
        self._open_loop()
        loop, first = self._loop, 0
        if self._restored is not None:
            position = self._restored.position()
            # If the epoch was saved after its last batch, the code after the batches has not run.
            first = position["epoch"] - (1 if position["ended"] else 0)
        self._epochs = epochs = _Epochs(first, total, is_resuming=self._restored is not None)
        self._restore_randomness("epoch_random")
        if not self._begin_loop(total):
            with LoopExit(loop.leave):
                while epochs.number < total:
                    if self._service is not None:
                        epochs.random = randomness.capture(self._devices)
                    loop.has_worked = True
                    epochs.schedule = self._schedule(has_rates=epochs.is_resuming)
                    yield epochs.number
                    if not epochs.has_batches:
                        raise SessionError("an epoch of run.epochs() had no loop over run.batches()")
                    self._end_batches()
                    epochs.number += 1
                    epochs.has_batches = epochs.is_resuming = False
        loop.end()

    def _batches_of_epoch(self, loader: Any, epochs_loop: _Epochs, *, epochs: int) -> Iterator[Any]:
        if epochs != 1:
            raise SessionError(
                f"run.batches() got epochs={epochs} in a loop over run.epochs(), where it yields one epoch:"
                " leave out epochs="
            )
        if epochs_loop.has_batches:
            raise SessionError(
                f"run.batches() was called twice in epoch {epochs_loop.number} of run.epochs(): loop over it"
                " once in each epoch"
            )
        epochs_loop.has_batches = True
        self._warn_of_schedule(epochs_loop)
        epoch = epochs_loop.number
        feed = self._feed
        if feed is None or not feed.extend(loader, first=epoch, epochs=epoch + 1):
            feed = self._feed = self._feed_of(loader, epochs=epoch + 1, first=epoch)
        if epochs_loop.is_resuming and self._restored is not None:
            self._restored.resume_feed(feed)
            self._restore_randomness()
        loop = self._loop
        if feed.batches_left is not None and feed.length is not None:
            later = (epochs_loop.total - epoch - 1) * feed.length
            loop.progress[1] = loop.step + feed.batches_left + later
        try:
            yield from self._steps_of(feed)
        finally:
            self._end_batches()
        loop.progress[0] = loop.step
        if self._service is not None and loop.is_at_boundary:
            # This boundary is only for leaving: an interval save is just as useful at the next step. If this
            # was the loop's last step, the state after the loop needs its own name.
            epochs_loop.has_ended_batches = True
            self._service.pass_boundary(loop.step, is_end_of_epoch=True)
            epochs_loop.has_ended_batches = False

    def _schedule(self, *, has_rates: bool) -> list[Any]:
        """Return the positions of the tracked schedulers and, if ``has_rates``, the learning rates."""
        moments = [getattr(each, "last_epoch", None) for each in self._objects.values()]
        if not has_rates:
            return moments
        rates = [group.get("lr") for each in self._objects.values() for group in _groups(each)]
        return [*moments, *(rate.tolist() if isinstance(rate, torch.Tensor) else rate for rate in rates)]

    def _warn_of_schedule(self, epochs: _Epochs) -> None:
        """Warn if repeating the code before an epoch's batches would change the learning rates again."""
        # A rate that depends only on the epoch is the same when that code runs again.
        now = self._schedule(has_rates=epochs.is_resuming)
        if epochs.schedule == now or self._has_warned or self._service is None or self._world.rank != 0:
            return
        self._has_warned = True
        _log.warning(
            "the code before the batches of run.epochs() changes learning rates or schedulers: it runs again"
            " when an epoch is resumed, and they then differ from the checkpoint's; do that after the batches"
        )

    def _end_batches(self) -> None:
        """End the epoch's batches, which the script may have left before the last one."""
        self._loop.end_step()
        if self._feed is not None:
            self._feed.end_epoch()

    def _open_loop(self) -> None:
        """Record that the script begins its loop; warn of earlier actions that a resumed run would repeat."""
        self._loop.open()
        if self._random_at_open is None or self._world.rank != 0:
            return
        if self._loader is not None and self._loader.has_fetched:
            _log.warning(
                "a batch was fetched from run.dataloader before the loop: a resumed run fetches another batch"
                " there, so the loop's batches come at other steps; fetch it inside the loop"
            )
        drawn = randomness.drawn_since(self._random_at_open, self._devices)
        if drawn:
            _log.warning(
                "random numbers were drawn from %s generator between session() and the loop: a resumed run"
                " draws the same ones as at step 0; move code that the loop repeats, such as fetching a first"
                " batch, into the loop",
                " and ".join(drawn),
            )

    def _begin_loop(self, length: int) -> bool:
        return self._loop.begin(length, left=None if self._restored is None else self._restored.left)

    def _describe(self) -> Description:
        """Return the description that a save at this boundary stores in addition to the objects' state."""
        rank_state: dict[str, Any] = {"random": randomness.capture(self._devices)}
        position = None
        if self._feed is not None:
            position, rank_state["feed"] = self._feed.take()
            rank_state["random"] = self._feed.random or rank_state["random"]
        if self._epochs is not None and position is not None:
            position["ended"] = self._epochs.has_ended_batches
            rank_state["epoch_random"] = self._epochs.random
        shared = {"seed": self._seed, "position": position, "left": self._loop.left}
        if self._feed is not None or self._loader is None:
            has_workers = self._feed is not None and self._feed.has_workers
            own = None if self._feed is None else self._feed.own_order
            rank_state["is_common"] = self._feed is None or self._feed.is_common
            return Description(shared, rank_state, draws_unseen=has_workers or own is not None, own_place=own)
        if getattr(self._tracked_loader, "is_framework", False):
            # When an evaluation saves, another framework's loop has moved on, so read its position now.
            rank_state["dataloader"] = self._tracked_loader.state_dict()
            own = self._tracked_loader.own_order
            rank_state["is_common"] = own is None
            return Description(shared, rank_state, draws_unseen=True, own_place=own)
        rank_state["loader_generators"] = generator_states(self._tracked_loader)
        place = self._loader.place(self.step - self._start)
        own = self._loader.own_order
        rank_state["is_common"] = own is None
        return Description(shared, rank_state, place, draws_unseen=True, own_place=own)

    def begin_again(self) -> bool:
        """Let a framework begin a loop in place of one that failed; return whether that is possible.

        It is possible if the session was not resumed and no step was made; otherwise, checkpoints may belong
        to the failed loop.
        """
        return self._restored is None and self._loop.begin_again()

    # --- resuming -------------------------------------------------------------------------------

    def _resume_loader(self, loader: Any) -> ResumedLoader | None:
        if loader is None or not is_stateful(loader):
            return None
        state = None if self._restored is None else self._restored.loader_state
        if state is not None:
            if getattr(loader, "num_workers", 0):
                sample_order.warn_of_workers(sample_order.STATEFUL_WORKERS, rank=self._world.rank)
            loader.load_state_dict(state)
        generators = None if self._restored is None else self._restored.loader_generators
        return ResumedLoader(
            loader,
            resumed=state is not None,
            restored_generators=generators,
            devices=self._devices,
            on_iter=self._watch_randomness,
        )

    def _feed_of(self, loader: Any, *, epochs: int, first: int = 0) -> ResumableBatches:
        world = self._world
        return ResumableBatches(
            loader,
            epochs=epochs,
            first=first,
            world_size=world.world_size,
            rank=world.rank,
            devices=self._devices,
        )

    def _restore_randomness(self, moment: str = "random") -> None:
        if self._restored is not None:
            self._restored.restore_randomness(self._devices, moment)

    def _watch_randomness(self) -> None:
        """From now until the loop begins, detect whether random numbers are drawn."""
        if self._service is not None and not self._loop.has_begun:
            self._random_at_open = randomness.capture(self._devices)

    # --- with an agent --------------------------------------------------------------------------

    def connect(self, directory: Path) -> None:
        """Start serving the agent with this hand-off directory; called when the session is opened."""
        sigterm.watch()
        world, objects = self._world, self._objects
        self._loop.serve(
            Service(directory, world=world, objects=objects, start=self._start, describe=self._describe)
        )
        self._watch_randomness()

    def close(self) -> None:
        """Stop serving the agent; called when the process ends."""
        self._loop.close()


def _groups(tracked: Any) -> Sequence[Mapping[str, Any]]:
    return tracked.param_groups if isinstance(tracked, torch.optim.Optimizer) else ()


@dataclass
class _Epochs:
    """The position of a loop over ``epochs``."""

    number: int
    total: int
    is_resuming: bool
    """Whether this is the epoch in which the checkpoint was saved."""
    has_batches: bool = False
    """Whether the script has begun its loop over the epoch's batches."""
    has_ended_batches: bool = False
    """Whether the loop is between the last batch and the code that follows it."""
    random: dict[str, Any] | None = None
    """The state of the random generators at the beginning of the epoch."""
    schedule: list[Any] | None = None
    """The schedulers' positions at the beginning of the epoch and, in a resumed epoch, the learning rates."""
