"""The duration of a step, and the number of boundaries that ranks may pass while they agree on a save."""

from __future__ import annotations

import math
from collections.abc import Callable

LOOKAHEAD_SECONDS = 0.1
"""The approximate time that the ranks need to reach an agreement."""
MAX_LOOKAHEAD_STEPS = 64


class StepSeconds:
    """The duration of a step, as observed by the background thread."""

    def __init__(self, start: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: tuple[float, int] = (clock(), start)
        self._seconds: float | None = None

    def observe(self, step: int) -> None:
        """Record the main thread's current step."""
        now = self._clock()
        then, seen = self._seen
        if now - then >= 1.0 or step - seen >= MAX_LOOKAHEAD_STEPS:
            if step > seen:
                self._seconds = (now - then) / (step - seen)
            self._seen = (now, step)

    def lookahead(self) -> int:
        """Return how many boundaries the ranks may pass while they agree on an interval save."""
        if self._seconds is None:
            return 0
        return min(math.ceil(LOOKAHEAD_SECONDS / max(self._seconds, 1e-6)), MAX_LOOKAHEAD_STEPS)
