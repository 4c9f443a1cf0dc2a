"""Rounds: how all ranks save at the same step without a collective in the step path (P4).

Boundaries are numbered in the order in which each rank reaches them, which is the same on all ranks. Not
every step of the training ends at a boundary; in this module, a step is the time between two boundaries. Each
rank has two actors: its main thread, which arrives at boundaries, and its background thread, which uses the
store. For round r:

1. Rank 0's background thread writes ``round/r``, counted from 1. Only rank 0 opens rounds; another rank that
   needs a round sets ``want/drain``, or the next of ``want/interval/<number>``.
2. Each rank's background thread makes a promise under the step lock, "I pass no boundary from b on
   without a decision", and publishes it as ``promise/r/<rank>``. In a drain, b is the next boundary; before
   an interval save, ``lookahead`` more boundaries may pass, so that short steps go on while the ranks agree.
3. Rank 0 writes ``decision/r`` once, by compare_set: the highest promise, or that the round is off.
4. Each main thread goes on to the decided boundary and no further, and serves the round there. In a drain, a
   rank whose machine is about to go hands its own state to a rank that stays: see ``handover``.

Between two boundaries, a script may ask whether it must leave (``check``). Once a rank's script has asked, a
drain's boundary is served only when all ranks have arrived there, and until then all ranks may rewind: see
``rewind``.

The end of the loop takes precedence: a rank that has finished serves no orders and writes
``finished/<rank>``, and no rank serves a decision at or beyond the end. A rank whose script leaves the loop
early writes its number of steps to ``left/<rank>``, and waits until all ranks have left.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable
from typing import Any

from cloudspot.train.distributed import Store
from cloudspot.train.rounds.early_leave import EarlyLeave
from cloudspot.train.rounds.handover import HandOver
from cloudspot.train.rounds.presiding import Presiding
from cloudspot.train.rounds.rewind import Rewind, Rewindable
from cloudspot.train.rounds.save_order import DRAIN, INTERVAL, RESCUE, REWOUND, SaveOrder, read_order
from cloudspot.train.rounds.step_seconds import StepSeconds

_log = logging.getLogger("cloudspot")

POLL_SECONDS = 0.025
"""The time between two polls while no round is open."""
FAST_POLL_SECONDS = 0.004
"""The time between two polls while a round is open."""
SILENCE_SECONDS = 60.0
"""A main thread that has waited for a decision this long assumes that the store is lost, but never before the
round's guard has passed."""
_WAIT_SECONDS = 0.5
"""The interval at which a waiting main thread checks for a decision."""
_LEAVE_WAIT_SECONDS = 0.05
_LOOK_EVERY = 8
"""After this number of polls, rank 0 checks again whether another rank wants an interval save."""
_GRACE_SECONDS = 1.0
"""How long after a round's guard the other ranks wait for rank 0 to call the round off."""


