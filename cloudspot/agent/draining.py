"""When the ranks of this node have to save and leave, and until when that helps."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cloudspot.agent.watcher import drain_at, guard_of
from cloudspot.train import handoff as files

if TYPE_CHECKING:
    from cloudspot.agent.life import Life

_log = logging.getLogger(__name__)

STOP_GUARD_SECONDS = 120.0
"""How long a requested stop waits for the ranks to save."""


class Draining:
    """The drain that this node's own orders ask for."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._stop_guard: float | None = None

    def due(self, now: float) -> files.Drain | None:
        """Return the drain that is due by now, with its guard; None: there is none yet."""
        orders, status = self._life.orders, self._life.status
        upload = status.upload_seconds or 0.0
        if orders.reclaim is not None:
            deadline = orders.reclaim.deadline
            start = drain_at(
                deadline, now=orders.reclaim.seen, save_seconds=upload + (status.stall_seconds or 0.0)
            )
            if now >= start:
                guard = guard_of(deadline, now=max(start, orders.reclaim.seen), upload_seconds=upload)
                return files.Drain(kind="notice", guard=guard)
        if orders.stop is not None:
            self._stop_guard = self._stop_guard or now + STOP_GUARD_SECONDS
            return files.Drain(kind="notice" if orders.reclaim else "stop", guard=self._stop_guard)
        return None

    def is_over(self, drain: files.Drain, now: float) -> bool:
        """Say whether waiting for the trainer helps no more."""
        if now >= drain.guard:
            _log.warning("the trainer did not leave in time: ending it")
            return True
        # A script without a session knows of no drain: what its own newest checkpoint holds is kept.
        return drain.kind == "stop" and not self._life.status.has_session
