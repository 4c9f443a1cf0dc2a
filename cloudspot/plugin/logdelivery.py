"""Prepare log lines for a log service: split, timestamp and batch them within the service's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from cloudspot.errors import AuthError
from cloudspot.model import LogRecord

MAX_AGE: Final = timedelta(hours=12)
"""The maximum age of an entry: services refuse entries past their retention, and batches that span more than
a day."""
MAX_AHEAD: Final = timedelta(hours=1)
"""How far ahead a stream's last entry may be; services refuse entries hours ahead of their clock."""

Entry = TypeVar("Entry")


class EntryTimes:
    """Assigns the times by which a service sorts entries.

    An entry gets its line's time, unless the service would refuse that time or sort the entry before older
    entries.
    """

    def __init__(self, newest: Callable[[str], datetime | None], *, now: Callable[[], datetime]) -> None:
        """``newest`` returns the time of a stream's last entry in the service, or None if there is none."""
        self._ask = newest
        self._now = now
        self._newest: dict[str, datetime] = {}

    def assign(self, stream: str, records: Iterable[LogRecord]) -> Iterator[tuple[LogRecord, datetime]]:
        """Yield each record of the stream with its entry's time, which never decreases."""
        now = self._now()
        newest = self._newest.get(stream) or self._find_newest(stream)
        if newest is None or newest > now + MAX_AHEAD:
            # The clock was set far back; having entries accepted matters more than their order.
            newest = now - MAX_AGE
        for record in records:
            newest = max(newest, min(max(record.time, now - MAX_AGE), now))
            self._newest[stream] = newest
            yield record, newest

    def _find_newest(self, stream: str) -> datetime | None:
        try:
            return self._ask(stream)
        except AuthError:
            return None  # The role may only write, so its node's clock is trusted.


def cut(text: str, max_chars: int) -> Sequence[str]:
    """Return the text in pieces of up to ``max_chars``; there is at least one piece, which may be empty."""
    return [text[start : start + max_chars] for start in range(0, len(text), max_chars)] or [""]


def batches(
    entries: Iterable[Entry], *, size_of: Callable[[Entry], int], max_bytes: int, max_entries: int
) -> Iterator[list[Entry]]:
    """Yield the entries in batches within both limits; an entry that is too large forms its own batch."""
    batch: list[Entry] = []
    num_bytes = 0
    for entry in entries:
        size = size_of(entry)
        if batch and (num_bytes + size > max_bytes or len(batch) == max_entries):
            yield batch
            batch, num_bytes = [], 0
        batch.append(entry)
        num_bytes += size
    if batch:
        yield batch
