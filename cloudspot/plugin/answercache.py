"""Cache a service's answers, for plugins that are asked more often than the answers change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class Keeper:
    """Answers by key, each for its time. Thread-safe: of several callers at once, one asks."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._kept: dict[Hashable, tuple[Any, float]] = {}

    def keep(self, key: Hashable, ask: Callable[[], Answer], *, seconds: float) -> Answer:
        """Return what ``ask`` returned within the last ``seconds``, or ask now; errors are not cached."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or self._monotonic() >= kept[1]:
                kept = (ask(), self._monotonic() + seconds)
                self._kept[key] = kept
            answer: Answer = kept[0]
            return answer

    def shorten(self, key: Hashable, *, seconds: float) -> None:
        """Keep an answer for at most this long from now."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept[key] = (kept[0], min(kept[1], self._monotonic() + seconds))
