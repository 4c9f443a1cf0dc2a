"""Turn bytes and plain values into typed ones, within the bounds of what our own writers write.

This is the only use of msgspec's typed decoding, and works from any thread.

msgspec inspects a type when it first decodes into it, and lets other threads see the half-made result:
two threads that meet there crash the process with a segmentation fault (seen with msgspec 0.22). So each
type is inspected once, under a lock. The linter forbids msgspec's own functions everywhere else.
"""

from __future__ import annotations

import functools
import threading
from datetime import datetime, timezone
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

import msgspec

_lock = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


class Metrics(dict[str, float]):
    """What a training reports by name: the only numbers that may be no finite ones.

    JSON has none of these, so there they are the strings ``"nan"``, ``"inf"`` and ``"-inf"``.
    """


def decode(data: bytes | str, type_: Any) -> Any:
    """Return the JSON value as a ``type_``; no value is made to fit, such as a string that holds a number.

    Raises:
        msgspec.DecodeError: ``data`` is not JSON; as a ValidationError: it is not a ``type_``.
        UnicodeDecodeError: ``data`` is not text.
    """
    try:
        return _decoder(type_).decode(data)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error


def convert(value: Any, type_: Any) -> Any:
    """Return a value of dicts, lists and scalars as a ``type_``; as strict as ``decode``.

    Raises:
        msgspec.ValidationError: it is not one.
    """
    _decoder(type_)
    return msgspec.convert(value, type_, dec_hook=_decode_metrics)


def fault_of(value: msgspec.Struct) -> str | None:
    """Return what keeps a value from being one of its type, which only decoding checks; None: nothing."""
    try:
        convert(msgspec.to_builtins(value), type(value))
    except (msgspec.ValidationError, TypeError) as error:
        return str(error)
    return None


def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    known = _decoders.get(type_)
    if known is not None:
        return known
    with _lock:
        return _decoders.setdefault(type_, msgspec.json.Decoder(type_, dec_hook=_decode_metrics))


def _decode_metrics(type_: Any, value: Any) -> Metrics:
    if type_ is not Metrics:
        raise NotImplementedError(f"{type_} is not a type of any record")
    found = convert(value, dict[str, float | Literal["nan", "inf", "-inf"]])
    return Metrics({name: float(one) for name, one in found.items()})


# --- bounds ---------------------------------------------------------------------------------------

EARLIEST: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
"""A machine without a battery clock starts here, and its records must still be readable."""
LATEST: Final = datetime(2200, 1, 1, tzinfo=timezone.utc)
"""Far enough from ``datetime.max`` that no sum of a moment and a duration leaves its range."""

MAX_NODES: Final = 10_000
"""Keys give a rank four digits."""

MAX_LAUNCHES: Final = 10**9
"""Launches and generations are counted below this."""
MAX_TALLY: Final = (1 << 60) - 1

Rank = Annotated[int, msgspec.Meta(ge=0, lt=MAX_NODES)]
NodeCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_NODES)]
Ordinal = Annotated[int, msgspec.Meta(ge=1, lt=MAX_LAUNCHES)]
"""The number of a launch or a generation, counted from 1."""
OrdinalOrZero = Annotated[int, msgspec.Meta(ge=0, lt=MAX_LAUNCHES)]
"""The same, where 0 stands for the time before the first."""
Tally = Annotated[int, msgspec.Meta(ge=0, le=MAX_TALLY)]
"""Steps, bytes, lines: whatever is counted from 0. Sums of a few stay below 64 bits."""
Port = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
ExitStatus = Annotated[int, msgspec.Meta(ge=-255, le=255)]
"""A process's; negative for a signal where Python tells it."""
InstanceId = Annotated[str, msgspec.Meta(min_length=1)]
"""A machine's name at its provider."""
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
"""In hex; it becomes part of a key."""
SharedKey = Annotated[str, msgspec.Meta(pattern="^(?:code|agents)/[0-9a-f]{64}$")]
"""The key of an object that several jobs may use, and the last to be removed deletes."""
KeyWord = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
"""A writer's nonce that becomes part of a key."""
StreamName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
"""A duration of up to three centuries."""
MAX_PRICE: Final = 1e9
Price = Annotated[float, msgspec.Meta(ge=0, le=MAX_PRICE)]
"""Money for an hour."""
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
"""Money in all."""


def whole_number(text: object, *, most: int = MAX_TALLY) -> int | None:
    """Return the number from 0 to ``most`` that a text from outside holds; None: it is not one.

    ``int`` alone takes other alphabets' digits, signs, spaces and underscores, and raises an error of its own
    at more than 4,300 digits.
    """
    found = str(text)
    is_number = found.isascii() and found.isdigit() and len(found) <= len(str(most))
    return int(found) if is_number and int(found) <= most else None


def is_possible_time(moment: datetime) -> bool:
    """Return whether a moment has a time zone, as every comparison needs, and lies within the bounds."""
    return moment.tzinfo is not None and EARLIEST <= moment < LATEST


class Dated(msgspec.Struct, frozen=True, kw_only=True):
    """A record whose moments have a time zone and lie between ``EARLIEST`` and ``LATEST``."""

    def __post_init__(self) -> None:
        """Check the moments; decoding reports the ValueError with the place where it stands."""
        for name in _moments_of(type(self)):
            value = getattr(self, name)
            if value is None:
                continue
            if value.tzinfo is None:
                raise ValueError(f"`{name}` must have a time zone: got {value.isoformat()}")
            if not is_possible_time(value):
                raise ValueError(f"`{name}` must be in the years 1970 to 2199: got {value.isoformat()}")


@functools.cache
def _moments_of(struct: type[Dated]) -> tuple[str, ...]:
    """Return the names of the fields that hold a moment, or None."""
    hints = get_type_hints(struct)
    return tuple(
        name for name in struct.__struct_fields__ if datetime in (hints[name], *get_args(hints[name]))
    )
