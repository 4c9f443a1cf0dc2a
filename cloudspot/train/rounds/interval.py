"""Decides when rank 0 requests the next save: at the job's fixed interval, or at a computed one."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path

from cloudspot.train.handoff import Tuning, read_tuning

SHORTEST_AUTO_SECONDS = 30.0
LONGEST_AUTO_SECONDS = 30.0 * 60
RETRY_SECONDS = 1.0
"""The delay after a save that was not made because a rank had no free slot or no new state."""
_REREAD_SECONDS = 1.0


def auto_interval(*, stall_seconds: float, upload_seconds: float, losses_per_second: float) -> float:
    """Return the interval between saves that loses the least time, by Young's formula, in seconds.

    If a save stalls the training for C seconds, saving every T seconds costs C/T of the time, and each of the
    L losses per second costs T/2 seconds; the sum is smallest at sqrt(2 C / L). The interval is at least 1.5
    times the seconds from a seal to its commit, so that uploads can keep up. A loss is the end of any node's
    machine without a usable notice.
    """
    shortest = max(SHORTEST_AUTO_SECONDS, 1.5 * upload_seconds)
    best = math.sqrt(2 * stall_seconds / losses_per_second) if losses_per_second > 0 else math.inf
    return max(shortest, min(best, LONGEST_AUTO_SECONDS))


class Pace:
    """Decides when the next interval save is due, from ``tuning.json`` and the last stall."""

    def __init__(self, handoff: Path, *, now: float) -> None:
        """Start the clock at ``now``; all times are monotonic."""
        self._handoff = handoff
        self._tuning: Tuning | None = None
        self._read_at = -math.inf
        self._last_at = now
        self._not_before = now
        self._stall_seconds = 0.1  # a guess until the first save

    def is_due(self, now: float) -> bool:
        """Return whether to request a save; False while there is no tuning."""
        if now - self._read_at >= _REREAD_SECONDS:
            self._read_at = now
            with suppress(OSError, json.JSONDecodeError, TypeError):  # keep the last tuning
                self._tuning = read_tuning(self._handoff) or self._tuning
        interval = self.interval_seconds()
        return interval is not None and now >= self._not_before and now - self._last_at >= interval

    def interval_seconds(self) -> float | None:
        """Return the current interval, or None if the agent has not written a tuning yet."""
        tuning = self._tuning
        if tuning is None or tuning.interval_seconds is not None:
            return None if tuning is None else tuning.interval_seconds
        return auto_interval(
            stall_seconds=self._stall_seconds,
            upload_seconds=tuning.upload_seconds,
            losses_per_second=tuning.losses_per_second,
        )

    def asked(self, now: float) -> None:
        """Record that a save was requested; if it is not made, it is soon due again."""
        self._not_before = now + RETRY_SECONDS

    def saved(self, now: float, *, stall_seconds: float) -> None:
        """Record a save by this rank."""
        self._last_at = now
        self._stall_seconds = stall_seconds

    def hasten(self) -> None:
        """Make the next save due immediately."""
        self._last_at = -math.inf
