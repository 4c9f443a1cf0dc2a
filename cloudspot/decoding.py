"""Decode bytes and plain values into typed ones, within the bounds that cloudspot's own writers keep.

This is the only module that uses msgspec's typed decoding. Its functions may be called from any thread.

msgspec inspects a type when it first decodes into it, and other threads can see the unfinished result. Two
threads that do so at once crash the process with a segmentation fault (seen with msgspec 0.22). So each type
is inspected once, under a lock. The linter forbids msgspec's own functions everywhere else.
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
    """The metrics of a training by name, the only numbers that may be NaN or infinite.

    JSON cannot represent these numbers, so they are stored as the strings ``"nan"``, ``"inf"`` and
    ``"-inf"``.
    """


def decode(data: bytes | str, type_: Any) -> Any:
    """Return the JSON value as a ``type_``, without conversions such as string to number.

    Raises:
        msgspec.DecodeError: ``data`` is not JSON; or, as a ValidationError, it does not fit ``type_``.
        UnicodeDecodeError: ``data`` is not text.
    """
    try:
        return _decoder(type_).decode(data)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error


def convert(value: Any, type_: Any) -> Any:
    """Convert a value of dicts, lists and scalars to a ``type_``, as strictly as ``decode``.

    Raises:
        msgspec.ValidationError: the value does not fit ``type_``.
    """
    _decoder(type_)
    return msgspec.convert(value, type_, dec_hook=_decode_metrics)


def fault_of(value: msgspec.Struct) -> str | None:
    """Return why a field's value is invalid for its type, or None if all are valid.

    The constructor does not check this.
    """
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
"""The time to which a machine without a battery-backed clock boots; its records must still be readable."""
LATEST: Final = datetime(2200, 1, 1, tzinfo=timezone.utc)
"""Early enough that adding a duration does not exceed ``datetime.max``."""

MAX_NODES: Final = 10_000
"""Ranks have four digits in keys."""

MAX_LAUNCHES: Final = 10**9
"""Numbers of launches and generations are below this limit."""
MAX_TALLY: Final = (1 << 60) - 1

Rank = Annotated[int, msgspec.Meta(ge=0, lt=MAX_NODES)]
NodeCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_NODES)]
Ordinal = Annotated[int, msgspec.Meta(ge=1, lt=MAX_LAUNCHES)]
"""The number of a launch or a generation, counted from 1."""
OrdinalOrZero = Annotated[int, msgspec.Meta(ge=0, lt=MAX_LAUNCHES)]
"""The same number, but 0 stands for the time before the first launch or generation."""
Tally = Annotated[int, msgspec.Meta(ge=0, le=MAX_TALLY)]
"""A count of steps, bytes or lines, from 0. The limit lets the sum of a few such counts fit into 64 bits."""
Port = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
ExitStatus = Annotated[int, msgspec.Meta(ge=-255, le=255)]
"""A process's exit status; it is negative for a signal, as in Python."""
InstanceId = Annotated[str, msgspec.Meta(min_length=1)]
"""A machine's id at its provider."""
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
"""A SHA-256 in hex, which becomes part of a key."""
SharedKey = Annotated[str, msgspec.Meta(pattern="^(?:code|agents)/[0-9a-f]{64}$")]
"""The key of an object that several jobs can share; removing the last of these jobs deletes it."""
KeyWord = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
"""A writer's nonce that becomes part of a key."""
StreamName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
"""A duration of up to three centuries."""
MAX_PRICE: Final = 1e9
Price = Annotated[float, msgspec.Meta(ge=0, le=MAX_PRICE)]
"""An amount of money per hour."""
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
"""A total amount of money."""


def whole_number(text: object, *, most: int = MAX_TALLY) -> int | None:
    """Return the number from 0 to ``most`` in an untrusted text, or None if the text is no such number.

    ``int`` alone also accepts digits of other alphabets, signs, spaces and underscores, and raises a
    different error at more than 4,300 digits.
    """
    found = str(text)
    is_number = found.isascii() and found.isdigit() and len(found) <= len(str(most))
    return int(found) if is_number and int(found) <= most else None


def is_possible_time(moment: datetime) -> bool:
    """Return whether a time is within the bounds and has a time zone, which every comparison needs."""
    return moment.tzinfo is not None and EARLIEST <= moment < LATEST


class Dated(msgspec.Struct, frozen=True, kw_only=True):
    """A record whose times have a time zone and lie between ``EARLIEST`` and ``LATEST``."""

    def __post_init__(self) -> None:
        """Check the times; decoding reports the ValueError with the path of the field."""
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
    """Return the names of the fields whose type is a time or an optional time."""
    hints = get_type_hints(struct)
    return tuple(
        name for name in struct.__struct_fields__ if datetime in (hints[name], *get_args(hints[name]))
    )
