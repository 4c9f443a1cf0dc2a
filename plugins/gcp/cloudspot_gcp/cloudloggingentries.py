"""Turns Cloud Logging's entries into lines, each made of one entry or several, and parses its times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime, timezone
from typing import Annotated, Any

import msgspec

from cloudspot.decoding import convert, whole_number
from cloudspot.model import LogRecord
from cloudspot.plugin.answers import UNREADABLE, moment
from cloudspot.plugin.logorder import Arrival, Joiner

MARK = "day"
"""The value of the label ``mark`` on a stream's first line of each day, which is used to find streams and
days.
"""

_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class EntryReader:
    """Turns entries of a stream into lines.

    Logging ignores case when it compares labels, so this class skips the entries of other jobs.
    """

    def __init__(self, stream: str, labels: Mapping[str, str]) -> None:
        """``labels`` are on every entry of the job."""
        self._stream = stream
        self._wanted = {**labels, "stream": stream}
        self._joiner = Joiner()

    def add(self, entry: Mapping[str, Any]) -> Iterator[Arrival]:
        """Yield the line that this entry completes, if any; skip entries that cloudspot did not write."""
        labels: Mapping[str, str] = entry.get("labels") or {}
        if any(labels.get(name) != value for name, value in self._wanted.items()):
            return
        try:
            part, num_parts = _count(labels.get("part", 0)), _count(labels.get("parts", 1))
            record = LogRecord(
                stream=self._stream,
                seq=_count(labels["seq"]),
                time=parse_time(labels.get("time", entry["timestamp"])),
                text=str(entry.get("textPayload", "")),
                source=str(labels["source"]),
            )
        except UNREADABLE:
            return
        received = milliseconds(entry.get("receiveTimestamp", ""))
        arrival = Arrival(record, milliseconds(entry.get("timestamp", "")), received)
        yield from self._joiner.add(arrival, part=part, num_parts=num_parts)


def parse_time(text: str) -> datetime:
    """Parse a time in Logging's format, to the microsecond; raise ValueError for any other value."""
    found = moment(convert(text, _Time))
    if found is None:
        raise ValueError("it is not a time that Cloud Logging supports")
    return found


def milliseconds(text: str) -> int:
    """Return one of Logging's times in milliseconds since 1970, or 0 if it is not a time."""
    try:
        return int(parse_time(text).timestamp() * 1000)
    except ValueError:
        return 0


def _count(value: object) -> int:
    found = whole_number(value)
    if found is None:
        raise ValueError("it is not a count")
    return found


def iso(moment: datetime) -> str:
    """Return a time in the format that Logging accepts."""
    return f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ}"


def day_of(moment: datetime) -> date:
    """Return the day of a moment in UTC."""
    return moment.astimezone(timezone.utc).date()
