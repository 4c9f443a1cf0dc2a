"""Numbers and times in a service's answers: taken within bounds before anything is done with them."""

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
"""What we or an SDK raise in reading an answer that has another shape than its service documents, or that is
nested too deeply (``RecursionError`` is a RuntimeError)."""


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Raise TransientError, with ``what`` before the reason, if an answer has another shape than is read."""
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(what) from error


def unreadable(what: str) -> TransientError:
    """Return the error for an answer that has another shape than its service documents."""
    return TransientError(f"{what}: the answer cannot be read")


def number(value: object, *, most: float) -> float | None:
    """Return the number from 0 to ``most`` that a value from outside is, or its text; None: it is not one.

    ``float`` alone also takes "nan", "inf" and underscores.
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
    """Return the price that an answer tells; None: it tells none that can be one."""
    return number(value, most=MAX_PRICE)


def moment(value: object) -> datetime | None:
    """Return the time that an answer tells, in UTC: a datetime, or its ISO form; None: it tells none.

    One without a time zone is in UTC. Times before 1970 and from 2200 on are taken for none.
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
    """Return the time that a number of seconds since 1970 tells; None: none that can be one."""
    found = number(seconds, most=LATEST.timestamp() - 1)
    return None if found is None else datetime.fromtimestamp(found, timezone.utc)
