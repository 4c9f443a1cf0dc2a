"""Rounds: how all ranks save at the same step without a collective in the step path (P4).

Boundaries are numbered in the order in which each rank comes to them: the same on all ranks. Not every step
ends at one, but here a step is what lies between two of them. Each rank has two actors: its main thread
arrives at boundaries, its background thread talks to the store. For round r:

1. Rank 0's background thread writes ``round/r``. It alone opens rounds; another rank that needs one
   sets ``want/drain``.
2. Each rank's background thread makes a promise under the step lock, "I pass no boundary from b on
   without a decision", and publishes it as ``promise/r/<rank>``. b lies ``lookahead`` boundaries after the
   next one, so that short steps go on while the ranks agree.
3. Rank 0 writes ``decision/r`` once, by compare_set: the highest promise, or that the round is off.
4. Each main thread goes on to the decided boundary and no further, and serves the round there.

At the end of the loop finishing wins: a rank that has finished serves nothing and says so in
``finished/<rank>``; a decision at or beyond the end is then served by nobody. A rank whose script has left
the loop early says in ``left/<rank>`` after how many steps, and waits until all have.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cloudspot.train.distributed import Store

INTERVAL = "interval"
DRAIN = "drain"

POLL_SECONDS = 0.025
"""Between two looks while no round is open."""
FAST_POLL_SECONDS = 0.004
"""Between two looks while a round is open."""
LOOKAHEAD_SECONDS = 0.1
"""About how long the ranks need to agree."""
MAX_LOOKAHEAD_STEPS = 64
INTERVAL_GUARD_SECONDS = 20.0
"""An interval round is called off when a rank has not answered by then."""
SILENCE_SECONDS = 60.0
"""A main thread that has waited this long for a decision takes the store for lost, but never before the
round's guard has passed."""
_WAIT_SECONDS = 0.5
"""Between two looks of a waiting main thread."""
_LEAVE_WAIT_SECONDS = 0.05
_GRACE_SECONDS = 1.0
"""How long after a round's guard the other ranks wait for rank 0 to call it off."""


@dataclass(frozen=True)
class SaveOrder:
    """What a main thread must do at a boundary: save there and go on, or save and leave."""

    kind: str
    step: int | None
    """The boundary; None: leave now, without a save."""
    avoid: frozenset[int] = frozenset()
    """Ranks whose machines are about to go."""
    rooms: tuple[int, ...] = ()
    """Bytes that each rank's slots hold, by rank: all ranks must plan with the same numbers."""


