"""From CloudWatch's events to lines: parts joined, repeats dropped, in the order of their numbers."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from cloudspot.decoding import decode
from cloudspot.model import LogRecord

MAX_WAITING = 10_000
"""So many lines wait for one that is missing before them; then it counts as lost."""
SETTLED_MS = 60_000
"""What was delivered so long ago and does not show will not."""


@dataclass(frozen=True)
class Arrival:
    """A line as CloudWatch shows it."""

    record: LogRecord
    at_ms: int
    """The event's time."""
    ingested_ms: int


class _Line(msgspec.Struct, frozen=True):
    seq: int
    time: datetime
    source: str
    text: str
    part: int = 0
    parts: int = 1


class Joiner:
    """Turns events into lines. Lines in several events come when all of them have."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._parts: dict[int, dict[int, str]] = {}

    def add(self, event: Mapping[str, Any]) -> Iterator[Arrival]:
        """Yield the line that this event completes, if any; what others wrote is passed over."""
        try:
            line: _Line = decode(event["message"], _Line)
        except msgspec.DecodeError:
            return
        text = line.text
        if line.parts > 1:
            parts = self._parts.setdefault(line.seq, {})
            parts[line.part] = line.text
            if len(parts) < line.parts:
                return
            text = "".join(parts[number] for number in sorted(parts))
            del self._parts[line.seq]
        record = LogRecord(stream=self._stream, seq=line.seq, time=line.time, text=text, source=line.source)
        yield Arrival(record, event["timestamp"], event["ingestionTime"])


class Order:
    """Passes lines on in the order of their numbers, each once."""

    def __init__(self, after: int) -> None:
        self._next = after + 1
        self._waiting: list[tuple[int, int, Arrival]] = []
        self._num_added = 0

    def add(self, arrival: Arrival) -> Iterator[Arrival]:
        """Yield what can be passed on now."""
        if arrival.record.seq < self._next:
            return
        self._num_added += 1
        heapq.heappush(self._waiting, (arrival.record.seq, self._num_added, arrival))
        while self._waiting and (self._waiting[0][0] <= self._next or len(self._waiting) > MAX_WAITING):
            yield from self._pop()

    def rest(self, *, now_ms: int) -> Iterator[Arrival]:
        """Yield what waits after a gap, but not what is so new that the gap may still close."""
        while self._waiting:
            seq, _, arrival = self._waiting[0]
            if seq > self._next and now_ms - arrival.ingested_ms < SETTLED_MS:
                return
            yield from self._pop()

    def _pop(self) -> Iterator[Arrival]:
        seq, _, arrival = heapq.heappop(self._waiting)
        if seq >= self._next:
            self._next = seq + 1
            yield arrival
