"""Restore lines from a log service's entries: join parts, drop duplicates, and sort by number."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from cloudspot.model import LogRecord

MAX_WAITING = 10_000
"""The maximum number of lines that wait for an earlier missing line; beyond that, the missing line counts as
lost."""
SETTLED_MS = 60_000
"""A line delivered this long ago that has not appeared is lost."""


@dataclass(frozen=True)
class Arrival:
    """A line from a log service."""

    record: LogRecord
    at_ms: int
    """The time by which the service sorts the line."""
    ingested_ms: int
    """When the service received the line."""


class Joiner:
    """Joins lines that a service stores as several entries."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[int, str]] = {}

    def add(self, arrival: Arrival, *, part: int = 0, num_parts: int = 1) -> Iterator[Arrival]:
        """Yield the line if this part, counted from 0, completes it."""
        if num_parts == 1:
            yield arrival
            return
        record = arrival.record
        parts = self._parts.setdefault(record.seq, {})
        parts[part] = record.text
        if len(parts) < num_parts:
            return
        text = "".join(parts[number] for number in sorted(parts))
        del self._parts[record.seq]
        yield replace(arrival, record=msgspec.structs.replace(record, text=text))


class Order:
    """Yields lines in the order of their numbers, each once."""

    def __init__(self, after: int) -> None:
        self._next = after + 1
        self._waiting: list[tuple[int, int, Arrival]] = []
        self._num_added = 0

    def add(self, arrival: Arrival) -> Iterator[Arrival]:
        """Add a line, and yield the lines whose turn has come."""
        if arrival.record.seq < self._next:
            return
        self._num_added += 1
        heapq.heappush(self._waiting, (arrival.record.seq, self._num_added, arrival))
        while self._waiting and (self._waiting[0][0] <= self._next or len(self._waiting) > MAX_WAITING):
            yield from self._pop()

    def rest(self, *, now_ms: int) -> Iterator[Arrival]:
        """Yield the lines that wait behind a gap, except lines so new that the gap may still close."""
        while self._waiting:
            seq, _, arrival = self._waiting[0]
            if seq > self._next and now_ms - arrival.ingested_ms < SETTLED_MS:
                return
            yield from self._pop()

    @property
    def waiting(self) -> Iterator[Arrival]:
        """Yield, in any order, the lines that have not been yielded yet."""
        yield from (arrival for _, _, arrival in self._waiting)

    def _pop(self) -> Iterator[Arrival]:
        seq, _, arrival = heapq.heappop(self._waiting)
        if seq >= self._next:
            self._next = seq + 1
            yield arrival


def read_back(pages: Iterator[list[Arrival]]) -> Iterator[LogRecord]:
    """Yield lines from newest to oldest, each once, from a stream's pages, the last page first.

    It reads no more pages than needed, and skips lines that are on no page.
    """
    held: dict[int, LogRecord] = {}
    top: int | None = None
    is_over = False
    while True:
        while not is_over and (top is None or top not in held):
            page = next(pages, None)
            is_over = page is None
            for arrival in page or ():
                if top is None or arrival.record.seq <= top:
                    held[arrival.record.seq] = arrival.record
            if top is None and held:
                top = max(held)
        if not held:
            return
        if top not in held:
            top = max(held)  # The lines in between are lost.
        assert top is not None
        yield held.pop(top)
        top -= 1