class Rounds:
    """One rank's part in the rounds.

    The main thread calls ``begin``, ``check``, ``served`` and ``finish``. The background thread calls
    ``poll`` repeatedly, and ``request_drain`` and ``request_interval``.
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
        node: int | None = None,
        rewindable: Rewindable | None = None,
    ) -> None:
        """Join the rounds of a process group; ``start`` is the main thread's first boundary.

        No other thread may use ``store``, this rank's own connection, while ``poll`` runs. ``clock`` returns
        monotonic seconds, ``can_save`` returns whether this rank has a free slot for an interval save, and
        ``room`` returns the size of this rank's slots in bytes. Ranks on the same machine have the same
        ``node``; None means that no other rank is on this machine. ``rewindable`` can save at passed
        boundaries.
        """
        self.store = store
        """The store, which other code may use only after the background thread has ended."""
        self._rank = rank
        self._world_size = world_size
        self._clock = clock
        self._can_save = can_save
        self._room = room
        self._node = rank if node is None else node
        self._rewindable = rewindable
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Fields under the step lock:
        self._next = start
        self._hold: int | None = None  # the promise; if None, every boundary may be passed
        self._order: SaveOrder | None = None
        self._finished = False
        self._lost = False
        self._is_rescued = False  # the main thread passes no further boundary
        self._is_serving = False
        self._has_arrived = False  # at the boundary of an order, waiting for the others
        self._all_are_ahead = False  # all ranks have arrived there
        self._limit: int | None = None  # in a rewind: the last boundary to pass; no order is served
        self._is_held_by_rewind = False
        self._asks = False  # the main thread is waiting in ``check``
        self._has_checked = False
        self._early_leave = EarlyLeave(store, rank=rank, world_size=world_size)
        self._handover: HandOver | None = None
        # Fields of the background thread only:
        self._round = 1
        self._state = "idle"  # idle, promised, ordered
        self._opening: dict[str, Any] = {}
        self._round_guard = math.inf
        self._announced_finish = False
        self._over = False  # a rank has finished: rounds need all ranks
        self._drain_guard: float | None = None
        self._drain_notice = False
        self._announced_drain = False
        self.wants_interval = False
        """Whether this rank, which is not rank 0, requests an interval save because one failed here."""
        self._num_wanted = self._num_looks = 0
        self._step_seconds = StepSeconds(start, clock)
        self._presiding: Presiding | None = None
        if rank == 0:
            self._presiding = Presiding(store, world_size, clock, self._step_seconds)
        self._rewind = self._new_rewind(self._round)
        self._has_saved = False  # in this round
        self._served_rewind: Rewind | None = None  # of the last round in which this rank saved
        self._waits_for_all = False
        self._can_rewind = False
        """Whether a drain is wanted and the boundary ahead is decided or about to be decided."""
        self._wanted_guard: float | None = None

    # --- the main thread ------------------------------------------------------------------------

    def begin(self, step: int) -> SaveOrder | None:
        """Pass the boundary before ``step``, or return the order to serve first. This may wait.

        After serving the order, call this again for the same step. In a rescue, the order is to wait at the
        boundary.
        """
        with self._lock:
            if self._hold is None:
                self._next = step + 1
                return None
        return self._begin_held(step)

    def _begin_held(self, step: int) -> SaveOrder | None:
        # Count checks rather than seconds: a process that was suspended for a minute did not check in that
        # time.
        looks_left = math.ceil(SILENCE_SECONDS / _WAIT_SECONDS)
        with self._changed:
            while not self._may_pass(step):
                if self._is_rescued:
                    return SaveOrder(RESCUE, step)
                if self._order is not None and self._may_serve(self._order):
                    self._is_serving = True
                    return self._order
                is_late = self._clock() > self._round_guard + _GRACE_SECONDS
                if looks_left <= 0 and is_late and self._limit is None:
                    self._lose("the other ranks do not answer")
                else:
                    looks_left -= 1
                    self._changed.wait(_WAIT_SECONDS)
            self._next = step + 1
            return None

    def _may_pass(self, step: int) -> bool:
        if self._is_rescued:
            return False
        if self._limit is not None:
            return step <= self._limit
        if self._hold is None:
            return True
        if self._order is None:
            return step < self._hold
        if self._order.step is None or self._order.kind == REWOUND:
            return False
        assert step <= self._order.step, f"boundary {step} lies beyond the decided {self._order.step}"
        return step < self._order.step

    def _may_serve(self, order: SaveOrder) -> bool:
        """Return whether an order can be carried out now; if not, record that this rank has arrived."""
        if self._limit is not None:
            return False
        if order.kind != DRAIN or order.step is None or not self._waits_for_all or self._all_are_ahead:
            return True
        self._has_arrived = True
        return self._lost or self._clock() > self._round_guard

    def check(self) -> SaveOrder | None:
        """Between two boundaries, return the order to leave if a drain stands and all ranks have rewound.

        This waits for the decision.
        """
        self._has_checked = True
        if not self._can_rewind:
            return None
        with self._changed:
            self._asks = True
            try:
                while self._may_rewind():
                    self._changed.wait(_WAIT_SECONDS)
            finally:
                self._asks = False
            order = self._order
            return order if order is not None and _is_to_leave_now(order) else None

    def _may_rewind(self) -> bool:
        """Return whether ``check`` must wait."""
        if self._is_rescued:
            return False
        if self._limit is not None:
            return True  # the others may be about to leave
        is_leaving = self._order is not None and _is_to_leave_now(self._order)
        return self._can_rewind and not is_leaving and not self._finished and not self._lost

    def served(self) -> None:
        """Record that the order was carried out and the training continues."""
        with self._changed:
            self._order = None
            self._let_pass()
            self._is_serving = False

    def finish(self) -> SaveOrder | None:
        """Record that the loop has ended here; return an order to leave, or None to serve no more rounds."""
        with self._changed:
            while self._limit is not None and not self._is_rescued:
                self._changed.wait(_WAIT_SECONDS)
            if self._order is not None and self._order.kind == REWOUND:
                return self._order
            self._finished = True
            self._order = None
            self._hold = None
            self._changed.notify_all()
            return None

    def leave(self, step: int, *, until: Callable[[], float]) -> dict[int, int] | SaveOrder:
        """Serve no more rounds, because the script has left the loop after ``step`` steps.

        Return the order to leave if there is one. Otherwise, wait until all ranks have left or ``until()`` (a
        monotonic moment) has passed, and return the number of steps after which each rank left, by rank, for
        those known to have left.
        """
        early = self._early_leave
        with self._changed:
            early.begin(step)
        order = self.finish()
        if order is not None:
            return order
        with self._changed:
            while not early.is_complete and not self._has_ended and self._clock() < until():
                self._changed.wait(_LEAVE_WAIT_SECONDS)
            early.is_open = False
            return dict(early.steps)

    def hand_over(self, handover: HandOver) -> bool:
        """Hand over the state for a drain's order; return whether this was completed by the ``guard``."""
        with self._changed:
            self._handover = handover
            while not handover.is_done and not self._has_ended and self._clock() < self.guard:
                self._changed.wait(_LEAVE_WAIT_SECONDS)
            self._handover = None
        return handover.is_done

    @property
    def guard(self) -> float:
        """The moment (monotonic) after which the current round's save is useless."""
        return min(self._round_guard, math.inf if self._drain_guard is None else self._drain_guard)

    def has_rewound(self) -> bool:
        """Return whether the state at a passed boundary is sealed, so later work does not count.

        This waits until the answer is known.
        """
        with self._changed:
            while self._limit is not None and not self._is_rescued:
                self._changed.wait(_WAIT_SECONDS)
            return self._order is not None and self._order.kind == REWOUND

    @property
    def is_rewound(self) -> bool:
        """Whether the state at a passed boundary is known to be sealed: ``has_rewound`` without waiting."""
        return self._state == "rewound"

    def stop_for_rescue(self) -> bool:
        """Keep the main thread from passing another boundary, without waiting for other ranks.

        Return False if the ranks have rewound, and therefore have already left.
        """
        with self._changed:
            if self._state == "rewound":
                return False
            self._is_rescued = True
            self._limit, self._hold = None, self._next if self._hold is None else self._hold
            self._changed.notify_all()
            return True

    def _let_pass(self) -> None:
        """Let all boundaries be passed, unless a rescue has begun; the caller holds the step lock."""
        self._hold = self._next if self._is_rescued else None

    @property
    def _has_ended(self) -> bool:
        return self._lost or self._is_rescued

    @property
    def is_rescued(self) -> bool:
        """Whether a rescue has begun, after which no boundary is passed."""
        return self._is_rescued

    @property
    def is_lost(self) -> bool:
        """Whether the store is lost, so the ranks can no longer agree on anything."""
        return self._lost

    def wait(self, seconds: float) -> None:
        """Sleep in the background thread; a change by the main thread ends the sleep early."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        """End a ``wait``."""
        with self._changed:
            self._changed.notify_all()

    # --- the background thread ------------------------------------------------------------------

    def request_drain(self, *, guard: float, notice: bool) -> None:
        """Request that all ranks save and leave before ``guard``, a moment on this machine's monotonic clock.

        ``notice`` says that this rank's own machine is about to be reclaimed.
        """
        self._drain_guard = guard
        self._drain_notice = notice

    def request_interval(self) -> None:
        """Request an interval save; only on rank 0."""
        assert self._presiding is not None
        self._presiding.wants_interval = True

    @property
    def is_idle(self) -> bool:
        """Whether no round is open on this rank."""
        return self._state == "idle"

    def poll(self) -> float:
        """Do all work that is possible without waiting; return the seconds until the next poll."""
        if self._is_rescued:
            return POLL_SECONDS
        if self._lost:
            self._leave_if_drained()
            return POLL_SECONDS
        try:
            while self._advance():
                pass
        except (RuntimeError, OSError) as error:
            # Rank 0, which hosts the store, is gone: the main thread continues until its next collective
            # fails.
            with self._changed:
                self._lose(str(error).partition("\n")[0])
        # A decided interval save may wait a long time for its boundary while the script evaluates.
        is_slow = self._state == "idle" or (self._state == "ordered" and self._opening["kind"] == INTERVAL)
        return POLL_SECONDS if is_slow and self._limit is None else FAST_POLL_SECONDS

    def _advance(self) -> bool:
        """Take the next possible steps of the protocol; return whether more may be possible."""
        before = (self._round, self._state)
        self._step_seconds.observe(self._next)
        if self._early_leave.is_open and self._early_leave.look():
            self.wake()
        handover = self._handover
        if handover is not None and not handover.is_done and handover.advance(self.store):
            self.wake()
        # Rank 0, which hosts the store, may end once all have finished, so each rank must first know which
        # ranks left.
        if self._finished and not self._announced_finish and not self._early_leave.is_open:
            self.store.set(f"finished/{self._rank}", "1")
            self._announced_finish = True
        if self._announced_finish and self._rank != 0:
            return False  # rank 0 may end before this rank, and the store with it
        if self._drain_guard is not None and not self._announced_drain:
            self._announced_drain = True
            if self._world_size > 1:
                self.store.set("want/drain", json.dumps(self._drain_guard - self._clock()))
        if self.wants_interval:
            self.wants_interval = False
            own = str(self._rank)
            while self.store.compare_set(f"want/interval/{self._num_wanted}", "", own) != own.encode():
                self._num_wanted += 1
            self._num_wanted += 1
        if self._presiding is not None:
            self._preside(self._presiding)
        self._take_part()
        return before != (self._round, self._state)

    # --- rank 0 opens and decides ---------------------------------------------------------------

    def _preside(self, presiding: Presiding) -> None:
        if presiding.has_opened(self._round):
            if self._state == "promised":
                presiding.decide(self._round, guard=self._round_guard, wanted=self._wanted_drain_guard)
        elif self._state == "idle" and not self._finished and not self._over:
            self._num_looks += 1
            # Check rarely, because saves rarely fail.
            is_turn = self._world_size > 1 and self._num_looks % _LOOK_EVERY == 0
            if is_turn and self.store.check([f"want/interval/{self._num_wanted}"]):
                self._num_wanted += 1
                presiding.wants_interval = True
            presiding.open(self._round, drain_guard=self._wanted_drain_guard())

    def _wanted_drain_guard(self) -> float | None:
        if self._drain_guard is not None:
            return self._drain_guard
        if self._world_size > 1 and self.store.check(["want/drain"]):
            # The monotonic clocks of two machines cannot be compared, so the value is the remaining seconds.
            return self._clock() + float(json.loads(self.store.get("want/drain")))
        return None

    # --- every rank promises and obeys ----------------------------------------------------------

    def _take_part(self) -> None:
        number = self._round
        if self._state == "rewound":
            return  # the state is already sealed
        if self._served_rewind is not None and self._served_rewind.look():
            # This rank has made the interval save, but other ranks have not reached its boundary.
            self._turn_back(self._served_rewind)
        elif self._state == "idle":
            is_unopened = self._presiding is not None and not self._presiding.has_opened(number)
            if not is_unopened and self.store.check([f"round/{number}"]):
                self._promise(json.loads(self.store.get(f"round/{number}")))
        elif self._state == "promised":
            if self.store.check([f"decision/{number}"]):
                self._obey(json.loads(self.store.get(f"decision/{number}")))
            elif self._clock() > self._round_guard + _GRACE_SECONDS:
                self.store.compare_set(f"decision/{number}", "", json.dumps({"outcome": "abandon"}))
        elif self._state == "ordered":
            if self._hold is None:
                # The main thread has served the order, or has finished.
                self._state = "idle"
                if self._has_saved:
                    self._served_rewind = self._rewind
                self._round += 1
                self._rewind = self._new_rewind(self._round)
                self._can_rewind = False
            elif self._order is not None:
                self._wait_for_all()
                self._offer_rewind()

    # --- between two boundaries -----------------------------------------------------------------

    def _new_rewind(self, number: int) -> Rewind:
        ranks = {"rank": self._rank, "world_size": self._world_size}
        return Rewind(self.store, number, **ranks, rewindable=self._rewindable)

    def _wait_for_all(self) -> None:
        """Let the main threads serve a boundary ahead once all of them have arrived there."""
        if self._waits_for_all and self._has_arrived and not self._all_are_ahead and self._rewind.arrive():
            with self._changed:
                self._all_are_ahead, self._can_rewind = True, False
                self._changed.notify_all()

    def _offer_rewind(self) -> None:
        if self._opening["kind"] == INTERVAL and self._has_checked and not self._can_rewind:
            wanted = self._wanted_drain_guard()
            if wanted is not None:
                self._wanted_guard = wanted
                self._can_rewind = not self._rewind.is_off
        if self._asks and self._rewind.asked is None and not self._rewind.is_off:
            self._rewind.ask(self._next - 1)
        if self._rewind.look():
            self._turn_back(self._rewind)

    def _turn_back(self, rewind: Rewind) -> None:
        """Take part in a rewind while the main thread is held after the boundary that was asked for."""
        with self._changed:
            if self._is_serving and self._order is not None and self._order.kind == INTERVAL:
                return  # the main thread will soon continue
            self._limit = rewind.asked
            if self._hold is None:
                self._hold, self._is_held_by_rewind = self._next, True
            can_rewind = not self._finished and not self._is_serving
        seconds = self.rewind_guard - self._clock()
        order = rewind.advance(can_rewind=can_rewind, seconds=seconds, own=self._own)
        if order is not None:
            with self._changed:
                self._order = order
            self._state = "rewound"
        elif seconds < -_GRACE_SECONDS:
            rewind.is_off = True
        if order is not None or rewind.is_off:
            with self._changed:
                self._limit, self._can_rewind = None, order is not None
                if self._is_held_by_rewind:
                    self._is_held_by_rewind = False
                    self._let_pass()
                self._changed.notify_all()

    @property
    def rewind_guard(self) -> float:
        """The moment (monotonic) after which a save at a passed boundary is useless."""
        known = [self._drain_guard, self._wanted_guard]
        if self._state != "idle" and self._opening["kind"] == DRAIN:
            known.append(self._round_guard)
        return min((guard for guard in known if guard is not None), default=math.inf)

    def _promise(self, opening: dict[str, Any]) -> None:
        self._opening = opening
        self._round_guard = self._clock() + opening["remaining"]
        if self._drain_guard is not None:
            self._round_guard = min(self._round_guard, self._drain_guard)
        ready = self._can_save()
        with self._changed:
            step = None if self._finished else self._next + opening["lookahead"]
            self._hold = step
            self._can_rewind = opening["kind"] == DRAIN
        promise = {"step": step, "ready": ready, "checks": self._has_checked, **self._own}
        self._state = "promised"
        self.store.set(f"promise/{self._round}/{self._rank}", json.dumps(promise))

    @property
    def _own(self) -> dict[str, Any]:
        """This rank's report for an order: see ``make_order``."""
        return {"notice": self._drain_notice, "node": self._node, "room": self._room()}

    def _obey(self, decision: dict[str, Any]) -> None:
        kind = self._opening["kind"]
        order: SaveOrder | None = None
        if decision["outcome"] == "save":
            order = read_order(decision["order"])
            self._waits_for_all = kind == DRAIN and decision["waits"]
        elif decision["outcome"] == "abandon" and kind == DRAIN:
            order = SaveOrder(kind, None)
        self._has_saved = decision["outcome"] == "save"
        self._over = decision["outcome"] == "finish"
        with self._changed:
            if order is None:
                self._let_pass()
            else:
                self._order = order
            self._changed.notify_all()
        self._state = "ordered"

    # --- when a peer is lost --------------------------------------------------------------------

    def _lose(self, why: str) -> None:
        if not self._finished:
            _log.warning(
                "rank %d cannot agree on a save with the other ranks until the training starts again: %s",
                *(self._rank, why),
            )
        self._lost = True
        self._limit = None
        if self._order is None:
            self._let_pass()
        self._changed.notify_all()

    def _leave_if_drained(self) -> None:
        """Leave without a save, because no ranks are left to agree with."""
        with self._changed:
            if self._drain_guard is not None and self._order is None and not self._finished:
                self._hold = self._next
                self._order = SaveOrder(DRAIN, None)
                self._changed.notify_all()


def _is_to_leave_now(order: SaveOrder) -> bool:
    return order.kind == REWOUND or order.step is None
