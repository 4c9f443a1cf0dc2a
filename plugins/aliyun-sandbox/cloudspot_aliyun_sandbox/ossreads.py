"""Conditions and ranges of reads from the emulated OSS.

Source: OSS API reference, GetObject; "Conditional download"; "HTTP status code 412" (checked 2026-11).
"""

from __future__ import annotations

from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from cloudspot_aliyun_sandbox.ossbuckets import Stored
from cloudspot_aliyun_sandbox.osserrors import OssRefusal
from cloudspot_aliyun_sandbox.ossrequests import OssRequest

CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
"""The conditions of reads; writes with one of them are not implemented."""


def check_conditions(request: OssRequest, stored: Stored) -> None:
    """Raise OssRefusal if the object does not meet the request's conditions (304: it is unchanged)."""
    match, none_match, changed, unchanged = (request.headers.get(name) for name in CONDITIONS)
    modified_at = stored.modified_at.astimezone(timezone.utc).replace(microsecond=0)
    latest, earliest = _moment(unchanged), _moment(changed)
    if (match is not None and match.strip('"') != stored.etag) or (
        latest is not None and latest < modified_at
    ):
        raise OssRefusal(
            412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold."
        )
    is_same = none_match is not None and none_match.strip('"') == stored.etag
    if is_same or (earliest is not None and earliest >= modified_at):
        raise OssRefusal(304, "NotModified", "")


def _moment(text: str | None) -> datetime | None:
    """Return the time in a header, or None if it is missing or invalid: OSS ignores invalid times."""
    try:
        return None if text is None else parsedate_to_datetime(text).astimezone(timezone.utc)
    except ValueError:
        return None


def range_of(text: str, size: int, *, is_standard: bool) -> tuple[int, int] | None:
    """Return the range's start and end (exclusive), or None if the whole object is to be sent instead."""
    unit, _, span = text.partition("=")
    first, dash, last = span.partition("-")
    if unit != "bytes" or not dash or not (first or last) or not (first + last).isdigit():
        return None
    start = int(first) if first else max(0, size - int(last))
    end = int(last) + 1 if first and last else size
    if end <= start < size:
        return None
    if start >= size:
        if not is_standard:
            return None
        raise OssRefusal(416, "InvalidRange", "The requested range cannot be satisfied.")
    if end > size and not is_standard:
        return None
    return start, min(end, size)
