"""Others' decisions about this node: a reclaim, a stop, the job's end or a newer generation."""

from __future__ import annotations

import threading

from cloudspot.agent.reclaim import Reclaim
from cloudspot.jobstore.layout.records import Generation, StopRequest


class Orders:
    """Others' decisions about this node; the first of each kind counts, but of reclaims the earliest."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.reclaim: Reclaim | None = None
        self.stop: StopRequest | None = None
        self.superseded: str | None = None
        """Why this node must no longer train: the job continues or has ended without it; or None."""
        self.is_kept = False
        """Whether the node stays for inspection, so the job's end is no order to leave."""
        self.is_shutting_down = False
        """Whether the machine or its agent is shutting down: others may have sent SIGTERM to the training."""
        self.newer: Generation | None = None
        """The newest generation that others agreed on, unless this node wrote its record."""

    def give(
        self,
        *,
        reclaim: Reclaim | None = None,
        stop: StopRequest | None = None,
        superseded: str | None = None,
    ) -> None:
        """Add orders and wake the waiting threads."""
        with self._changed:
            if reclaim is not None and (self.reclaim is None or reclaim.deadline < self.reclaim.deadline):
                self.reclaim = reclaim
            self.stop = self.stop or stop
            self.superseded = self.superseded or superseded
            self._changed.notify_all()

    def keep(self) -> None:
        """Stay for inspection even though the job is over."""
        with self._changed:
            self.is_kept, self.superseded = True, None

    @property
    def pending(self) -> bool:
        """Whether the node has an order to leave."""
        return self.reclaim is not None or self.stop is not None or self.superseded is not None

    def propose(self, newer: Generation) -> None:
        """Record that others have agreed on a newer generation, which is not yet an order to leave."""
        with self._changed:
            self.newer = newer
            self._changed.notify_all()

    def newer_than(self, current: Generation) -> Generation | None:
        """Return the newer generation that others have agreed on, or None if there is none."""
        newer = self.newer
        return newer if newer is not None and newer.number > current.number else None

    def wait(self, seconds: float) -> bool:
        """Wait for an order to leave, for at most ``seconds``; return whether there is one."""
        with self._changed:
            return self._changed.wait_for(lambda: self.pending, seconds)

    def wait_for_news(self, seconds: float) -> None:
        """Wait for any new decision, for at most ``seconds``."""
        with self._changed:
            self._changed.wait(seconds)

    def deadline(self, *, otherwise: float) -> float:
        """Return this machine's known deadline (monotonic), but never a later moment than ``otherwise``."""
        return otherwise if self.reclaim is None else min(self.reclaim.deadline, otherwise)
