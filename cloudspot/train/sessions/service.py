"""A session's work for its agent: progress, metrics, saves at agreed boundaries, and leaving."""

from __future__ import annotations

import faulthandler
import json
import logging
import mmap
import os
import signal
import time
from collections.abc import Callable, Mapping, MutableSequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

from cloudspot.train import handoff
from cloudspot.train.distributed import Store, World, open_store
from cloudspot.train.rounds.handover import HandOver
from cloudspot.train.rounds.link import Link
from cloudspot.train.rounds.rescue import Held, Rescue
from cloudspot.train.rounds.save_order import DRAIN, RESCUE, REWOUND, SaveOrder
from cloudspot.train.sessions import failed_backward, sigterm
from cloudspot.train.sessions.interval_saves import IntervalSaves
from cloudspot.train.sessions.own_states import OwnStates
from cloudspot.train.sessions.saving import Copied, Describe, Saver
from cloudspot.train.state import checkpoint, own_pieces, randomness
from cloudspot.train.state.arena import Arena
from cloudspot.train.state.boundary_marks import BoundaryMarks, Mark
from cloudspot.train.state.own_pieces import OwnState
from cloudspot.train.uncaught_errors import expecting_errors, holding_at_errors

_log = logging.getLogger("cloudspot")

Left = Mapping[str, Any]
"""The "length" of a loop that the script left early, and its "planned" number of steps (or None)."""

FINAL = "final"
FINAL_SLOT_SECONDS = 3600.0
"""How long the end of the loop waits for a slot while both slots are being uploaded and there is no drain."""
LEAVE_SECONDS = 120.0
"""How long a rank whose script leaves the loop early waits for the other ranks to leave."""
SETTLE_SECONDS = 0.05
"""The time after which a write by the main thread that began before the end of a copy can be detected."""
_TERMINATED = 128 + signal.SIGTERM
"""The exit status of a rank that ends because other ranks were lost, not because of the script."""
FEW_BOUNDARIES = 256
"""The number of boundaries after which it is known whether most of them can be marked."""
RESCUE_SLOT_SECONDS = 30.0
"""How long a rescue waits for a slot while both slots are being uploaded."""
NUM_DIGESTS = 4
"""The number of boundaries whose digests are reported to the agent, because other ranks may be behind."""
LAST_PREPARE_STEPS = 64
"""After this many steps, the arena is claimed even if an optimizer has no state yet."""


