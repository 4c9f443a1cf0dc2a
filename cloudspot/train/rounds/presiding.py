"""Rank 0's part in the rounds: it opens each round, and decides each one once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cloudspot.train.distributed import Store
from cloudspot.train.rounds.save_order import DRAIN, INTERVAL, make_order
from cloudspot.train.rounds.step_seconds import StepSeconds

INTERVAL_GUARD_SECONDS = 20.0
"""An interval round is called off if a rank has not answered within this time."""


class Presiding:
    """The work that rank 0's background thread does for all ranks."""

    def __init__(
        self, store: Store, world_size: int, clock: Callable[[], float], step_seconds: StepSeconds
    ) -> None:
        self.wants_interval = False
        """Whether an interval save is requested."""
        self._store = store
        self._world_size = world_size
        self._clock = clock
        self._step_seconds = step_seconds
        self._opened = 0
        self._kind = ""
        self._promises: dict[int, dict[str, Any]] = {}

    def has_opened(self, number: int) -> bool:
        """Return whether round ``number`` has been opened."""
        return self._opened >= number

    def open(self, number: int, *, drain_guard: float | None) -> None:
        """Open a round if an interval save, or a drain before ``drain_guard`` (monotonic), is wanted."""
        if drain_guard is not None:
            kind, guard = DRAIN, drain_guard
        elif self.wants_interval:
            self.wants_interval = False
            kind, guard = INTERVAL, self._clock() + INTERVAL_GUARD_SECONDS
        else:
            return
        opening = {
            "kind": kind,
            "remaining": guard - self._clock(),
            # A drain is urgent, so the ranks stop while they agree.
            "lookahead": 0 if kind == DRAIN else self._step_seconds.lookahead(),
        }
        self._promises = {}
        self._opened, self._kind = number, kind
        self._store.set(f"round/{number}", json.dumps(opening))

    def decide(self, number: int, *, guard: float, wanted: Callable[[], float | None]) -> None:
        """Decide a round once all ranks have promised or ``guard`` has passed.

        An interval save does not wait for promises if a drain is ``wanted()``.
        """
        for rank in range(self._world_size):
            if rank in self._promises:
                continue
            if self._store.check([f"promise/{number}/{rank}"]):
                self._promises[rank] = json.loads(self._store.get(f"promise/{number}/{rank}"))
            elif self._store.check([f"finished/{rank}"]):
                self._promises[rank] = {"step": None}
        is_complete = len(self._promises) == self._world_size
        is_impatient = self._kind == INTERVAL and wanted() is not None
        if is_complete or is_impatient or self._clock() > guard:
            seconds = guard - self._clock()
            decision = self._decision(number, seconds) if is_complete else {"outcome": "abandon"}
            self._store.compare_set(f"decision/{number}", "", json.dumps(decision))

    def _decision(self, number: int, seconds: float) -> dict[str, Any]:
        promises = [self._promises[rank] for rank in range(self._world_size)]
        if any(promise["step"] is None for promise in promises):
            return {"outcome": "finish"}
        if self._kind == INTERVAL and not all(promise["ready"] for promise in promises):
            return {"outcome": "abandon"}
        step = max(promise["step"] for promise in promises)
        order = make_order(self._kind, step, number, promises, seconds=seconds)
        waits = any(promise["checks"] for promise in promises)
        return {"outcome": "save", "order": order.to_json(), "waits": waits}
