"""Read numbers and times from a service's answers, and check their bounds before they are used."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Final

from cloudspot.decoding import LATEST, MAX_PRICE, is_possible_time
from cloudspot.errors import TransientError

MAX_DIGITS: Final = 100
UNREADABLE: Final = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""The errors that we or an SDK raise if an answer lacks its documented form or is nested too deeply
(``RecursionError`` is a RuntimeError)."""


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Raise TransientError, beginning with ``what``, if an answer lacks its documented form."""
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(what) from error


def unreadable(what: str) -> TransientError:
    """Return the error for an answer that lacks its documented form."""
    return TransientError(f"{what}: the answer cannot be read")


def number(value: object, *, most: float) -> float | None:
    """Return a foreign value, or its text, as a number from 0 to ``most``; None if it is no such number.

    This is stricter than ``float``, which also accepts "nan", "inf" and underscores.
    """
    is_text = isinstance(value, str) and len(value) <= MAX_DIGITS and "_" not in value
    if isinstance(value, bool) or not (is_text or isinstance(value, (int, float))):
        return None
    try:
        found = float(value)  # type: ignore[arg-type] # it is one of these
    except (OverflowError, ValueError):
        return None
    return found if math.isfinite(found) and 0 <= found <= most else None


def price(value: object) -> float | None:
    """Return the price in an answer, or None if the value cannot be a price."""
    return number(value, most=MAX_PRICE)


def moment(value: object) -> datetime | None:
    """Return the time in an answer (a datetime or its ISO form) in UTC; None if the value is not a time.

    A time without a time zone counts as UTC. Times before 1970 or from 2200 on give None.
    """
    try:
        at = (
            value
            if isinstance(value, datetime)
            else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
        )
        at = at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc)
    except (OverflowError, ValueError):
        return None
    return at if is_possible_time(at) else None


def moment_of(seconds: object) -> datetime | None:
    """Return the time for a number of seconds since 1970, or None if the number is out of bounds."""
    found = number(seconds, most=LATEST.timestamp() - 1)
    return None if found is None else datetime.fromtimestamp(found, timezone.utc)
