"""The lines of ``cloudspot providers check``, as a plugin collects them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from cloudspot.errors import AuthError, CloudspotError
from cloudspot.model import CheckResult

MAX_SKEW_SECONDS = 240.0
"""Clouds refuse a request as expired when its time is five minutes off or more."""


class Checklist:
    """A line for each thing that was tried; a failure does not stop the others."""

    def __init__(self, *, remedy: str, words: Sequence[str] = ("access denied",)) -> None:
        """Advise ``remedy`` for a missing right: an AuthError with one of these ``words``."""
        self._remedy = remedy
        self._words = words
        self._found: list[CheckResult] = []

    def attempt(self, name: str, ask: Callable[[], str], remedy: str = "") -> bool:
        """Note what ``ask`` returns, or why it failed and what to do; return whether it succeeded."""
        try:
            self._found.append(CheckResult(name=name, ok=True, detail=ask()))
        except CloudspotError as error:
            is_right = isinstance(error, AuthError) and any(word in str(error) for word in self._words)
            advice = remedy or (self._remedy if is_right else "")
            self._found.append(CheckResult(name=name, ok=False, detail=str(error), remedy=advice))
            return False
        return True

    def results(self) -> tuple[CheckResult, ...]:
        """Return all lines in order."""
        return tuple(self._found)


def compare_clock(said: str | None, *, whose: str) -> str:
    """Return how far this machine's clock is off, by an answer's ``Date`` header.

    Raises:
        CloudspotError: so far that requests are refused.
    """
    if said is None:
        return f"unknown: {whose} did not say"
    skew = (datetime.now(timezone.utc) - parsedate_to_datetime(said)).total_seconds()
    if abs(skew) > MAX_SKEW_SECONDS:
        raise CloudspotError(f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} {whose}'s")
    return f"within {max(2.0, abs(skew)):.0f} s of {whose}'s"
