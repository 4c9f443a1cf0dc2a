"""Log lines on their way to a log service: cut, timed and batched within the service's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from cloudspot.errors import AuthError
from cloudspot.model import LogRecord

MAX_AGE: Final = timedelta(hours=12)
"""No entry is older: services refuse what is older than their retention, and batches that span a day."""
MAX_AHEAD: Final = timedelta(hours=1)
"""Services refuse entries that are hours ahead of their clock."""

Entry = TypeVar("Entry")


class EntryTimes:
    """Gives entries the times by which a service sorts them.

    An entry has its line's time, unless the service would refuse that, or sort it before what it already has.
    """

    def __init__(self, newest: Callable[[str], datetime | None], *, now: Callable[[], datetime]) -> None:
        """``newest`` asks the service for the time of a stream's last entry; None: the stream is empty."""
        self._ask = newest
        self._now = now
        self._newest: dict[str, datetime] = {}

    def assign(self, stream: str, records: Iterable[LogRecord]) -> Iterator[tuple[LogRecord, datetime]]:
        """Yield each of the stream's records with its entry's time, which never decreases."""
        now = self._now()
        newest = self._newest.get(stream) or self._find_newest(stream)
        if newest is None or newest > now + MAX_AHEAD:
            # The clock went far back: to be taken matters more than how the entries lie.
            newest = now - MAX_AGE
        for record in records:
            newest = max(newest, min(max(record.time, now - MAX_AGE), now))
            self._newest[stream] = newest
            yield record, newest

    def _find_newest(self, stream: str) -> datetime | None:
        try:
            return self._ask(stream)
        except AuthError:
            return None  # A role that may only write: its node's clock is then trusted.


def cut(text: str, max_chars: int) -> Sequence[str]:
    """Return the text in pieces of up to ``max_chars``; at least one, which may be empty."""
    return [text[start : start + max_chars] for start in range(0, len(text), max_chars)] or [""]


def batches(
    entries: Iterable[Entry], *, size_of: Callable[[Entry], int], max_bytes: int, max_entries: int
) -> Iterator[list[Entry]]:
    """Yield the entries in batches within both bounds; one that is too large alone is a batch by itself."""
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
