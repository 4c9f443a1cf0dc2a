"""Bytes and plain values into typed ones, from any thread: the one way to msgspec's typed decoding.

msgspec looks at a Struct's fields when it is first decoded into, and lets other threads see what it has
found so far: two threads that meet there end the process with a segmentation fault (msgspec 0.22, found
in a controller on a busy machine). So each type is looked at under a lock, once; from then on no lock is
taken. The linter forbids msgspec's own functions everywhere else.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

_lock = threading.Lock()
_decoders: dict[tuple[Any, bool], msgspec.json.Decoder[Any]] = {}


def decode(data: bytes | str, type_: Any, *, strict: bool = True) -> Any:
    """Return the JSON value as a ``type_``.

    ``strict`` off: a number may also be written as a string.

    Raises:
        msgspec.ValidationError: it is none; a kind of DecodeError.
        msgspec.DecodeError: ``data`` is no JSON.
        UnicodeDecodeError: nor text.
    """
    return _decoder(type_, strict=strict).decode(data)


def convert(value: Any, type_: Any) -> Any:
    """Return a value of dicts, lists and scalars as a ``type_``.

    Raises:
        msgspec.ValidationError: it is none.
    """
    _decoder(type_, strict=True)
    return msgspec.convert(value, type_)


def _decoder(type_: Any, *, strict: bool) -> msgspec.json.Decoder[Any]:
    known = _decoders.get((type_, strict))
    if known is not None:
        return known
    with _lock:
        return _decoders.setdefault((type_, strict), msgspec.json.Decoder(type_, strict=strict))
