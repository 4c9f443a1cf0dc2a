"""From CloudWatch's events to lines, which take one event or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from cloudspot.decoding import decode
from cloudspot.model import LogRecord
from cloudspot.plugin.logorder import Arrival, Joiner


class _Line(msgspec.Struct, frozen=True):
    seq: int
    time: datetime
    source: str
    text: str
    part: int = 0
    parts: int = 1


class EventReader:
    """Turns a stream's events into lines."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._joiner = Joiner()

    def add(self, event: Mapping[str, Any]) -> Iterator[Arrival]:
        """Yield the line that this event completes, if any; skip what others wrote."""
        try:
            line: _Line = decode(event["message"], _Line)
        except msgspec.DecodeError:
            return
        record = LogRecord(
            stream=self._stream, seq=line.seq, time=line.time, text=line.text, source=line.source
        )
        arrival = Arrival(record, event["timestamp"], event["ingestionTime"])
        yield from self._joiner.add(arrival, part=line.part, num_parts=line.parts)
