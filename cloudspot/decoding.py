"""Turn bytes and plain values into typed ones, from any thread: the only use of msgspec's typed decoding.

msgspec inspects a type when it first decodes into it, and lets other threads see the half-made result:
two threads that meet there crash the process with a segmentation fault (seen with msgspec 0.22). So each
type is inspected once, under a lock. The linter forbids msgspec's own functions everywhere else.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

_lock = threading.Lock()
_decoders: dict[tuple[Any, bool], msgspec.json.Decoder[Any]] = {}


def decode(data: bytes | str, type_: Any, *, strict: bool = True) -> Any:
    """Return the JSON value as a ``type_``.

    With ``strict`` off, a number may also be written as a string.

    Raises:
        msgspec.DecodeError: ``data`` is not JSON; as a ValidationError: it is not a ``type_``.
        UnicodeDecodeError: ``data`` is not text.
    """
    return _decoder(type_, strict=strict).decode(data)


def convert(value: Any, type_: Any) -> Any:
    """Return a value of dicts, lists and scalars as a ``type_``.

    Raises:
        msgspec.ValidationError: it is not one.
    """
    _decoder(type_, strict=True)
    return msgspec.convert(value, type_)


def _decoder(type_: Any, *, strict: bool) -> msgspec.json.Decoder[Any]:
    known = _decoders.get((type_, strict))
    if known is not None:
        return known
    with _lock:
        return _decoders.setdefault((type_, strict), msgspec.json.Decoder(type_, strict=strict))
