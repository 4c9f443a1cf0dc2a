"""The session: one training's loop, tracked, saved at agreed boundaries and resumed."""

from __future__ import annotations

import atexit
import faulthandler
import json
import logging
import mmap
import os
import threading
import time
from array import array
from collections.abc import Iterator, Mapping, MutableSequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from cloudspot.train import checkpoint, handoff, randomness
from cloudspot.train.arena import Arena
from cloudspot.train.checkpoint import Checkpoint
from cloudspot.train.distributed import World, current_world, open_store
from cloudspot.train.errors import SessionError
from cloudspot.train.feed import Feed, ResumedLoader, is_stateful
from cloudspot.train.link import Link
from cloudspot.train.rounds import DRAIN, Order
from cloudspot.train.saving import Saver
from cloudspot.train.tree import flatten, rebuild

_log = logging.getLogger("cloudspot")

FINAL = "final"
FINAL_SLOT_SECONDS = 600.0
"""How long the end of the loop waits for a slot, with an upload in each."""
LAST_PREPARE_STEPS = 64
"""After so many steps the arena is claimed even if an optimizer has still no state."""


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
        self._link: Link | None = None
        self._saver: Saver | None = None
        self._metrics: Any = None
        self._progress: MutableSequence[int] = array("q", [0, -1])
        self._in_loop = False
        self._prepare_at = -1
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
        """The step under way, from 0; before the loop the one to resume at, after it the total."""
        return self._step

    @property
    def epoch(self) -> int:
        """The epoch under way in ``batches``, from 0."""
        return 0 if self._feed is None else self._feed.epoch

    @property
    def resumed(self) -> bool:
        """Whether this session goes on from a checkpoint."""
        return self._restored is not None

    @property
    def artifacts(self) -> Path:
        """A directory whose files are copied to the job's store; ``artifacts`` without cloudspot."""
        path = Path(os.environ.get(handoff.ARTIFACTS) or "artifacts")
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def dataloader(self) -> ResumedLoader:
        """The tracked loader, for loops over ``steps``: iterate this one.

        Raises:
            SessionError: ``session()`` was given no loader that knows its position.
        """
        if self._loader is None:
            raise SessionError(
                "session(dataloader=...) needs a loader with a state_dict for loops over steps, such as"
                " torchdata's StatefulDataLoader; or loop over run.batches(loader)"
            )
        return self._loader

    def draining(self) -> bool:
        """Say whether this rank has been asked to save and leave.

        Ranks hear of it at different moments: for loops in which ranks do not wait for each other.
        """
        return self._link is not None and self._link.is_draining

    def log(self, **values: float) -> None:
        """Note figures of the step under way; rank 0's are shown and kept."""
        line = {"step": self._step, "time": time.time(), "values": {k: float(v) for k, v in values.items()}}
        if self._metrics is not None:
            self._metrics.write(json.dumps(line) + "\n")

    # --- the loop -------------------------------------------------------------------------------

    def steps(self, total: int) -> Iterator[int]:
        """Yield the steps from the restored one, else 0, up to ``total``, which is not among them.

        Between two steps the training may be saved. When the machine has to go, SystemExit is raised
        there: code after the loop does not run. All ranks pass the same total.
        """
        if self._tracked_loader is not None and self._loader is None:
            _ = self.dataloader  # says what is wrong
        self._begin_loop(total)
        if self._restored is not None and self._restored.shared.get("position") is not None:
            raise SessionError("the checkpoint was saved in a loop over batches: loop over batches again")
        self._restore_randomness()
        link, progress = self._link, self._progress
        try:
            for step in range(self._step, total):
                if link is not None:
                    order = link.rounds.begin(step)
                    if order is not None:
                        self._serve(order, step)
                    if step == self._prepare_at:
                        self._prepare(step)
                self._step = step
                progress[0] = step
                yield step
        except GeneratorExit:
            self._leave_loop()
            raise
        self._end_loop(max(total, self._start))

    def batches(self, loader: Any, *, epochs: int = 1) -> Iterator[Any]:
        """Yield the batches of a loader, for a number of epochs; each is a step.

        ``loader.sampler.set_epoch`` is called where there is one. A resumed session goes on with the
        next batch of the epoch in which it was saved. Saves and leaving are as for ``steps``.
        """
        if self._tracked_loader is not None and self._tracked_loader is not loader:
            raise SessionError("run.batches() iterates another loader than session(dataloader=...) tracks")
        self._begin_loop(-1)
        feed = Feed(loader, epochs=epochs, world_size=self._world.world_size, devices=self._devices)
        self._feed = feed
        if self._restored is not None:
            self._resume_feed(feed, self._restored)
        self._restore_randomness()
        link, progress, step = self._link, self._progress, self._step
        if feed.batches_left is not None:
            progress[1] = step + feed.batches_left
        try:
            while feed.batches_left != 0:
                if link is not None:
                    order = link.rounds.begin(step)
                    if order is not None:
                        self._serve(order, step)
                    if step == self._prepare_at:
                        self._prepare(step)
                self._step = step
                progress[0] = step
                batch = feed.fetch()
                if batch is None:
                    break
                yield batch[0]
                step += 1
        except GeneratorExit:
            self._leave_loop()
            raise
        self._end_loop(step)

    def _begin_loop(self, total: int) -> None:
        if self._in_loop:
            raise SessionError("the session's loop has begun already: one session drives one loop")
        self._in_loop = True
        self._progress[1] = total
        # On a fresh start Adam has no state before the first step, so there is nothing to plan yet.
        fresh = not checkpoint.is_materialised(self._objects)
        self._prepare_at = self._start + 1 if fresh else self._start

    def _prepare(self, step: int) -> None:
        assert self._saver is not None
        done = step - self._start
        if not checkpoint.is_materialised(self._objects) and done < LAST_PREPARE_STEPS:
            self._prepare_at = self._start + 2 * max(done, 1)  # gradients are still being accumulated
            return
        self._prepare_at = -1
        self._saver.prepare(checkpoint.take(self._objects).items)

    def _leave_loop(self) -> None:
        """End the rounds where the script leaves the loop by itself, as all ranks do at the same step."""
        if self._link is not None:
            self._link.rounds.finish()

    def _end_loop(self, total: int) -> None:
        self._step = total
        self._progress[0] = self._progress[1] = total
        if self._link is None or self._saver is None:
            return
        self._link.complete()
        if total > self._start:
            deadline = min(time.monotonic() + FINAL_SLOT_SECONDS, self._link.drain_guard)
            if self._save(FINAL, total, frozenset(), deadline) is None:
                _log.warning(
                    "the uploads were too slow: the state of the last step, %d, was not saved", total
                )
        if self._world.rank == 0:
            model = self._objects.get("model")
            weights = None if model is None else checkpoint.weights_sha256(model)
            handoff.write_json(
                handoff.final_path(self._link.handoff), {"step": total, "weights_sha256": weights}
            )

    # --- saving ---------------------------------------------------------------------------------

    def _serve(self, first: Order, step: int) -> None:
        """Carry out the orders that stand at a boundary, until it is passed."""
        assert self._link is not None
        assert self._saver is not None
        rounds = self._link.rounds
        order: Order | None = first
        while order is not None:
            if order.kind == DRAIN:
                self._drain(order, step)
            # A boundary at which nothing was done since the last save has nothing to save.
            if step not in {self._start, self._saver.sealed_step}:
                stall = self._save(order.kind, step, order.avoid, None)
                self._link.saved(stall)
            rounds.served()
            order = rounds.begin(step)

    def _drain(self, order: Order, step: int) -> NoReturn:
        assert self._link is not None
        assert self._saver is not None
        saved: int | None = None
        if order.step is not None and step > self._start:
            saved = step
            if self._saver.sealed_step != step:
                stall = self._save(order.kind, step, order.avoid, self._link.rounds.guard)
                saved = None if stall is None else step
        self._progress[0] = step
        handoff.write_json(handoff.drained_path(self._link.handoff, self._world.rank), {"step": saved})
        self._link.part(agreed=order.step is not None)
        raise SystemExit(0)

    def _save(self, kind: str, step: int, avoid: frozenset[int], deadline: float | None) -> float | None:
        assert self._saver is not None
        rank_state: dict[str, Any] = {"random": randomness.capture(self._devices)}
        position = None
        if self._feed is not None:
            position, rank_state["feed"] = self._feed.take()
        elif self._loader is not None:
            rank_state["dataloader"] = self._tracked_loader.state_dict()
        return self._saver.save(
            self._objects,
            kind=kind,
            step=step,
            avoid=avoid,
            shared={"seed": self._seed, "position": position},
            rank_state=flatten("rank", rank_state, None),
            deadline=deadline,
        )

    # --- resuming -------------------------------------------------------------------------------

    def _load(self, restored: Checkpoint) -> None:
        restored.load(self._objects)
        self._step = self._start = restored.step
        self._progress[0] = restored.step
        self._seed = int(restored.shared.get("seed", self._seed))
        if restored.world_size == self._world.world_size:
            saved = restored.rank_state(self._world.rank)
            self._rank_state = rebuild("state of this rank", saved, _no_item)

    def _resume_loader(self, loader: Any) -> ResumedLoader | None:
        if loader is None or not is_stateful(loader):
            return None
        state = self._rank_state.get("dataloader")
        if state is not None:
            loader.load_state_dict(state)
        return ResumedLoader(loader, resumed=state is not None, devices=self._devices)

    def _resume_feed(self, feed: Feed, restored: Checkpoint) -> None:
        position = restored.shared.get("position")
        if not isinstance(position, dict):
            raise SessionError("the checkpoint was saved in a loop over steps: loop over steps again")
        if not self._rank_state:
            self._reseed()
        feed.resume(position, self._rank_state.get("feed"), world_size=restored.world_size)

    def _restore_randomness(self) -> None:
        if self._restored is None:
            return
        if self._rank_state:
            randomness.restore(self._rank_state["random"], self._devices)
        else:
            self._reseed()

    def _reseed(self) -> None:
        randomness.reseed(self._seed, self._start, self._world.rank)

    # --- with an agent --------------------------------------------------------------------------

    def connect(self, directory: Path) -> None:
        """Start to serve the agent whose hand-off directory this is; opening the session does it."""
        world, rank = self._world, self._world.rank
        generation = int(os.environ.get(handoff.GENERATION, "1"))
        arena = Arena(
            directory=Path(os.environ.get(handoff.ARENA) or directory / "arena"),
            spill=Path(os.environ.get(handoff.ARENA_SPILL) or directory / "spill"),
            handoff=directory,
            generation=generation,
            rank=rank,
            local_world_size=world.local_world_size,
        )
        self._saver = Saver(
            arena, handoff=directory, generation=generation, rank=rank, world_size=world.world_size
        )
        self._progress = _map_progress(handoff.progress_path(directory, rank), self._progress)
        if rank == 0:
            self._metrics = handoff.metrics_path(directory, rank).open("a", buffering=1, encoding="utf-8")
        faulthandler.register(handoff.DUMP_SIGNAL, all_threads=True)
        handoff.worker_pid_path(directory, rank).write_text(str(os.getpid()))
        store, server = open_store(world)
        self._link = Link(
            directory, store, server, world=world, start=self._start, can_save=self._saver.can_save
        )
        self._link.start()

    def close(self) -> None:
        """Stop the background threads and let go of the arena; for the end of the process."""
        if self._link is not None:
            self._link.close()
        if self._saver is not None:
            self._saver.close()
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


