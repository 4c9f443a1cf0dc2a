"""The format of log lines in a file that is also for people: time, number, source and text.

::

    2026-11-20T06:25:01.123456Z 41 train: step 100, loss 0.12

A line break within a text is followed by a tab. Lines of any other form are skipped, because cloudspot may
not have written them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from urllib.parse import quote, unquote

from cloudspot.model import LogRecord

_LINE = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6})Z (\d+) (\S+): (.*)", re.DOTALL)


def encode(records: Sequence[LogRecord]) -> bytes:
    """Return the lines in the file's format; each ends with a newline."""
    return b"".join(map(_encode_one, records))


def decode(data: bytes, stream: str) -> Iterator[LogRecord]:
    """Yield the records of whole lines, in their order in the file."""
    held: re.Match[bytes] | None = None
    more: list[bytes] = []
    for line in data.split(b"\n"):
        if held is not None and line.startswith(b"\t"):
            more.append(line[1:])
            continue
        if held is not None:
            yield from _record(held, more, stream)
        held, more = _LINE.fullmatch(line), []
    if held is not None:
        yield from _record(held, more, stream)


def first_start(data: bytes) -> int:
    """Return the offset of the first record in a piece of a file, or the piece's length if there is none."""
    at = 0
    while at < len(data):
        end = data.find(b"\n", at)
        line = data[at : len(data) if end < 0 else end]
        # The text before the first newline may be the rest of a line that only looks like a complete one.
        if at > 0 and _LINE.fullmatch(line):
            return at
        at = len(data) if end < 0 else end + 1
    return len(data)


def last_start(data: bytes) -> int:
    """Return the offset of the last line that may begin a record, or 0 if only the first line may."""
    end = len(data)
    while True:
        at = data.rfind(b"\n", 0, end)
        if at < 0 or _LINE.fullmatch(data, at + 1, end):
            return at + 1
        end = at


def _encode_one(record: LogRecord) -> bytes:
    at = record.time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")
    text = record.text.replace("\n", "\n\t")
    return f"{at}Z {record.seq} {quote(record.source) or '-'}: {text}\n".encode("utf-8", "surrogatepass")


def _record(match: re.Match[bytes], more: list[bytes], stream: str) -> Iterator[LogRecord]:
    """Yield the record, unless its line is invalid, such as one with month 13 or with undecodable bytes."""
    try:
        text = b"\n".join((match[4], *more)).decode("utf-8", "surrogatepass")
        at = datetime.fromisoformat(match[1].decode("ascii")).replace(tzinfo=timezone.utc)
        source = unquote(match[3].decode("ascii", "replace"))
        record = LogRecord(
            stream=stream, seq=int(match[2]), time=at, text=text, source="" if source == "-" else source
        )
    except ValueError:
        return
    yield record
