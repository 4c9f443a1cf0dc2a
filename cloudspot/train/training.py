"""The session: one training's loop, tracked, saved at agreed boundaries and resumed."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from array import array
from collections.abc import Iterator, Mapping, MutableSequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cloudspot.train import checkpoint, handoff, randomness, sigterm
from cloudspot.train.checkpoint import Checkpoint
from cloudspot.train.distributed import World, current_world
from cloudspot.train.errors import CheckpointError, SessionError
from cloudspot.train.loop_exit import LoopExit
from cloudspot.train.pending_gradients import PendingGradients
from cloudspot.train.resumable_batches import Feed, ResumedLoader, is_stateful
from cloudspot.train.service import Service
from cloudspot.train.tree import Json, flatten, rebuild
from cloudspot.train.uncaught_errors import tell_of_errors

_log = logging.getLogger("cloudspot")


class Session:
    """A training's loop and its state; made by ``cloudspot.train.session()``.

    One session drives one loop: ``steps``, ``batches`` or ``epochs``, once.
    """

    def __init__(
        self, objects: Mapping[str, Any], *, dataloader: Any, world: World, restored: Checkpoint | None
    ) -> None:
        self._objects = objects
        self._world = world
        self._seed = torch.initial_seed()
        self._step = 0
        self._start = 0
        self._restored = restored
        self._rank_state: dict[str, Any] = {}
        self._feed: Feed | None = None
        self._service: Service | None = None
        self._gradients = PendingGradients(objects, rank=world.rank)
        self._has_begun_loop = False
        self._is_in_loop = False
        self._is_in_step = False
        self._is_at_boundary = True
        self._length = 0
        self._has_worked = False
        self._left: dict[str, Json] | None = None
        self._epochs: _Epochs | None = None
        if restored is not None:
            self._load(restored)
        self._devices = checkpoint.cuda_devices(checkpoint.take(objects).tensors)
        self._tracked_loader = dataloader
        self._random_at_open: dict[str, Any] | None = None
        self._loader = self._resume_loader(dataloader)

    # --- what a script asks ---------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's rank among all of the job's."""
        return self._world.rank

    @property
    def world_size(self) -> int:
        """How many ranks train together."""
        return self._world.world_size

    @property
    def step(self) -> int:
        """The current step, from 0; before the loop the step to resume at, after it how many were made."""
        return self._step

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
        """A directory whose files are copied to the job's store; ``artifacts`` without cloudspot."""
        path = Path(os.environ.get(handoff.ARTIFACTS) or "artifacts")
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def dataloader(self) -> ResumedLoader:
        """The tracked loader; iterate this one in loops over ``steps``.

        Raises:
            SessionError: ``session()`` was not given a loader that knows its position.
        """
        if self._loader is None:
            raise SessionError(
                "a loop over steps needs session(dataloader=...) with a loader that has a state_dict, such as"
                " torchdata's StatefulDataLoader; or loop over run.batches(loader)"
            )
        return self._loader

    def draining(self) -> bool:
        """Return whether this rank has been asked to save and leave.

        Ranks learn it at different moments: use it only in loops in which they do not wait for each other.
        """
        return self._service is not None and self._service.is_draining

    def log(self, **values: float) -> None:
        """Record metrics of the current step; rank 0's are shown and kept."""
        metrics = {name: float(value) for name, value in values.items()}
        if self._service is not None:
            self._service.log(self._step, metrics)

    # --- the loop -------------------------------------------------------------------------------

    def steps(self, total: int) -> Iterator[int]:
        """Yield the steps from the restored one (else 0) to ``total``, exclusive; all ranks pass the same.

        The training may be saved between two steps, but not while a tracked optimizer has gradients that it
        has yet to use. When the machine has to go, SystemExit is raised there, and code after the loop does
        not run. The state after the last step is always saved. A script may leave the loop early, all ranks
        after the same step: the state there is then the last one, and code after the loop runs.
        """
        if self._tracked_loader is not None and self._loader is None:
            _ = self.dataloader  # raises the error
        self._begin_loop()
        if self._restored is not None and self._restored.position is not None:
            raise SessionError("the checkpoint was saved in a loop over run.batches(): use that again")
        self._restore_randomness()
        progress = self._progress()
        progress[1] = total
        if not self._begin(total):
            with LoopExit(self._leave):
                for step in range(self._step, total):
                    self._begin_step(step, progress)
                    progress[2] = step + 1
                    yield step
            self._end_step(max(total, self._start))
        self._end_loop()

    def batches(self, loader: Any, *, epochs: int = 1) -> Iterator[Any]:
        """Yield the batches of a loader for a number of epochs; each batch is a step.

        Calls ``loader.sampler.set_epoch`` where there is one. A resumed session continues with the next
        batch of the epoch in which it was saved. Saves and leaving are as for ``steps``. In a loop over
        ``epochs``, these are the batches of the current epoch.

        With another number of ranks, the rest of that epoch's samples is divided anew in the epoch's
        order: none is skipped and none comes twice. As at the end of any epoch, samples that cannot be
        divided evenly are filled up with the epoch's first ones, or dropped with ``drop_last``. From the
        next epoch on the loader is iterated as it is. This needs a plain DataLoader of a map-style
        dataset with a ``batch_size``, whose sampler is a DistributedSampler over all ranks or, with one
        rank, the one that ``shuffle`` makes. With any other loader (other samplers, a ``batch_sampler``,
        iterable datasets, StatefulDataLoader) the epoch continues at a whole batch: some of its samples
        may come twice, and a warning says so.
        """
        if self._tracked_loader is not None and self._tracked_loader is not loader:
            raise SessionError(
                "run.batches() got another loader than session(dataloader=...): pass the same one to both"
            )
        if self._epochs is not None:
            return self._batches_of_epoch(loader, self._epochs, epochs=epochs)
        return self._batches(loader, epochs=epochs)

    def _batches(self, loader: Any, *, epochs: int) -> Iterator[Any]:
        self._begin_loop()
        feed = self._feed = self._feed_of(loader, epochs=epochs)
        if self._restored is not None:
            self._resume_feed(feed, self._restored)
        self._restore_randomness()
        progress = self._progress()
        if feed.batches_left is not None:
            progress[1] = self._step + feed.batches_left
        if not self._begin(epochs):
            with LoopExit(self._leave):
                yield from self._steps_of(feed, progress)
        feed.close()
        self._end_loop()

    def _steps_of(self, feed: Feed, progress: MutableSequence[int]) -> Iterator[Any]:
        """Make a step of each batch that is left."""
        step = self._step
        while feed.has_next():
            self._begin_step(step, progress)
            batch = feed.fetch()
            if batch is None:
                break
            progress[2] = step + 1
            yield batch[0]
            step += 1
        self._end_step(step)

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the epochs from the restored one (else 0) to ``total``, exclusive; all ranks pass the same.

        Loop over ``run.batches(loader)`` once in each; before and after that loop there may be code of the
        epoch's own. Saves and leaving are as for ``steps``, and the training may also be saved between the
        last batch and the code after it. A resumed session begins the epoch in which it was saved again,
        continues with the next batch, if there is one, and runs the code after the batches again if it was
        saved there.
        """
        self._begin_loop()
        first = 0
        if self._restored is not None:
            position = self._position_of(self._restored)
            # Saved after the last batch of an epoch, the code that comes then has not run.
            first = position["epoch"] - (1 if position["ended"] else 0)
        self._epochs = epochs = _Epochs(first, total, is_resuming=self._restored is not None)
        self._restore_randomness("epoch_random")
        if not self._begin(total):
            with LoopExit(self._leave):
                while epochs.number < total:
                    if self._service is not None:
                        epochs.random = randomness.capture(self._devices)
                    self._has_worked = True
                    yield epochs.number
                    if not epochs.has_batches:
                        raise SessionError("an epoch of run.epochs() had no loop over run.batches()")
                    self._end_batches()
                    epochs.number += 1
                    epochs.has_batches = epochs.is_resuming = False
        self._end_loop()

    def _batches_of_epoch(self, loader: Any, epochs_loop: _Epochs, *, epochs: int) -> Iterator[Any]:
        if epochs != 1:
            raise SessionError("in a loop over run.epochs(), run.batches() is one epoch: leave out epochs=")
        if epochs_loop.has_batches:
            raise SessionError("run.batches() can be looped over once in each epoch of run.epochs()")
        epochs_loop.has_batches = True
        epoch = epochs_loop.number
        feed = self._feed = self._feed_of(loader, epochs=epoch + 1, first=epoch)
        if epochs_loop.is_resuming and self._restored is not None:
            self._resume_feed(feed, self._restored)
            self._restore_randomness()
        progress = self._progress()
        if feed.batches_left is not None and feed.length is not None:
            progress[1] = self._step + feed.batches_left + (epochs_loop.total - epoch - 1) * feed.length
        try:
            yield from self._steps_of(feed, progress)
        finally:
            self._end_batches()
        progress[0] = self._step
        if self._service is not None and self._is_at_boundary:
            # Only to leave: an interval save is worth as much at the next step, and the state after the loop,
            # of which this may be the last step, needs a name of its own.
            epochs_loop.has_ended_batches = True
            self._service.pass_boundary(self._step, may_save=False)
            epochs_loop.has_ended_batches = False

    def _begin_loop(self) -> None:
        if self._has_begun_loop:
            raise SessionError("the session's loop has begun already: one session drives one loop, once")
        self._has_begun_loop = True
        if self._random_at_open is None or self._world.rank != 0:
            return
        if self._loader is not None and self._loader.has_fetched:
            _log.warning(
                "a batch was fetched from run.dataloader before the loop: a resumed run fetches another one"
                " there, so the loop's batches come at other steps; fetch it inside the loop"
            )
        drawn = randomness.drawn_since(self._random_at_open, self._devices)
        if drawn:
            _log.warning(
                "random numbers were drawn from %s generator between session() and the loop: a resumed run"
                " draws them as at step 0, so what the loop replaces, as a first batch, belongs inside it",
                " and ".join(drawn),
            )

    def _begin(self, length: int) -> bool:
        """Tell the agent that the loop begins; return whether the script has left it already.

        It has if the checkpoint was saved when it left a loop of this ``length``.
        """
        if self._service is not None:
            sigterm.watch()
            self._service.begin_loop()
        self._is_in_loop, self._length = True, length
        left = None if self._restored is None else self._restored.left
        if left is not None and left["length"] == length:
            self._left = left
        return self._left is not None

    def _begin_step(self, step: int, progress: MutableSequence[int]) -> None:
        """Serve the boundary before the step, and begin it."""
        if self._is_in_step:
            self._is_at_boundary = self._gradients.end_step()
        service = self._service
        if service is not None:
            if self._is_at_boundary:
                service.pass_boundary(step)
            if step == service.prepare_at:
                service.prepare(step)
        self._is_in_step = self._has_worked = True
        self._step = progress[0] = step

    def _end_step(self, num_steps: int) -> None:
        """Note that the last step of a loop has ended, and how many were made."""
        self._step = num_steps
        if self._is_in_step:
            self._is_in_step = False
            self._is_at_boundary = self._gradients.end_step()

    def _end_batches(self) -> None:
        """End the batches of an epoch, which the script may have left before the last one."""
        self._end_step(self._steps_made())
        if self._feed is not None:
            self._feed.end_epoch()

    def _steps_made(self) -> int:
        """Return how many steps were made; a step that the script left before it changed anything is not."""
        if not self._is_in_step:
            return self._step
        # A checkpoint of that number may exist: what is saved later needs another one.
        is_sealed = self._service is not None and self._service.sealed_step == self._step
        return self._step + (1 if self._gradients.has_stepped or is_sealed else 0)

    def _leave(self, *, is_held: bool = False) -> None:
        """Make the state at which the script leaves its loop the last one."""
        self._is_in_loop = False
        self._end_step(self._steps_made())
        planned = self._progress()[1]
        self._left = {"length": self._length, "planned": planned if planned >= 0 else None}
        if self._service is not None:
            self._service.leave_loop(self._step, left=self._left, saves=self._has_worked, is_held=is_held)

    def _end_loop(self) -> None:
        self._is_in_loop = False
        if self._service is not None:
            self._service.end_loop(self._step, left=self._left, saves=self._has_worked)

    def _progress(self) -> MutableSequence[int]:
        return array("q", [self._start, -1, self._start]) if self._service is None else self._service.progress

    def _describe(self) -> tuple[dict[str, Json], dict[str, Json]]:
        """Return what a save at this boundary holds beside the objects' state."""
        rank_state: dict[str, Any] = {"random": randomness.capture(self._devices)}
        position = None
        if self._feed is not None:
            position, rank_state["feed"] = self._feed.take()
            rank_state["random"] = self._feed.random or rank_state["random"]
        elif self._loader is not None:
            rank_state["dataloader"] = self._tracked_loader.state_dict()
        if self._epochs is not None and position is not None:
            position["ended"] = self._epochs.has_ended_batches
            rank_state["epoch_random"] = self._epochs.random
        shared = {"seed": self._seed, "position": position, "left": self._left}
        return shared, flatten("rank", rank_state, None)

    # --- resuming -------------------------------------------------------------------------------

    def _load(self, restored: Checkpoint) -> None:
        restored.load(self._objects)
        self._step = self._start = restored.step
        self._seed = restored.seed
        if restored.world_size == self._world.world_size:
            saved = restored.rank_state(self._world.rank)
            self._rank_state = rebuild("state of this rank", saved)
        elif self._world.rank == 0:
            _log.warning(
                "a checkpoint of %d ranks is resumed by %d: random generators are seeded anew",
                restored.world_size,
                self._world.world_size,
            )

    def _resume_loader(self, loader: Any) -> ResumedLoader | None:
        if loader is None or not is_stateful(loader):
            return None
        state = self._rank_state.get("dataloader")
        if state is not None:
            loader.load_state_dict(state)
        return ResumedLoader(
            loader, resumed=state is not None, devices=self._devices, on_iter=self._watch_randomness
        )

    def _feed_of(self, loader: Any, *, epochs: int, first: int = 0) -> Feed:
        world = self._world
        return Feed(
            loader,
            epochs=epochs,
            first=first,
            world_size=world.world_size,
            rank=world.rank,
            devices=self._devices,
        )

    @staticmethod
    def _position_of(restored: Checkpoint) -> dict[str, Any]:
        position = restored.position
        if position is None:
            raise SessionError("the checkpoint was saved in a loop over run.steps(): use that again")
        return position

    def _resume_feed(self, feed: Feed, restored: Checkpoint) -> None:
        position = self._position_of(restored)
        if not self._rank_state:
            self._reseed()
        feed.resume(position, self._rank_state.get("feed"), world_size=restored.world_size)

    def _restore_randomness(self, moment: str = "random") -> None:
        if self._restored is None:
            return
        if not self._rank_state:
            self._reseed()
            return
        try:
            state = self._rank_state.get(moment) or self._rank_state["random"]
            randomness.restore(state, self._devices)
        except (TypeError, ValueError, LookupError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint's random generators are malformed: {error}") from error

    def _watch_randomness(self) -> None:
        """From now on, until the loop begins, notice what is drawn from the random generators."""
        if self._service is not None and not self._has_begun_loop:
            self._random_at_open = randomness.capture(self._devices)

    def _reseed(self) -> None:
        randomness.reseed(self._seed, self._start, self._world.rank)

    # --- with an agent --------------------------------------------------------------------------

    def connect(self, directory: Path) -> None:
        """Start serving the agent with this hand-off directory; opening the session calls it."""
        sigterm.watch()
        self._service = Service(
            directory, world=self._world, objects=self._objects, start=self._start, describe=self._describe
        )
        self._watch_randomness()

    def close(self) -> None:
        """Stop serving the agent; for the end of the process."""
        self._gradients.close()
        if self._service is None:
            return
        try:
            # An exception has ended the loop and was caught, as SystemExit is by Python, or the script still
            # holds the iterator. Whether it was by its own will, only its exit status tells.
            if self._is_in_loop and getattr(sys, "last_value", None) is None:
                self._leave(is_held=True)
        finally:
            service, self._service = self._service, None
            service.close()


@dataclass
class _Epochs:
    """Where a loop over ``epochs`` is."""

    number: int
    total: int
    is_resuming: bool
    """Whether this is the epoch in which the checkpoint was saved."""
    has_batches: bool = False
    """Whether the script has begun to loop over the epoch's batches."""
    has_ended_batches: bool = False
    """Whether a save now is one between the last batch and the code that comes then."""
    random: dict[str, Any] | None = None
    """The state of the random generators at the beginning of the epoch."""


_open_lock = threading.Lock()
_open_handoffs: set[str] = set()


def open_session(objects: Mapping[str, Any], *, dataloader: Any, exact: bool) -> Session:
    """Open the session of this process, as ``cloudspot.train.session()`` says."""
    tell_of_errors()
    tracked = {name: each for name, each in objects.items() if each is not None}
    checkpoint.check_tracked(tracked)
    world = current_world()
    _check_exact(tracked.get("model"), world, exact=exact)
    directory = os.environ.get(handoff.HANDOFF)
    if directory is not None:
        with _open_lock:
            if directory in _open_handoffs:
                raise SessionError("this process has a session already: open it once and pass it on")
            _open_handoffs.add(directory)
    restore = os.environ.get(handoff.RESTORE)
    restored = Checkpoint(Path(restore)) if restore else None
    session = Session(tracked, dataloader=dataloader, world=world, restored=restored)
    if directory is not None:
        session.connect(Path(directory))
        atexit.register(session.close)
    return session


def _check_exact(model: Any, world: World, *, exact: bool) -> None:
    # The order of three summands matters, and DDP rearranges its buckets after the first backward pass, which
    # a resumed run does at another step. With find_unused_parameters it never rearranges them.
    if not exact or world.world_size < 3 or not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return
    if not model.find_unused_parameters:
        raise SessionError(
            f"session(exact=True) with {world.world_size} ranks needs"
            " DistributedDataParallel(..., find_unused_parameters=True)"
        )