class Service:
    """Serves the agent of one hand-off directory.

    The main thread calls all methods except those of ``Rewindable`` and ``Rescuable``, which are called by
    background threads.
    """

    def __init__(
        self, directory: Path, *, world: World, objects: Mapping[str, Any], start: int, describe: Describe
    ) -> None:
        """Start the background threads, and report to the agent that there is a session.

        The loop begins at step ``start``. ``describe`` is called at each save of the tracked ``objects``.
        """
        self._directory = directory
        self._world = world
        self._objects = objects
        self._start = start
        self._num_boundaries = 0
        self._has_left = False
        self._describe = describe
        arena = Arena(
            directory=Path(os.environ.get(handoff.ARENA) or directory / "arena"),
            spill=Path(os.environ.get(handoff.ARENA_SPILL) or directory / "spill"),
            handoff=directory,
            generation=int(os.environ.get(handoff.GENERATION, "1")),
            world=world,
        )
        self._saver = Saver(arena)
        self._interval_saves = IntervalSaves(self._saver, again=self._save_again)
        self._marks = BoundaryMarks(objects)
        self._standing: dict[int, Mark] = {}
        self._rewound: tuple[Mark, Copied | None] | None = None
        # On a fresh start, Adam has no state before the first step, so the plan cannot be made yet.
        self.prepare_at = start if checkpoint.is_materialised(objects) else start + 1
        """The step at which to call ``prepare``."""
        self.progress = _map_progress(handoff.progress_path(directory, world.rank), start)
        """The values of ``handoff.Progress``, in the file that the agent reads."""
        self._figures: Any = None
        self._has_warned = self._has_judged_place = False
        if world.rank == 0:
            path = handoff.metrics_path(directory, world.rank)
            self._figures = path.open("a", buffering=1, encoding="utf-8")
        _answer_dumps()
        self._pid = os.getpid()  # forked processes of the script have other ids
        handoff.worker_pid_path(directory, world.rank).write_text(str(self._pid))
        store, server = open_store(world)
        self._own_states: OwnStates | None = None
        if world.world_size > 1 and (secret_and_address := os.environ.get(handoff.HAND_OVER)):
            self._hand_over(secret_and_address, store)
        self._link = Link(
            directory,
            store,
            server,
            world=world,
            can_save=self._saver.can_save,
            room=self._saver.room,
            rewindable=self,
        )
        self._closing = ExitStack()
        self._closing.enter_context(expecting_errors(self._has_rewound))
        self._link.start()
        self.rounds = self._link.rounds
        """The rounds, which are consulted at each boundary."""
        self._draws: bool | None = None
        """Whether a step has drawn, or may have drawn, random numbers; None if this is not known yet."""
        self._noted: Mark | None = None
        self._compared: Mark | None = None
        """The latest mark at which the weights are compared with those of other ranks."""
        self._likeness: tuple[bool | None, tuple[tuple[int, str], ...]] = (None, ())
        """The information that the agent has: whether steps draw, and boundaries with digests of weights."""
        self._rescue: Rescue | None = None
        self._failure: BaseException | None = None
        """The first error of a backward pass, even if the script caught it."""
        if os.environ.get(handoff.RESCUE) == "1":
            self._rescue = Rescue(
                directory,
                rank=world.rank,
                rescuable=self,
                stop_rounds=lambda: not self._has_left and self.rounds.stop_for_rescue(),
            )
            self._closing.enter_context(holding_at_errors(self._hold_for_rescue))
            if world.world_size > 1:
                noted = failed_backward.noted(self._note_failure, succeeded=self._marks.note_backward)
                self._closing.enter_context(noted)
                self._marks.expects_backward = True
            self._rescue.start()
            sigterm.put_off(self._ends_at_boundary)

    @property
    def sealed_step(self) -> int | None:
        """The step of the latest save; this first ends a save that is in progress."""
        self._interval_saves.settle(waits=True)
        return self._saver.sealed_step

    @property
    def is_draining(self) -> bool:
        """Whether the agent has asked this rank to save and leave."""
        return self._link.is_draining

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics of the current step."""
        if self._figures is not None:
            line = {"step": step, "time": time.time(), "values": dict(values)}
            try:
                self._figures.write(json.dumps(line) + "\n")
            except OSError as error:
                if not self._has_warned:
                    self._has_warned = True
                    _log.warning("metrics cannot be written, from step %d on: %s", step, error)

    def prepare(self, step: int) -> None:
        """If the state is complete, claim the arena in the background; if not, plan to call this later."""
        done = step - self._start
        if not checkpoint.is_materialised(self._objects) and done < LAST_PREPARE_STEPS:
            self.prepare_at = self._start + 2 * max(done, 1)  # gradients are still being accumulated
            return
        self.prepare_at = -1
        self._saver.prepare(checkpoint.take(self._objects).items)

    def pass_boundary(self, step: int, *, is_end_of_epoch: bool = False) -> None:
        """Carry out the orders at a boundary, after ``step`` steps, until the boundary is passed.

        At the end of an epoch's batches, interval saves are skipped.

        Raises:
            SystemExit: the order was to leave.
            SessionError: the state cannot be saved.
        """
        number = self._num_boundaries
        if self._marks.is_frozen:
            self._wait_for_rescue(step)
        order = self.rounds.begin(number)
        self._interval_saves.pass_boundary(waits=order is not None)
        while order is not None:
            if order.kind == RESCUE:
                self._wait_for_rescue(step)
            if order.kind in {DRAIN, REWOUND}:
                self._drain(order, step)
            # If no step was made since the last save, there is no new state to save.
            if not is_end_of_epoch and step not in {self._start, self.sealed_step}:
                seconds = self._interval_saves.save(self._objects, order, step=step, describe=self._describe)
                self._link.saved(seconds)
            self.rounds.served()
            order = self.rounds.begin(number)
        self._mark(step, is_rare=is_end_of_epoch)

    def _save_again(self) -> None:
        self._link.save_again()

    def _mark(self, step: int, *, is_rare: bool) -> None:
        self._marks.mark(self._num_boundaries, step, self._describe, is_rare=is_rare)
        if self._rescue is not None and not self._draws:
            self._note_draws()
        if self._own_states is not None:
            self._own_states.offer(self._marks.newest_first, draws=self._draws is True)
        mark = self._marks.newest
        # Compare less and less often, and not at multiples of 2, where local SGD may have averaged the
        # weights.
        if mark is not None and mark.number > 1 and (mark.number - 1) & (mark.number - 2) == 0:
            self._compared = mark
        own_place = None if mark is None else mark.description.own_place
        if mark is not None and own_place is not None and not self._has_judged_place:
            self._has_judged_place = True
            survives_loss = self._own_states is not None and own_pieces.obstacle(mark, rank=0) is None
            why = f"each rank's position in the data is known to that rank only, because {own_place}"
            self._warn_of_loss_cost(None if survives_loss else why)
        if self._num_boundaries == FEW_BOUNDARIES and self._marks.num_skipped > FEW_BOUNDARIES // 2:
            self._warn_of_loss_cost("the steps are too short for a record of where each one ends")
        self._num_boundaries += 1

    def _note_draws(self) -> None:
        """Record whether steps draw random numbers: compare the generators at this and the previous mark."""
        before, mark = self._noted, self._marks.newest
        self._noted = mark
        if mark is None or before is None or mark is before:
            return
        positions: list[Any] = [each.description.shared.get("position") for each in (before, mark)]
        # At the beginning of an epoch, loaders draw a seed for workers even if they have no workers.
        is_apart = positions[0] is not None and (
            positions[0]["batch"] == 0 or positions[0]["epoch"] != positions[1]["epoch"]
        )
        randoms = [each.description.rank_state["random"] for each in (before, mark)]
        seeded = randomness.after_seeds(randoms[0]) if is_apart else randoms[:1]
        is_same = any(randomness.is_same(each, randoms[1]) for each in seeded)
        is_same = is_same and not mark.description.draws_unseen
        self._draws = self._draws is True or not is_same

    def check(self, *, is_in_loop: bool) -> None:
        """Leave between two boundaries if a drain stands and all ranks have sealed the last boundary's state.

        Raises:
            SystemExit: the state is sealed.
        """
        self._marks.is_used = True
        if not is_in_loop or os.getpid() != self._pid or self._has_left:
            return
        order = self.rounds.check()
        if order is not None:
            self._drain(order, self.progress[0])

    # --- in the background thread, at a passed boundary -------------------------------------------

    def has_marked(self, number: int) -> bool:
        """Return whether the main thread has passed boundary ``number``."""
        return self._num_boundaries > number

    def standing(self, number: int) -> list[int]:
        """Return the passed boundaries at which the state still stands; a rank has asked for ``number``."""
        self._standing = {mark.number: mark for mark in self._marks.standing()}
        if number not in self._standing:
            self._warn_of_change()
        return list(self._standing)

    def copy(self, order: SaveOrder) -> HandOver | None:
        """Copy this rank's part of the state at the boundary; return None if it does not stand afterwards."""
        assert order.step is not None
        mark = self._standing[order.step]
        if not self._copy(mark, order, deadline=lambda: self.rounds.rewind_guard, kept={}):
            return None
        assert self._rewound is not None
        copied = self._rewound[1]
        return HandOver(order, self._world.rank) if copied is None else copied.handover

    def _copy(
        self,
        mark: Mark,
        order: SaveOrder,
        *,
        deadline: Callable[[], float],
        kept: Mapping[int, OwnState],
    ) -> bool:
        """Copy this rank's part of the state at a mark, and the own states of lost ranks in ``kept``.

        Return whether the mark still stands afterwards.
        """
        copied = None
        try:
            if mark.step != self._start:
                with self._marks.after(mark):
                    copied = self._saver.copy(
                        self._marks.objects_at(kept[0].mark if 0 in kept else mark),
                        order,
                        step=mark.step,
                        describe=lambda: mark.description,
                        deadline=deadline,
                        kept={rank: each.rank_state for rank, each in kept.items()},
                    )
                if copied is None:
                    _log.warning("uploads were too slow: the state of step %d was not saved", mark.step)
                    return False
            time.sleep(SETTLE_SECONDS)
            if mark not in (*self._marks.standing(), self._marks.first_since_step()):
                self._warn_of_change()
                return False
        except Exception:  # the training continues to the next boundary, which may be saved
            _log.exception(
                "the state of step %d cannot be saved any more, in the middle of the next step", mark.step
            )
            return False
        self._rewound = mark, copied
        return True

    def publish(self) -> None:
        """Seal the last copy with the states that others gave, and report that this rank has drained."""
        assert self._rewound is not None
        mark, copied = self._rewound
        if copied is not None:
            self._saver.seal(copied)
        self._has_left = True
        self.progress[0], self.progress[2] = mark.step, self.progress[0]
        saved = mark.step if mark.step > self._start else None
        handoff.write_json(handoff.drained_path(self._directory, self._world.rank), {"step": saved})

    # --- after other ranks were lost ---------------------------------------------------------------

    def held(self) -> Held | str:
        """Return the boundary at which the state still stands, or the reason why there is none."""
        mark = self._marks.first_since_step()
        if mark is None:
            return f"since the last boundary, {self._marks.problem}"
        if mark.step <= self._start:
            return "it has made no step"
        try:
            items = checkpoint.take(self._marks.objects_at(mark)).items
        except Exception as error:  # the main thread is changing the state, or it cannot be saved
            return f"since the last boundary, {error}"
        holders = {shard.holders for each in items for shard in each.shards}
        self._standing = {mark.number: mark}
        return Held(
            boundary=mark.number,
            before=self._marks.before_step,
            step=mark.step,
            digest=self._marks.digest(mark),
            draws=self._draws is not False,
            differs=any(each.pinned for each in items),
            holders=tuple(sorted(holders)),
            needs_all=mark.description.is_place_own,
            keeps=tuple(self._kept_at(mark)),
        )

    def report_likeness(self) -> None:
        """Report to the agent how this rank may differ from the others, in case this rank is lost."""
        mark, digests = self._compared, self._likeness[1]
        if mark is not None and mark.number not in dict(digests) and mark.is_reached:
            digests = (*digests, (mark.number, self._marks.digest(mark)))[-NUM_DIGESTS:]
        if (self._draws, digests) != self._likeness:
            self._likeness = self._draws, digests
            value = {"rank": self._world.rank, "draws": self._draws, "digests": digests}
            with suppress(OSError):
                handoff.write_json(handoff.likeness_path(self._directory, self._world.rank), value)

    def save(self, order: SaveOrder) -> int | None:
        """Save this rank's part of that state; return its step, or None if the state no longer stands."""
        mark = self._standing.get(-1 if order.step is None else order.step)
        until = time.monotonic() + RESCUE_SLOT_SECONDS
        if mark is None:
            return None
        there = self._kept_at(mark)
        asked = {rank for rank, keeper in order.keepers.items() if keeper == self._world.rank}
        kept = {rank: each for rank, each in there.items() if rank in asked}
        if len(kept) < len(asked) or not self._copy(mark, order, deadline=lambda: until, kept=kept):
            return None
        assert self._rewound is not None
        copied = self._rewound[1]
        assert copied is not None
        self._saver.seal(copied)
        return mark.step

    def _hand_over(self, secret_and_address: str, store: Store) -> None:
        try:
            self._own_states = OwnStates(
                secret_and_address, store, self._marks, world=self._world, report=self._report_no_hand_over
            )
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            self._report_no_hand_over(f"its keeper cannot listen: {error}")

    def _kept_at(self, mark: Mark) -> dict[int, OwnState]:
        return {} if self._own_states is None else self._own_states.at(mark)

    def _report_no_hand_over(self, problem: str) -> None:
        path = handoff.own_state_path(self._directory, self._world.rank)
        with suppress(OSError):
            handoff.write_json(path, {"problem": problem})

    def _warn_of_loss_cost(self, why: str | None) -> None:
        may_warn = self._rescue is not None and self._world.rank == 0 and self._world.world_size > 1
        if why is not None and may_warn:
            _log.warning(
                "if a machine is lost without notice, the steps since the newest checkpoint are repeated: %s",
                why,
            )

    def _ends_at_boundary(self) -> bool:
        """Let the process end at the next boundary, with its state saved; return whether there is one."""
        if self._rescue is None or self._has_left or self._num_boundaries == 0 or os.getpid() != self._pid:
            return False
        self._rescue.begin()
        return True

    def _hold_for_rescue(self) -> None:
        if self._rescue is not None and os.getpid() == self._pid and not self._has_left:
            self._rescue.hold()

    def _note_failure(self, why: str, error: BaseException) -> None:
        self._marks.freeze(why)
        self._failure = self._failure or error

    def _wait_for_rescue(self, step: int) -> NoReturn:
        """Mark a boundary that must not be passed, wait until the held state is saved, and leave.

        If the script caught an error of a backward pass, raise it again, because the script may have caused
        it.
        """
        self._mark(step, is_rare=True)
        self._hold_for_rescue()
        raise self._failure or SystemExit(_TERMINATED)

    def _warn_of_change(self) -> None:
        _log.warning(
            "rank %d is not at a safe point: since the last boundary, %s; it leaves at the next boundary",
            *(self._world.rank, self._marks.problem),
        )

    def _has_rewound(self) -> bool:
        return os.getpid() == self._pid and self.rounds.has_rewound()

    # --- the loop's beginning and end --------------------------------------------------------------

    def begin_loop(self) -> None:
        """Report to the agent that the loop has begun: from now on, exit status 0 alone is no success."""
        handoff.begun_loop_path(self._directory, self._world.rank).touch()
        self._failure = None
        self._marks.freeze(None)  # backward passes that failed before the loop do not matter
        shards = (shard for each in checkpoint.take(self._objects).items for shard in each.shards)
        alone = "each rank holds a part of the state that no other rank holds"
        why = alone if any(len(shard.holders) == 1 for shard in shards) else None
        self._warn_of_loss_cost(self._marks.obstacle or why)

    def leave_loop(self, step: int, *, left: Left, saves: bool, is_held: bool) -> None:
        """End the loop that the script left, provided that all ranks left it after the same step.

        Otherwise, log an error and save no state; the agent then treats the end of the process as a failure.
        The agent does the same after SIGTERM, because then the script did not leave by its own decision.
        """
        if os.getpid() != self._pid or self._has_left or self._marks.is_frozen:
            return
        if sigterm.was_received():
            self._finish_rounds(self.rounds.finish())
            return
        until = time.monotonic() + LEAVE_SECONDS
        found = self.rounds.leave(step, until=lambda: min(until, self._link.drain_guard))
        if isinstance(found, SaveOrder):
            self._drain(found, step)
        if self.rounds.is_rescued:
            return  # other ranks are lost: the last boundary is saved at the end of the process
        if all(found.get(rank) == step for rank in range(self._world.world_size)):
            self.end_loop(step, left=left, saves=saves, is_held=is_held)
            return
        others = ", ".join(
            f"rank {rank} {'did not' if rank not in found else f'did after {found[rank]}'}"
            for rank in range(self._world.world_size)
            if found.get(rank) != step
        )
        _log.error(
            "rank %d left its loop after %d steps, but %s: the state is not saved; all ranks must leave their"
            " loop after the same step",
            *(self._world.rank, step, others),
        )

    def end_loop(self, total: int, *, left: Left | None, saves: bool, is_held: bool = False) -> None:
        """Save the state of the last step, and report how the loop ended.

        No round is needed, because every rank calls this. ``saves`` says whether there is new state to save.
        A rank that finds no slot in time reports that it drained without a save: the training then continues
        from the newest checkpoint, which lacks the last step.
        """
        if self.rounds.is_rescued or self._marks.is_frozen:
            self._wait_for_rescue(total)
        self._finish_rounds(self._link.complete())
        self._has_left = True
        self.progress[0] = self.progress[2] = total
        if not is_held:  # a script that ends with an error has more steps to make
            self.progress[1] = total
        if saves and self.sealed_step != total and not self._save_final(total, is_held=is_held):
            _log.warning("uploads were too slow: the state of the last step (%d) was not saved", total)
            handoff.write_json(handoff.drained_path(self._directory, self._world.rank), {"step": None})
            return
        if self._world.rank == 0:
            model = self._objects.get("model")
            weights = None if model is None else checkpoint.weights_sha256(model)
            final = {
                "step": total,
                "is_saved": saves,
                "weights_sha256": weights,
                "are_weights_sharded": model is not None and weights is None,
                "left_early": left is not None,
                "planned": None if left is None else left["planned"],
            }
            handoff.write_json(handoff.final_path(self._directory), final)
        # This comes last: a process that ends during the final save has not finished.
        handoff.ended_loop_path(self._directory, self._world.rank).touch()

    def close(self) -> None:
        """At the end of the process, stop the background threads and release the arena, except in a fork."""
        if os.getpid() != self._pid:
            return
        self._hold_for_rescue()
        self._interval_saves.close()
        self._closing.close()
        if self._rescue is not None:
            self._rescue.stop()
        self._link.close()
        if self._own_states is not None:
            self._own_states.close()
        self._marks.close()
        self._saver.close()
        if self._figures is not None:
            with suppress(OSError):
                self._figures.close()
            self._figures = None

    def _finish_rounds(self, order: SaveOrder | None) -> None:
        if order is not None:
            self._drain(order, self.progress[0])

    def _drain(self, order: SaveOrder, step: int) -> NoReturn:
        if order.kind == REWOUND:
            self._link.part(agreed=True)
            raise SystemExit(0)
        if order.step is None:
            self._hold_for_rescue()  # a rank is lost, so the ranks could not agree on a boundary
        self._has_left = True
        saved: int | None = None
        if order.step is not None and step > self._start and self._save_last(order, step):
            saved = step
        self.progress[0] = step
        handoff.write_json(handoff.drained_path(self._directory, self._world.rank), {"step": saved})
        self._link.part(agreed=order.step is not None, relieved=self._saver.relieved)
        raise SystemExit(0)

    def _save_last(self, order: SaveOrder, step: int) -> bool:
        """Save for a drain even if the step is sealed, because that save may need a node that must leave."""
        copied = self._saver.copy(
            self._objects,
            order,
            step=step,
            describe=self._describe,
            deadline=lambda: self.rounds.guard,  # a notice may arrive during the wait
        )
        if copied is None or not self.rounds.hand_over(copied.handover):
            return False
        self._saver.seal(copied)
        return True

    def _save_final(self, step: int, *, is_held: bool) -> bool:
        until = time.monotonic() + FINAL_SLOT_SECONDS
        # A notice may arrive during the wait.
        deadline = lambda: min(until, self._link.drain_guard)  # noqa: E731 - a name for the line's sake
        return self._saver.save(
            self._objects,
            SaveOrder(FINAL, step),
            step=step,
            describe=self._describe,
            deadline=deadline,
            is_held=is_held,
        )


def _answer_dumps() -> None:
    """From now on, answer ``DUMP_SIGNAL``, even after a library has restored the previous handler.

    ``signal`` does not see faulthandler's handler, and faulthandler does not notice when it is replaced. The
    handler that libraries find here and later restore, as Lightning does after each ``fit``, ignores the
    signal, so the signal does not end the process.
    """
    faulthandler.unregister(handoff.DUMP_SIGNAL)
    with suppress(ValueError):  # not the main thread
        signal.signal(handoff.DUMP_SIGNAL, signal.SIG_IGN)
    faulthandler.register(handoff.DUMP_SIGNAL, all_threads=True)


def _map_progress(path: Path, start: int) -> MutableSequence[int]:
    path.write_bytes(handoff.PROGRESS.pack(start, -1, start) + handoff.DATA_WAIT.pack(-1))
    with path.open("r+b") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), handoff.PROGRESS.size + handoff.DATA_WAIT.size))
    return mapped.cast("q")  # type: ignore[return-value]  # a memoryview of integers takes them by index
