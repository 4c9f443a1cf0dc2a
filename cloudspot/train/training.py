"""The session: one training's loop, tracked, saved at agreed boundaries and resumed."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from array import array
from collections.abc import Iterator, Mapping, MutableSequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cloudspot.train import checkpoint, handoff, randomness, sigterm
from cloudspot.train.checkpoint import Checkpoint
from cloudspot.train.distributed import World, current_world
from cloudspot.train.errors import CheckpointError, SessionError
from cloudspot.train.resumable_batches import Feed, ResumedLoader, is_stateful
from cloudspot.train.service import Service
from cloudspot.train.tree import Json, flatten, rebuild
from cloudspot.train.uncaught_errors import tell_of_errors

_log = logging.getLogger("cloudspot")


class Session:
    """A training's loop and its state; made by ``cloudspot.train.session()``.

    One session drives one loop: ``steps`` or ``batches``, once.
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
        self._has_begun_loop = False
        self._is_in_loop = False
        if restored is not None:
            self._load(restored)
        self._devices = checkpoint.cuda_devices(checkpoint.take(objects).tensors)
        self._tracked_loader = dataloader
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
        """The current step, from 0; before the loop the step to resume at, after it the total."""
        return self._step

    @property
    def epoch(self) -> int:
        """The current epoch in ``batches``, from 0."""
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

        The training may be saved between two steps. When the machine has to go, SystemExit is raised
        there, and code after the loop does not run. The state after the last step is always saved, unless
        the script leaves the loop early.
        """
        if self._tracked_loader is not None and self._loader is None:
            _ = self.dataloader  # raises the error
        self._begin_loop()
        if self._restored is not None and self._restored.position is not None:
            raise SessionError("the checkpoint was saved in a loop over run.batches(): use that again")
        self._restore_randomness()
        progress = self._progress()
        progress[1] = total
        with self._loop():
            for step in range(self._step, total):
                self._begin_step(step, progress)
                progress[2] = step + 1
                yield step
        self._end_loop(max(total, self._start))

    def batches(self, loader: Any, *, epochs: int = 1) -> Iterator[Any]:
        """Yield the batches of a loader for a number of epochs; each batch is a step.

        Calls ``loader.sampler.set_epoch`` where there is one. A resumed session continues with the next
        batch of the epoch in which it was saved. Saves and leaving are as for ``steps``.

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
        self._begin_loop()
        world = self._world
        feed = Feed(
            loader, epochs=epochs, world_size=world.world_size, rank=world.rank, devices=self._devices
        )
        self._feed = feed
        if self._restored is not None:
            self._resume_feed(feed, self._restored)
        self._restore_randomness()
        progress, step = self._progress(), self._step
        if feed.batches_left is not None:
            progress[1] = step + feed.batches_left
        with self._loop():
            while feed.batches_left != 0:
                self._begin_step(step, progress)
                batch = feed.fetch()
                if batch is None:
                    break
                progress[2] = step + 1
                yield batch[0]
                step += 1
        feed.close()
        self._end_loop(step)

    def _begin_loop(self) -> None:
        if self._has_begun_loop:
            raise SessionError("the session's loop has begun already: one session drives one loop, once")
        self._has_begun_loop = True

    @contextmanager
    def _loop(self) -> Iterator[None]:
        """Surround the loop, and tell the agent that it begins, and if the script leaves it early."""
        if self._service is not None:
            sigterm.watch()
            self._service.begin_loop()
        self._is_in_loop = True
        try:
            yield
        except GeneratorExit:
            if self._service is not None:
                self._service.leave_loop()
            raise
        finally:
            self._is_in_loop = False

    def _begin_step(self, step: int, progress: MutableSequence[int]) -> None:
        """Serve the boundary before the step, and begin it."""
        service = self._service
        if service is not None:
            order = service.rounds.begin(step)
            if order is not None:
                service.serve(order, step)
            if step == service.prepare_at:
                service.prepare(step)
        self._step = progress[0] = step

    def _end_loop(self, total: int) -> None:
        self._step = total
        if self._service is not None:
            self._service.end_loop(total)

    def _progress(self) -> MutableSequence[int]:
        return array("q", [self._start, -1, self._start]) if self._service is None else self._service.progress

    def _describe(self) -> tuple[dict[str, Json], dict[str, Json]]:
        """Return what a save at this boundary holds beside the objects' state."""
        rank_state: dict[str, Any] = {"random": randomness.capture(self._devices)}
        position = None
        if self._feed is not None:
            position, rank_state["feed"] = self._feed.take()
        elif self._loader is not None:
            rank_state["dataloader"] = self._tracked_loader.state_dict()
        return {"seed": self._seed, "position": position}, flatten("rank", rank_state, None)

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
        return ResumedLoader(loader, resumed=state is not None, devices=self._devices)

    def _resume_feed(self, feed: Feed, restored: Checkpoint) -> None:
        position = restored.position
        if position is None:
            raise SessionError("the checkpoint was saved in a loop over run.steps(): use that again")
        if not self._rank_state:
            self._reseed()
        feed.resume(position, self._rank_state.get("feed"), world_size=restored.world_size)

    def _restore_randomness(self) -> None:
        if self._restored is None:
            return
        if not self._rank_state:
            self._reseed()
            return
        try:
            randomness.restore(self._rank_state["random"], self._devices)
        except (TypeError, ValueError, LookupError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint's random generators are malformed: {error}") from error

    def _reseed(self) -> None:
        randomness.reseed(self._seed, self._start, self._world.rank)

    # --- with an agent --------------------------------------------------------------------------

    def connect(self, directory: Path) -> None:
        """Start serving the agent with this hand-off directory; opening the session calls it."""
        sigterm.watch()
        self._service = Service(
            directory, world=self._world, objects=self._objects, start=self._start, describe=self._describe
        )

    def close(self) -> None:
        """Stop serving the agent; for the end of the process."""
        service, self._service = self._service, None
        if service is None:
            return
        # The script still holds the iterator of a loop that it left, by an error or on purpose.
        if self._is_in_loop and getattr(sys, "last_value", None) is None:
            service.leave_loop()
        service.close()


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
