"""What a session does for its agent: progress, figures, saves at agreed boundaries, and leaving."""

from __future__ import annotations

import faulthandler
import json
import logging
import mmap
import os
import time
from collections.abc import Callable, Mapping, MutableSequence
from pathlib import Path
from typing import Any, NoReturn

from cloudspot.train import checkpoint, handoff, sigterm
from cloudspot.train.arena import Arena
from cloudspot.train.distributed import World, open_store
from cloudspot.train.link import Link
from cloudspot.train.rounds import DRAIN, SaveOrder
from cloudspot.train.saving import Describe, Saver

_log = logging.getLogger("cloudspot")

FINAL = "final"
FINAL_SLOT_SECONDS = 3600.0
"""How long the end of the loop waits for a slot while both are being uploaded and nothing drains."""
LAST_PREPARE_STEPS = 64
"""After this many steps the arena is claimed even if an optimizer still has no state."""


class Service:
    """Serves the agent of one hand-off directory; the main thread calls everything here."""

    def __init__(
        self, directory: Path, *, world: World, objects: Mapping[str, Any], start: int, describe: Describe
    ) -> None:
        """Start the background thread and say that there is a session.

        The loop begins at the step ``start``. ``describe`` is called at each save of the tracked ``objects``.
        """
        self._directory = directory
        self._world = world
        self._objects = objects
        self._start = start
        self._describe = describe
        arena = Arena(
            directory=Path(os.environ.get(handoff.ARENA) or directory / "arena"),
            spill=Path(os.environ.get(handoff.ARENA_SPILL) or directory / "spill"),
            handoff=directory,
            generation=int(os.environ.get(handoff.GENERATION, "1")),
            world=world,
        )
        self._saver = Saver(arena)
        # On a fresh start Adam has no state before the first step, so there is nothing to plan yet.
        self.prepare_at = start if checkpoint.is_materialised(objects) else start + 1
        """The step at which to call ``prepare``."""
        self.progress = _map_progress(handoff.progress_path(directory, world.rank), start)
        """The values of ``handoff.Progress``, as the agent sees them."""
        self._figures: Any = None
        if world.rank == 0:
            path = handoff.metrics_path(directory, world.rank)
            self._figures = path.open("a", buffering=1, encoding="utf-8")
        faulthandler.register(handoff.DUMP_SIGNAL, all_threads=True)
        self._pid = os.getpid()  # of no process that the script forks
        handoff.worker_pid_path(directory, world.rank).write_text(str(self._pid))
        store, server = open_store(world)
        self._link = Link(
            directory,
            store,
            server,
            world=world,
            start=start,
            can_save=self._saver.can_save,
            room=self._saver.room,
        )
        self._link.start()
        self.rounds = self._link.rounds
        """To be asked at each boundary."""

    @property
    def is_draining(self) -> bool:
        """Whether the agent has asked this rank to save and leave."""
        return self._link.is_draining

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics of a step."""
        if self._figures is not None:
            line = {"step": step, "time": time.time(), "values": dict(values)}
            self._figures.write(json.dumps(line) + "\n")

    def prepare(self, step: int) -> None:
        """Claim the arena in the background if the state is complete; else ask to be called later."""
        done = step - self._start
        if not checkpoint.is_materialised(self._objects) and done < LAST_PREPARE_STEPS:
            self.prepare_at = self._start + 2 * max(done, 1)  # gradients are still being accumulated
            return
        self.prepare_at = -1
        self._saver.prepare(checkpoint.take(self._objects).items)

    def serve(self, first: SaveOrder, step: int) -> None:
        """Carry out the orders that stand at a boundary, until it is passed.

        Raises:
            SystemExit: the order was to leave.
            SessionError: the state cannot be saved.
        """
        order: SaveOrder | None = first
        while order is not None:
            if order.kind == DRAIN:
                self._drain(order, step)
            # A boundary at which nothing was done since the last save has nothing to save.
            if step not in {self._start, self._saver.sealed_step}:
                stall = self._save(order, step, None)
                self._link.saved(stall)
            self.rounds.served()
            order = self.rounds.begin(step)

    def begin_loop(self) -> None:
        """Tell the agent that the loop has begun: from now on exit status 0 alone is no success."""
        handoff.begun_loop_path(self._directory, self._world.rank).touch()

    def leave_loop(self) -> None:
        """End the rounds where the script leaves the loop early, as all ranks do at the same step.

        Leaving after SIGTERM is not the script's own decision, so the agent is not told.
        """
        if os.getpid() == self._pid and not sigterm.was_received():
            handoff.left_loop_path(self._directory, self._world.rank).touch()
        self.rounds.finish()

    def end_loop(self, total: int) -> None:
        """Save the state of the last step and say how the loop ended; as every rank is here, without a round.

        A rank that finds no slot in time says that it drained without a save: the last step is in no
        checkpoint, so the training goes on from the newest one.
        """
        self.progress[0] = self.progress[1] = self.progress[2] = total
        self._link.complete()
        if total > self._start and not self._save_final(total):
            _log.warning("uploads were too slow: the state of the last step (%d) was not saved", total)
            handoff.write_json(handoff.drained_path(self._directory, self._world.rank), {"step": None})
            return
        if self._world.rank == 0:
            model = self._objects.get("model")
            weights = None if model is None else checkpoint.weights_sha256(model)
            final = {"step": total, "weights_sha256": weights}
            handoff.write_json(handoff.final_path(self._directory), final)
        # Last: a process that ends in the middle of the final save has not finished.
        handoff.ended_loop_path(self._directory, self._world.rank).touch()

    def close(self) -> None:
        """Stop the background threads and release the arena; for the end of the process."""
        self._link.close()
        self._saver.close()
        if self._figures is not None:
            self._figures.close()
            self._figures = None

    def _drain(self, order: SaveOrder, step: int) -> NoReturn:
        saved: int | None = None
        if order.step is not None and step > self._start:
            saved = step
            if self._saver.sealed_step != step:
                guard = self.rounds.guard
                stall = self._save(order, step, lambda: guard)
                saved = None if stall is None else step
        self.progress[0] = step
        handoff.write_json(handoff.drained_path(self._directory, self._world.rank), {"step": saved})
        self._link.part(agreed=order.step is not None)
        raise SystemExit(0)

    def _save_final(self, step: int) -> bool:
        until = time.monotonic() + FINAL_SLOT_SECONDS
        # A notice may come while this waits.
        stall = self._save(SaveOrder(FINAL, step), step, lambda: min(until, self._link.drain_guard))
        return stall is not None

    def _save(self, order: SaveOrder, step: int, deadline: Callable[[], float] | None) -> float | None:
        return self._saver.save(self._objects, order, step=step, describe=self._describe, deadline=deadline)


def _map_progress(path: Path, start: int) -> MutableSequence[int]:
    path.write_bytes(handoff.PROGRESS.pack(start, -1, start))
    with path.open("r+b") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), handoff.PROGRESS.size))
    return mapped.cast("q")  # type: ignore[return-value]  # a memoryview of integers takes them by index
