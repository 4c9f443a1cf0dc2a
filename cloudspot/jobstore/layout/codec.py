"""Encode records as JSON and decode them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from cloudspot import decoding
from cloudspot.errors import CorruptData
from cloudspot.jobstore.layout.records import JournalRecord

Record = TypeVar("Record")
WrittenRecord = TypeVar("WrittenRecord", bound=msgspec.Struct)
MAX_FAULT_LENGTH = 300
"""The maximum length of an error's text, which may quote long values."""


def encode(record: msgspec.Struct) -> bytes:
    """Return the record as a single line of JSON; equal records give equal bytes.

    A float that is not finite, such as the loss of a diverged training, is written as a string, which only
    ``Metrics`` decodes again.
    """
    # JSON has no NaN, and msgspec would write null.
    data = msgspec.json.encode(record)
    if b"null" not in data or _is_finite(record):
        return data
    return msgspec.json.encode(_with_strings(msgspec.to_builtins(record)))


def decode(data: bytes, record_type: type[Record], *, key: str = "the record") -> Record:
    """Return the record in ``data``; fields unknown to this version are dropped.

    Raises:
        CorruptData: ``data`` is not a record of this type; the message names ``key``.
    """
    try:
        record: Record = decoding.decode(data, record_type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(f"{key} is malformed: {str(error)[:MAX_FAULT_LENGTH]}") from error
    return record


def decode_journal(data: bytes, *, key: str = "the record") -> JournalRecord:
    """Return the journal record, of any type; see ``decode``."""
    return decode(data, cast("type[JournalRecord]", JournalRecord), key=key)


def without_invalid(
    record: WrittenRecord, emptied: Mapping[str, Any]
) -> tuple[WrittenRecord, tuple[str, ...]]:
    """Return the record as its readers accept it, and the names of the fields that it lacks for that.

    ``emptied`` has the fields that may be left out, and the values that stand for nothing. One wrong figure
    must not make the whole record unreadable.

    Raises:
        CorruptData: another field is wrong, so no reader would accept the record.
    """
    if _is_readable(record):
        return record, ()
    best = replace(record, **emptied)
    decode(encode(best), type(record))
    wrong = []
    for name in emptied:
        fuller = replace(best, **{name: getattr(record, name)})
        if _is_readable(fuller):
            best = fuller
        else:
            wrong.append(name)
    return best, tuple(wrong)


def _is_readable(record: Any) -> bool:
    try:
        decode(encode(record), type(record))
    except CorruptData:
        return False
    return True


def _is_finite(record: msgspec.Struct) -> bool:
    try:
        json.dumps(msgspec.to_builtins(record), allow_nan=False)
    except ValueError:
        return False
    return True


def _with_strings(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _with_strings(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_strings(item) for item in value]
    return value
