"""How long a step takes, and how many boundaries ranks may pass while they agree on one."""

from __future__ import annotations

import math
from collections.abc import Callable

LOOKAHEAD_SECONDS = 0.1
"""About how long the ranks need to agree."""
MAX_LOOKAHEAD_STEPS = 64


class StepSeconds:
    """How long a step takes, as seen from the background thread."""

    def __init__(self, start: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: tuple[float, int] = (clock(), start)
        self._seconds: float | None = None

    def observe(self, step: int) -> None:
        """Note at which step the main thread is now."""
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