class Rounds:
    """One rank's part in the rounds.

    The main thread calls ``begin``, ``served`` and ``finish``. The background thread calls ``poll``
    repeatedly, and ``request_drain`` and ``request_interval``.
    """

    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        world_size: int,
        start: int,
        clock: Callable[[], float],
        can_save: Callable[[], bool] = lambda: True,
        room: Callable[[], int] = lambda: 0,
    ) -> None:
        """Join the rounds of a process group; ``start`` is the first boundary of the main thread.

        No other thread uses ``store``, this rank's own connection, while ``poll`` runs. ``clock`` returns
        monotonic seconds, ``can_save`` whether an interval save would find a free slot here, and ``room`` how
        many bytes each of this rank's slots holds.
        """
        self.store = store
        """For others' use only after the background thread has ended."""
        self._rank = rank
        self._world_size = world_size
        self._clock = clock
        self._can_save = can_save
        self._room = room
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Under the step lock:
        self._next = start
        self._hold: int | None = None  # the promise: None lets every boundary pass
        self._order: SaveOrder | None = None
        self._finished = False
        self._lost = False
        self._left: dict[int, int] = {}  # where ranks have left the loop early
        self._is_leaving = False
        # The background thread's own:
        self._round = 0
        self._state = "idle"  # idle, promised, ordered
        self._opening: dict[str, Any] = {}
        self._round_guard = math.inf
        self._opened = -1  # rank 0: the last round opened
        self._promises: dict[int, dict[str, Any]] = {}
        self._told_finished = False
        self._told_left = False
        self._wants_interval = False
        self._over = False  # some rank has finished: no round can be served by all
        self._drain_guard: float | None = None
        self._drain_notice = False
        self._told_drain = False
        self._step_seconds = _StepSeconds(start, clock)

    # --- the main thread ------------------------------------------------------------------------

    def begin(self, step: int) -> SaveOrder | None:
        """Pass the boundary before ``step``, or return what must be done first; may wait for a decision.

        When an order is served, call this again for the same step.
        """
        with self._lock:
            if self._hold is None:
                self._next = step + 1
                return None
        return self._begin_held(step)

    def _begin_held(self, step: int) -> SaveOrder | None:
        # Count looks, not seconds: a process that was suspended for a minute has not listened for a minute.
        looks_left = math.ceil(SILENCE_SECONDS / _WAIT_SECONDS)
        with self._changed:
            while not self._may_pass(step):
                if self._order is not None:
                    return self._order
                if looks_left <= 0 and self._clock() > self._round_guard + _GRACE_SECONDS:
                    self._lose()
                else:
                    looks_left -= 1
                    self._changed.wait(_WAIT_SECONDS)
            self._next = step + 1
            return None

    def _may_pass(self, step: int) -> bool:
        if self._hold is None:
            return True
        if self._order is None:
            return step < self._hold
        if self._order.step is None:
            return False
        assert step <= self._order.step, f"boundary {step} lies beyond the decided {self._order.step}"
        return step < self._order.step

    def served(self) -> None:
        """Note that the order is carried out and the training goes on."""
        with self._changed:
            self._order = None
            self._hold = None

    def finish(self) -> None:
        """Note that the loop has ended here: this rank serves no more rounds."""
        with self._changed:
            self._finished = True
            self._order = None
            self._hold = None
            self._changed.notify_all()

    def leave(self, step: int, *, until: Callable[[], float]) -> dict[int, int]:
        """Serve no more rounds, because the script has left the loop after so many steps.

        Returns after how many each rank has left, as far as that is known when all have or ``until()`` (a
        monotonic moment) has come.
        """
        with self._changed:
            self._left[self._rank] = step
            self._is_leaving = True
        self.finish()
        with self._changed:
            while len(self._left) < self._world_size and not self._lost and self._clock() < until():
                self._changed.wait(_LEAVE_WAIT_SECONDS)
            self._is_leaving = False
            return dict(self._left)

    @property
    def guard(self) -> float:
        """The monotonic moment after which the current round's save is of no use."""
        return min(self._round_guard, math.inf if self._drain_guard is None else self._drain_guard)

    @property
    def is_lost(self) -> bool:
        """Whether the store is gone, so that the ranks can no longer agree on anything."""
        return self._lost

    def wait(self, seconds: float) -> None:
        """Sleep in the background thread; a change by the main thread ends it early."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        """End a ``wait``."""
        with self._changed:
            self._changed.notify_all()

    # --- the background thread ------------------------------------------------------------------

    def request_drain(self, *, guard: float, notice: bool) -> None:
        """Ask that all ranks save and leave before ``guard``, a monotonic moment on this machine.

        ``notice`` says that this rank's own machine is about to go.
        """
        self._drain_guard = guard
        self._drain_notice = notice

    def request_interval(self) -> None:
        """Ask for an interval save; rank 0 only."""
        self._wants_interval = True

    @property
    def is_idle(self) -> bool:
        """Whether no round is open here."""
        return self._state == "idle"

    def poll(self) -> float:
        """Do what can be done without waiting; return after how many seconds to poll again."""
        if self._lost:
            self._leave_if_drained()
            return POLL_SECONDS
        try:
            while self._advance():
                pass
        except (RuntimeError, OSError):
            # Rank 0, which hosts the store, is gone: the main thread goes on until its next collective fails.
            with self._changed:
                self._lose()
        return POLL_SECONDS if self._state == "idle" else FAST_POLL_SECONDS

    def _advance(self) -> bool:
        """Take the next steps of the protocol that are possible; return whether there may be more."""
        before = (self._round, self._state)
        self._step_seconds.observe(self._next)
        if self._is_leaving:
            self._look_who_left()
        # Rank 0, which hosts the store, may end when all have finished: first each has to know who left.
        if self._finished and not self._told_finished and not self._is_leaving:
            self.store.set(f"finished/{self._rank}", "1")
            self._told_finished = True
        if self._told_finished and self._rank != 0:
            return False  # rank 0 may end before us, and the store with it
        if self._drain_guard is not None and not self._told_drain:
            self._told_drain = True
            if self._rank != 0:
                self.store.set("want/drain", json.dumps(self._drain_guard - self._clock()))
        if self._rank == 0:
            self._preside()
        self._take_part()
        return before != (self._round, self._state)

    def _look_who_left(self) -> None:
        if not self._told_left:
            self.store.set(f"left/{self._rank}", str(self._left[self._rank]))
            self._told_left = True
        for rank in range(self._world_size):
            if rank not in self._left and self.store.check([f"left/{rank}"]):
                self._left[rank] = int(self.store.get(f"left/{rank}"))
        if len(self._left) == self._world_size:
            self.wake()

    # --- rank 0 opens and decides ---------------------------------------------------------------

    def _preside(self) -> None:
        if self._opened < self._round and self._state == "idle":
            if not self._finished and not self._over:
                self._open()
        elif self._opened == self._round and self._state == "promised":
            self._decide()

    def _open(self) -> None:
        wanted = self._wanted_drain_guard()
        if wanted is not None:
            kind, guard = DRAIN, wanted
        elif self._wants_interval:
            self._wants_interval = False
            kind, guard = INTERVAL, self._clock() + INTERVAL_GUARD_SECONDS
        else:
            return
        opening = {
            "kind": kind,
            "remaining": guard - self._clock(),
            "lookahead": self._step_seconds.lookahead(kind),
        }
        self._promises = {}
        self._opened = self._round
        self.store.set(f"round/{self._round}", json.dumps(opening))

    def _wanted_drain_guard(self) -> float | None:
        if self._drain_guard is not None:
            return self._drain_guard
        if self._world_size > 1 and self.store.check(["want/drain"]):
            # Monotonic clocks of two machines cannot be compared, so it sent the seconds left.
            return self._clock() + float(json.loads(self.store.get("want/drain")))
        return None

    def _decide(self) -> None:
        number, kind = self._round, self._opening["kind"]
        for rank in range(self._world_size):
            if rank in self._promises:
                continue
            if self.store.check([f"promise/{number}/{rank}"]):
                self._promises[rank] = json.loads(self.store.get(f"promise/{number}/{rank}"))
            elif self.store.check([f"finished/{rank}"]):
                self._promises[rank] = {"step": None, "ready": False, "notice": False}
        complete = len(self._promises) == self._world_size
        impatient = kind == INTERVAL and self._wanted_drain_guard() is not None
        if not complete and not impatient and self._clock() <= self._round_guard:
            return
        promises = self._promises.values()
        if not complete:
            decision: dict[str, Any] = {"outcome": "abandon"}
        elif any(promise["step"] is None for promise in promises):
            decision = {"outcome": "finish"}
        elif kind == INTERVAL and not all(promise["ready"] for promise in promises):
            decision = {"outcome": "abandon"}
        else:
            decision = {
                "outcome": "save",
                "step": max(promise["step"] for promise in promises),
                "avoid": [rank for rank, promise in self._promises.items() if promise["notice"]],
                "rooms": [self._promises[rank]["room"] for rank in range(self._world_size)],
            }
        self.store.compare_set(f"decision/{number}", "", json.dumps(decision))

    # --- every rank promises and obeys ----------------------------------------------------------

    def _take_part(self) -> None:
        number = self._round
        if self._state == "idle":
            unopened = self._rank == 0 and self._opened < number
            if not unopened and self.store.check([f"round/{number}"]):
                self._promise(json.loads(self.store.get(f"round/{number}")))
        elif self._state == "promised":
            if self.store.check([f"decision/{number}"]):
                self._obey(json.loads(self.store.get(f"decision/{number}")))
            elif self._clock() > self._round_guard + _GRACE_SECONDS:
                self.store.compare_set(f"decision/{number}", "", json.dumps({"outcome": "abandon"}))
        elif self._hold is None:  # ordered, and the main thread has served it (or has finished)
            self._state = "idle"
            self._round += 1

    def _promise(self, opening: dict[str, Any]) -> None:
        self._opening = opening
        self._round_guard = self._clock() + opening["remaining"]
        if self._drain_guard is not None:
            self._round_guard = min(self._round_guard, self._drain_guard)
        ready = self._can_save()
        with self._changed:
            step = None if self._finished else self._next + opening["lookahead"]
            self._hold = step
        promise = {"step": step, "ready": ready, "notice": self._drain_notice, "room": self._room()}
        self._state = "promised"
        self.store.set(f"promise/{self._round}/{self._rank}", json.dumps(promise))

    def _obey(self, decision: dict[str, Any]) -> None:
        kind = self._opening["kind"]
        order: SaveOrder | None = None
        if decision["outcome"] == "save":
            avoid, rooms = frozenset(decision["avoid"]), tuple(decision["rooms"])
            order = SaveOrder(kind, decision["step"], avoid, rooms)
        elif decision["outcome"] == "abandon" and kind == DRAIN:
            order = SaveOrder(kind, None)
        self._over = decision["outcome"] == "finish"
        with self._changed:
            if order is None:
                self._hold = None
            else:
                self._order = order
            self._changed.notify_all()
        self._state = "ordered"

    # --- when a peer is lost --------------------------------------------------------------------

    def _lose(self) -> None:
        self._lost = True
        if self._order is None:
            self._hold = None
        self._changed.notify_all()

    def _leave_if_drained(self) -> None:
        """Leave without a save: there is nobody left to agree with."""
        with self._changed:
            if self._drain_guard is not None and self._order is None and not self._finished:
                self._hold = self._next
                self._order = SaveOrder(DRAIN, None)
                self._changed.notify_all()


class _StepSeconds:
    """How long a step takes, as seen from the background thread."""

    def __init__(self, start: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: tuple[float, int] = (clock(), start)
        self._seconds: float | None = None

    def observe(self, step: int) -> None:
        now = self._clock()
        then, seen = self._seen
        if now - then >= 1.0 or step - seen >= MAX_LOOKAHEAD_STEPS:
            if step > seen:
                self._seconds = (now - then) / (step - seen)
            self._seen = (now, step)

    def lookahead(self, kind: str) -> int:
        """Return how many boundaries the ranks may pass while they agree."""
        if self._seconds is None:
            return 0
        steps = LOOKAHEAD_SECONDS / max(self._seconds, 1e-6)
        # A drain has no time to waste; for an interval save another step does not matter.
        wanted = math.floor(steps) if kind == DRAIN else math.ceil(steps)
        return min(wanted, MAX_LOOKAHEAD_STEPS)
