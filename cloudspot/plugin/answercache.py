"""Cache a service's answers for a while, for plugins that need them more often than they change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

Answer = TypeVar("Answer")

FACTS_SECONDS: Final = 3600.0
"""How long images, networks, machine types and list prices are cached."""


class AnswerCache:
    """Answers by key, each with its own lifetime.

    Thread-safe: if several callers need the same answer at once, only one of them requests it.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._kept: dict[Hashable, tuple[Any, float]] = {}

    def get(self, key: Hashable, ask: Callable[[], Answer], *, seconds: float = FACTS_SECONDS) -> Answer:
        """Return the answer if it is younger than ``seconds``, else call ``ask``; failures are not cached."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or self._monotonic() >= kept[1]:
                kept = (ask(), self._monotonic() + seconds)
                self._kept[key] = kept
            answer: Answer = kept[0]
            return answer

    def shorten(self, key: Hashable, *, seconds: float) -> None:
        """Keep an answer for at most ``seconds`` from now."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept[key] = (kept[0], min(kept[1], self._monotonic() + seconds))
