"""Durations, times, sizes and money as people write them: ``"10m"``, ``"50GiB"``, ``"12.50 USD"``.

Plugins use :data:`Duration` and :data:`Size` in their own tables, with the same spellings and errors.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, time, timedelta
from typing import Annotated, Final

import msgspec

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final[dict[str, int]] = {
    "B": 1,
    **{f"{letter}B": 1000 ** (i + 1) for i, letter in enumerate("KMGT")},
    **{f"{letter}iB": 1024 ** (i + 1) for i, letter in enumerate("KMGT")},
}
_NUMBER: Final = r"\d+(?:\.\d+)?"
_DURATION: Final = re.compile(rf"(?:{_NUMBER}\s*(?:ms|s|m|h|d)\s*)+")
_DURATION_TERM: Final = re.compile(rf"({_NUMBER})\s*(ms|s|m|h|d)")
_TIME_OF_DAY: Final = re.compile(r"\d{2}:\d{2}(?::\d{2})?")
_SIZE: Final = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)")
_MONEY: Final = re.compile(rf"({_NUMBER})(?:\s*([A-Z]{{3}}))?")

# These patterns are for the JSON Schema, in the dialect of regular expressions that all its readers support.
_DIGITS: Final = r"[0-9]+(?:\.[0-9]+)?\s*"
_ABOVE_0: Final = r"(?=.*[1-9])"
_DURATION_PATTERN: Final = (
    rf"(?=\s*[0-9])\s*(?:{_DIGITS}|"
    + "".join(rf"(?:{_DIGITS}{unit}\s*)?" for unit in ("d", "h", "m(?!s)", "s", "ms"))
    + ")$"
)
_SIZE_PATTERN: Final = rf"\s*{_DIGITS}(?:B|[KMGT]i?B)\s*$"
_MONEY_PATTERN: Final = rf"^{_ABOVE_0}\s*{_DIGITS}(?:[A-Z]{{3}})?\s*$"
MONEY: Final = msgspec.Meta(extra_json_schema={"pattern": _MONEY_PATTERN})
"""The metadata of an amount above 0, as ``parse_money`` reads it."""


def _quantity(kind: str, pattern: str) -> msgspec.Meta:
    return msgspec.Meta(extra={"quantity": kind}, extra_json_schema={"pattern": f"^{pattern}"})


Duration = Annotated[float, msgspec.Meta(ge=0), _quantity("duration", _DURATION_PATTERN)]
"""Seconds, 0 or more. In the job file, also ``"90s"``, ``"10m"`` or ``"1h30m"``."""
PositiveDuration = Annotated[float, msgspec.Meta(gt=0), _quantity("duration", _ABOVE_0 + _DURATION_PATTERN)]
"""Seconds, more than 0, with the same spellings."""
Size = Annotated[int, msgspec.Meta(ge=0), _quantity("size", _SIZE_PATTERN)]
"""Bytes, 0 or more. In the job file, also ``"50GiB"`` (2**30) or ``"50GB"`` (10**9)."""


def or_word(word: str) -> msgspec.Meta:
    """Allow ``word`` instead of None for a field that may be None."""
    return msgspec.Meta(extra={"word": word}, extra_json_schema={"enum": [word]})


def parse_duration(text: str) -> float:
    """Return the seconds in a duration such as ``"500ms"``, ``"90s"``, ``"1h30m"`` or ``"2d"``.

    A number without a unit is in seconds, as is a number without quotes in the job file.

    Raises:
        ValueError: ``text`` is not a duration; the message states what is expected.
    """
    stripped = text.strip()
    if re.fullmatch(_NUMBER, stripped):
        return float(stripped)
    if not _DURATION.fullmatch(stripped):
        raise ValueError(f'expected a duration such as "90s", "10m" or "1h30m", got "{text}"')
    terms = [(float(number), _SECONDS[unit]) for number, unit in _DURATION_TERM.findall(stripped)]
    units = [seconds for _, seconds in terms]
    if units != sorted(set(units), reverse=True):
        raise ValueError(f'expected each unit once, the largest first, as in "1h30m"; got "{text}"')
    return math.fsum(number * seconds for number, seconds in terms)


def parse_moment(text: str, *, now: datetime) -> datetime:
    """Return the time meant by ``"10m"`` (ago), ``"06:25"`` (the last one) or ``"2026-11-20T06:25:04Z"``.

    If the text has no time zone, that of ``now`` applies; ``now`` must be aware.

    Raises:
        ValueError: ``text`` is not a time; the message states what is expected.
    """
    stripped = text.strip()
    if _DURATION.fullmatch(stripped):
        try:
            return now - timedelta(seconds=parse_duration(stripped))
        except OverflowError:
            raise ValueError(f"{stripped[:40]} ago is too far in the past") from None
    try:
        if _TIME_OF_DAY.fullmatch(stripped):
            moment = datetime.combine(now.date(), time.fromisoformat(stripped), now.tzinfo)
            return moment if moment <= now else moment - timedelta(days=1)
        # Before Python 3.11, fromisoformat does not accept Z.
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", stripped))
    except ValueError:
        raise ValueError(
            f'expected a duration like "10m", or a time like "06:25" or "2026-11-20T06:25", got "{text}"'
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=now.tzinfo)


def parse_size(text: str) -> int:
    """Return the number of bytes in a size such as ``"50GiB"``, ``"500MB"`` or ``"1.5TiB"``.

    Raises:
        ValueError: ``text`` is not a size, or its unit is ambiguous; the message states what is expected.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'expected a size such as "50GiB" or "500MB", got "{text}"')
    number, unit = match[1], match[2]
    if unit not in _BYTES:
        right = next((name for name in _BYTES if name.lower() == unit.lower()), None)
        if right is not None:
            raise ValueError(f'unknown unit in "{text}"; did you mean {number}{right}?')
        if unit.upper() in ("K", "M", "G", "T"):
            letter = unit.upper()
            raise ValueError(
                f'ambiguous unit in "{text}": write {number}{letter}iB (powers of 1024) '
                f"or {number}{letter}B (powers of 1000)"
            )
        raise ValueError(f'expected a size with its unit, such as "50GiB" or "500MB", got "{text}"')
    # Whole numbers of any size are exact; a fraction is rounded to a byte.
    try:
        return int(number) * _BYTES[unit] if "." not in number else round(float(number) * _BYTES[unit])
    except (ValueError, OverflowError):
        raise ValueError(f"a size of {len(number)} digits is too large") from None


def parse_money(text: str) -> tuple[float, str | None]:
    """Return the amount in ``"12.50 USD"`` and its currency (ISO 4217; None if not given).

    Raises:
        ValueError: ``text`` is not an amount; the message states what is expected.
    """
    match = _MONEY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'expected an amount such as 12.50 or "12.50 USD", got "{text}"')
    return float(match[1]), match[2]