_open_lock = threading.Lock()
_open_handoffs: set[str] = set()


def open_session(objects: Mapping[str, Any], *, dataloader: Any, exact: bool) -> Session:
    """Open the session of this process, as ``cloudspot.train.session()`` says."""
    tracked = {name: each for name, each in objects.items() if each is not None}
    checkpoint.check_tracked(tracked)
    world = current_world()
    _check_exact(tracked.get("model"), world, exact=exact)
    directory = os.environ.get(handoff.HANDOFF)
    if directory is not None:
        with _open_lock:
            if directory in _open_handoffs:
                raise SessionError("this process has a session already: open one and pass it on")
            _open_handoffs.add(directory)
    restore = os.environ.get(handoff.RESTORE)
    restored = Checkpoint(Path(restore)) if restore else None
    session = Session(tracked, dataloader=dataloader, world=world, restored=restored)
    if directory is not None:
        session.connect(Path(directory))
        atexit.register(session.close)
    return session


def _check_exact(model: Any, world: World, *, exact: bool) -> None:
    # With three summands the order matters, and DDP arranges its buckets anew after the first backward:
    # a resumed run does that at another step. Unless it looks for unused parameters, then it never does.
    if not exact or world.world_size < 3 or not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return
    if not model.find_unused_parameters:
        raise SessionError(
            f"session(exact=True) with {world.world_size} ranks needs"
            " DistributedDataParallel(..., find_unused_parameters=True)"
        )


def _map_progress(path: Path, values: MutableSequence[int]) -> MutableSequence[int]:
    path.write_bytes(handoff.PROGRESS.pack(*values))
    with path.open("r+b") as file:
        mapped: MutableSequence[int] = memoryview(mmap.mmap(file.fileno(), handoff.PROGRESS.size)).cast("q")  # type: ignore[assignment]
    return mapped


def _no_item(name: str) -> Any:
    raise KeyError(name)
