"""Reads a job's lines in Cloud Logging: from the start, from the end, or as they arrive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from typing import Any

from cloudspot.interfaces import LogSink, check_stream, is_stream
from cloudspot.model import LogPiece, LogRecord
from cloudspot.plugin.answers import UNREADABLE
from cloudspot.plugin.logdelivery import MAX_AGE
from cloudspot.plugin.logorder import Arrival, Order, read_back
from cloudspot_gcp.cloudloggingentries import MARK, EntryReader, day_of, iso, milliseconds, parse_time
from cloudspot_gcp.cloudloggingrequests import LogRequests

OVERLAP = timedelta(seconds=60)
"""How far back a follower starts to read, because entries may become visible out of order."""
LIST_SECONDS = 30.0
"""How often a follower lists the streams, in seconds; in between, it learns of a new stream from its lines.
"""
LOOK_BACK_MS = 3_600_000
"""How far before a missing line a stream is read again, in milliseconds."""


class CloudLoggingReader(LogSink):
    """The reading side of a job's log in Cloud Logging. Thread-safe."""

    def __init__(
        self,
        requests: LogRequests,
        *,
        labels: Mapping[str, str],
        share_seconds: float,
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        """All the job's entries have the ``labels``; a follower asks every ``share_seconds``."""
        self._requests = requests
        self._labels = labels
        self._share_seconds = share_seconds
        self._now = now
        self._clock = clock
        self._lock = threading.RLock()
        self._followed: dict[str, _Followed] = {}
        """The streams that have been read to their end."""
        self._places: dict[str, tuple[int, int]] = {}
        """For each stream read from the end: a line's number, and when Logging received the lines after it.
        """
        self._received_ms: int | None = None
        """When Logging received the newest entry that was read for the followed streams."""
        self._shared_at: float | None = None
        self._wait_seconds = share_seconds
        self._known: set[str] = set()
        """The names of the streams found so far."""
        self._listed_at: float | None = None

    def streams(self) -> Sequence[str]:
        """Return the names of the job's streams, sorted; see LogSink.

        A follower may call this at any time, because its shared requests show new streams.
        """
        with self._lock:
            age = None if self._listed_at is None else self._clock() - self._listed_at
            if age is None or age >= (LIST_SECONDS if self._followed else self._share_seconds):
                self._list_streams()
                self._listed_at = self._clock()
            elif self._followed:
                self._share()
            return tuple(sorted(self._known))

    def read(self, stream: str, *, after: int = -1) -> Iterator[LogRecord]:
        """Yield the stream's records with ``seq > after``, in order, each once; see LogSink.

        A line that has just arrived is held back while an earlier line, which may still appear, is missing.
        """
        check_stream(stream)
        received_ms: int | None = None
        about = about_stream(stream)
        followed, (seq, place_ms) = self._followed.get(stream), self._places.get(stream, (0, 0))
        if followed is not None and after >= followed.seq:
            found = self._read_on(followed, after)
            if found is not None:
                yield from found
                return
            if followed.passed_ms:
                about = f"{about} AND {_since(followed.passed_ms - LOOK_BACK_MS)}"
        elif place_ms and after >= seq:
            about = f"{about} AND {_since(place_ms)}"
        followed, order = _Followed(stream, self._labels, after=after), Order(after)
        for page in self._requests.pages(about):
            if received_ms is None:
                received_ms = self._requests.answered_ms
            for arrival in followed.take(page):
                yield from followed.passed_on(order.add(arrival))
        yield from followed.passed_on(order.rest(now_ms=self._now_ms()))
        followed.waiting = list(order.waiting)
        self._follow(followed, received_ms=received_ms or 0)

    def read_back(self, stream: str) -> Iterator[LogRecord]:
        """Yield the stream's records, newest first; see LogSink. Pages are fetched when they are needed."""
        check_stream(stream)
        reader = EntryReader(stream, self._labels)
        received: dict[int, int] = {}

        def pages() -> Iterator[list[Arrival]]:
            for page in self._requests.pages(about_stream(stream), order="timestamp desc"):
                arrivals = [arrival for entry in page for arrival in reader.add(entry)]
                received.update({one.record.seq: one.ingested_ms for one in arrivals})
                yield arrivals

        lowest_ms = self._now_ms()
        for record in read_back(pages()):
            # A reader that continues after this line need not read the entries that Logging received before
            # it.
            lowest_ms = min(lowest_ms, received.pop(record.seq, lowest_ms))
            self._places[stream] = (record.seq, lowest_ms)
            yield record

    def pieces(self) -> Sequence[LogPiece]:
        """Return each stream as one piece, without its size; see LogSink.

        One request finds up to 1000 days.
        """
        days: dict[str, set[date]] = {}
        for entry in self._marks():
            with suppress(*UNREADABLE):
                day = day_of(parse_time(entry["labels"].get("time", entry["timestamp"])))
                days.setdefault(entry["labels"]["stream"], set()).add(day)
        return [
            LogPiece(
                stream=stream,
                name=f"{self._requests.log} {stream}",
                first_day=min(days[stream]),
                last_day=max(days[stream]),
            )
            for stream in sorted(days)
        ]

    def _read_on(self, followed: _Followed, after: int) -> list[LogRecord] | None:
        """Return the newly arrived records, from the requests that all followed streams share.

        Return None if a line in between is missing; the stream must then be read separately.
        """
        with self._lock:
            self._share()
            order = Order(after)
            arrivals = [arrival for one in followed.waiting for arrival in order.add(one)]
            arrivals += order.rest(now_ms=self._now_ms())
            if [one.record.seq for one in arrivals] != [*range(after + 1, after + 1 + len(arrivals))]:
                self._followed.pop(followed.stream, None)
                return None
            records = list(followed.passed_on(iter(arrivals)))
            newest = max(after, followed.seq)
            followed.waiting = [one for one in followed.waiting if one.record.seq > newest]
            return records

    def _follow(self, followed: _Followed, *, received_ms: int) -> None:
        """Include a stream that was read to its end in the shared requests from now on.

        ``received_ms`` is the time at which its reading began; later entries may be missing.
        """
        with self._lock:
            followed.received_ms = max(followed.received_ms, received_ms)
            self._followed[followed.stream] = followed
            if self._received_ms is not None:
                self._received_ms = min(self._received_ms, followed.received_ms)

    def _share(self) -> None:
        """Fetch new entries of all streams, unless it was done just before; wait longer after many pages."""
        if self._shared_at is None or self._clock() - self._shared_at >= self._wait_seconds:
            num_pages = self._fetch_new()
            self._wait_seconds = self._share_seconds * num_pages
            self._shared_at = self._clock()

    def _fetch_new(self) -> int:
        """Give each followed stream its newly received entries; return the number of pages."""
        if self._received_ms is None:
            self._received_ms = min((one.received_ms for one in self._followed.values()), default=0)
        newest, num_pages = self._received_ms, 0
        for page in self._requests.pages(_since(self._received_ms)):
            num_pages += 1
            for entry in page:
                newest = max(newest, milliseconds(entry.get("receiveTimestamp", "")))
                stream = self._stream_of(entry)
                if stream is not None:
                    self._known.add(stream)
                    if stream in self._followed:
                        self._followed[stream].wait_with(entry)
        self._received_ms = newest
        return num_pages

    def _list_streams(self) -> None:
        for entry in self._marks():
            self._known.add(entry["labels"]["stream"])

    def _marks(self) -> Iterator[Mapping[str, Any]]:
        """Yield the marked entries, the first of each stream and day."""
        for page in self._requests.pages(f'labels.mark="{MARK}"'):
            yield from (entry for entry in page if self._stream_of(entry) is not None)

    def _stream_of(self, entry: Mapping[str, Any]) -> str | None:
        """Return an entry's stream, or None if it belongs to another job, as queries ignore case."""
        labels: Mapping[str, Any] = entry.get("labels") or {}
        name = str(labels.get("stream", ""))
        is_ours = all(labels.get(key) == value for key, value in self._labels.items())
        return name if is_ours and is_stream(name) else None

    def _now_ms(self) -> int:
        return int(self._now().timestamp() * 1000)


class _Followed:
    """A followed stream, and how far it has been read."""

    def __init__(self, stream: str, labels: Mapping[str, str], *, after: int) -> None:
        self.stream = stream
        self._reader = EntryReader(stream, labels)
        self.seq = after
        """The number of the last line that was yielded."""
        self.passed_ms = 0
        """When Logging received that line; 0 if unknown."""
        self.received_ms = 0
        """When Logging received the newest entry that was read; unread entries may have arrived since."""
        self.waiting: list[Arrival] = []
        """Lines that a shared request has fetched, or that wait for an earlier line."""

    def take(self, page: Sequence[Mapping[str, Any]]) -> list[Arrival]:
        """Return the lines that the entries complete."""
        found = [arrival for entry in page for arrival in self._reader.add(entry)]
        self.received_ms = max([self.received_ms, *(one.ingested_ms for one in found)])
        return found

    def wait_with(self, entry: Mapping[str, Any]) -> None:
        """Keep the line that the entry completes, if any, until more of the stream is read."""
        self.waiting += [one for one in self.take([entry]) if one.record.seq > self.seq]

    def passed_on(self, arrivals: Iterator[Arrival]) -> Iterator[LogRecord]:
        """Yield the lines, and remember the last one."""
        for arrival in arrivals:
            self.seq, self.passed_ms = arrival.record.seq, arrival.ingested_ms
            yield arrival.record


def about_stream(stream: str) -> str:
    """Return the query for a stream's entries."""
    return f'labels.stream="{stream}"'


def _since(received_ms: int) -> str:
    """Return the query for the entries received since ``received_ms`` minus the overlap."""
    since = datetime.fromtimestamp(received_ms / 1000, timezone.utc) - OVERLAP
    oldest = since - 2 * MAX_AGE  # This bound only saves Logging from searching all of its entries.
    return f'timestamp>="{iso(oldest)}" AND receiveTimestamp>="{iso(since)}"'
