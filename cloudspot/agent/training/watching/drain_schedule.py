"""Decide when the ranks of this node must save and leave, and how long to wait for them."""

from __future__ import annotations

import logging

from cloudspot.agent.node_context import NodeContext
from cloudspot.train import handoff as files

_log = logging.getLogger(__name__)

STOP_GUARD_SECONDS = 120.0
"""How long to wait for the ranks to save after a stop request, or when newcomers are admitted."""
LONG_NOTICE_SECONDS = 60.0
"""During a longer notice than this, the training continues at first."""
JOIN_AFTER_STARTS = 10.0
"""A generation ends for newcomers only after it has trained for this many times the duration of its start."""
SCRIPT_START_SECONDS = 60.0
"""The assumed duration of the start of a script without a session, which does not report its loop."""


def guard_of(deadline: float, *, now: float, upload_seconds: float) -> float:
    """Return the moment (monotonic) after which a new save can no longer be uploaded in time.

    The reserve is 1.5 times the duration of the last upload, plus a second for the commit, the last log lines
    and the exit record, but at most 60 % of the remaining time.
    """
    return deadline - min(1.5 * upload_seconds + 1.0, 0.6 * max(0.0, deadline - now))


def drain_at(deadline: float, *, now: float, save_seconds: float, step_seconds: float = 0.0) -> float:
    """Return the moment (monotonic) at which to start the drain.

    If at most a minute is left, drain at once. Otherwise, continue to train until a minute is left or, if
    that is longer, three times the measured duration of a save and its upload. If steps are long, leave time
    for two of them and the save, because a step may just have begun when the order arrives.
    """
    last_step = 2.0 * step_seconds + 1.5 * save_seconds + 1.0
    return max(now, deadline - max(LONG_NOTICE_SECONDS, 3.0 * save_seconds, last_step))


def join_is_due(now: float, *, began_at: float, training_began_at: float) -> bool:
    """Return whether a generation has trained long enough to end for newcomers; all times are monotonic.

    The generation was agreed on at ``began_at``; ``training_began_at`` is 0 until its first step.
    """
    start_seconds = max(0.0, training_began_at - began_at)
    return training_began_at > 0.0 and now - training_began_at >= JOIN_AFTER_STARTS * start_seconds


class DrainSchedule:
    """Schedules the drain that this node's orders require."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._stop_guard: float | None = None

    @property
    def notifies_script(self) -> bool:
        """Whether a script without a session must be notified."""
        return (
            self._context.job.spec.checkpoint.on_notice is not None and not self._context.status.has_session
        )

    def due(
        self,
        now: float,
        *,
        peers_deadline: float | None = None,
        is_replaced: bool = False,
        joins: bool = False,
    ) -> files.Drain | None:
        """Return the drain that is due now, with its guard, or None if none is due.

        ``peers_deadline`` is when another node leaves: a session's ranks agree on a drain by themselves, but
        a script without a session saves on global rank 0, on any node. ``is_replaced`` is whether another
        node is ready to replace this one, so there is no reason to delay the drain. ``joins`` is whether
        newcomers are to be admitted.
        """
        orders = self._context.orders
        if orders.reclaim is not None:
            drain = self._before(
                orders.reclaim.deadline, seen=orders.reclaim.seen, now=now, is_replaced=is_replaced
            )
            if drain is not None:
                return drain
        if peers_deadline is not None and self.notifies_script:
            drain = self._before(peers_deadline, seen=now, now=now)
            if drain is not None:
                return drain
        if orders.stop is not None:
            self._stop_guard = self._stop_guard or now + self._order_seconds
            return files.Drain(kind="notice" if orders.reclaim else "stop", guard=self._stop_guard)
        return files.Drain(kind="join", guard=now + self._order_seconds) if joins else None

    @property
    def _order_seconds(self) -> float:
        return max(STOP_GUARD_SECONDS, 3.0 * self._save_seconds)

    @property
    def _save_seconds(self) -> float:
        """The measured duration of a drain's save and upload; unknown durations count as 0."""
        status = self._context.status
        copying = 0.0 if status.save_cost is None else status.save_cost.copy_seconds
        return (status.upload_seconds or 0.0) + max(status.stall_seconds or 0.0, copying)

    def _step_seconds(self, now: float) -> float:
        status, began_at = self._context.status, self._context.memory.training_began_at
        steps = status.progress()[0] - status.restored_step
        return (now - began_at) / steps if status.has_session and began_at and steps > 0 else 0.0

    def _before(
        self, deadline: float, *, seen: float, now: float, is_replaced: bool = False
    ) -> files.Drain | None:
        status = self._context.status
        start = drain_at(
            deadline, now=seen, save_seconds=self._save_seconds, step_seconds=self._step_seconds(now)
        )
        if is_replaced:
            start = min(start, now)
        if self.notifies_script and status.stall_seconds is None:
            start = seen  # the duration of a save is unknown
        if now < start:
            return None
        guard = guard_of(deadline, now=max(start, seen), upload_seconds=status.upload_seconds or 0.0)
        return files.Drain(kind="notice", guard=guard)

    def is_over(self, drain: files.Drain, now: float) -> bool:
        """Return whether there is no longer a reason to wait for the trainer."""
        if now >= drain.guard:
            _log.warning("the trainer did not leave in time: ending it")
            return True
        # A script without a session or a notice cannot drain; its own newest checkpoint is kept.
        return drain.kind == "stop" and not self._context.status.has_session and not self.notifies_script
