"""Reads a job's lines in Cloud Logging: from the start, from the end, and on as they come."""

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
"""How far a reader that follows goes back: entries need not show in the order in which they came."""
LIST_SECONDS = 30.0
"""How often a reader that follows lists the streams; in between, new lines tell it of new streams."""
LOOK_BACK_MS = 3_600_000
"""If a line is missing, the stream is read again from this long before it."""


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
        """All the job's entries have the ``labels``; a reader that follows asks every ``share_seconds``."""
        self._requests = requests
        self._labels = labels
        self._share_seconds = share_seconds
        self._now = now
        self._clock = clock
        self._lock = threading.RLock()
        self._followed: dict[str, _Followed] = {}
        """The streams that were read to their end."""
        self._places: dict[str, tuple[int, int]] = {}
        """By stream that was read from the end: a line, and since when Logging has what follows it."""
        self._received_ms: int | None = None
        """When Logging received the newest entry that was read for the followed streams."""
        self._shared_at: float | None = None
        self._wait_seconds = share_seconds
        self._known: set[str] = set()
        """Names of streams."""
        self._listed_at: float | None = None

    def streams(self) -> Sequence[str]:
        """Return the names of the job's streams, sorted; see LogSink.

        A reader that follows may ask at any time: new streams then show in the lists that all streams share.
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

        A line that has just arrived is held back while one before it is missing: that one may show later.
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
        """Yield the stream's records from the newest back; see LogSink. Fetches no more than is needed."""
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
            # A reader that continues after this line is spared what was delivered before it.
            lowest_ms = min(lowest_ms, received.pop(record.seq, lowest_ms))
            self._places[stream] = (record.seq, lowest_ms)
            yield record

    def pieces(self) -> Sequence[LogPiece]:
        """Return each stream as one piece, without its size; see LogSink. One list holds a thousand days."""
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
        """Return what has come since, from the lists that all followed streams share.

        None: a line in between is not there, and the stream must be read by itself.
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
        """Let a stream that was read to its end take part in the shared lists from now on.

        ``received_ms`` is when its reading began: what came since may be missing.
        """
        with self._lock:
            followed.received_ms = max(followed.received_ms, received_ms)
            self._followed[followed.stream] = followed
            if self._received_ms is not None:
                self._received_ms = min(self._received_ms, followed.received_ms)

    def _share(self) -> None:
        """Ask what has come for all streams, unless that was a moment ago; wait longer after many pages."""
        if self._shared_at is None or self._clock() - self._shared_at >= self._wait_seconds:
            num_pages = self._fetch_new()
            self._wait_seconds = self._share_seconds * num_pages
            self._shared_at = self._clock()

    def _fetch_new(self) -> int:
        """Give all followed streams what Logging received since the last time; return the number of lists."""
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
        """Yield the entries that begin a stream's day."""
        for page in self._requests.pages(f'labels.mark="{MARK}"'):
            yield from (entry for entry in page if self._stream_of(entry) is not None)

    def _stream_of(self, entry: Mapping[str, Any]) -> str | None:
        """Return the stream of an entry, if it is this job's: Logging ignores case when it compares."""
        labels: Mapping[str, Any] = entry.get("labels") or {}
        name = str(labels.get("stream", ""))
        is_ours = all(labels.get(key) == value for key, value in self._labels.items())
        return name if is_ours and is_stream(name) else None

    def _now_ms(self) -> int:
        return int(self._now().timestamp() * 1000)


class _Followed:
    """How far a stream has been read."""

    def __init__(self, stream: str, labels: Mapping[str, str], *, after: int) -> None:
        self.stream = stream
        self._reader = EntryReader(stream, labels)
        self.seq = after
        """The number of the last line that was yielded."""
        self.passed_ms = 0
        """When Logging received that line; 0: unknown."""
        self.received_ms = 0
        """When Logging received the newest entry that was read, or may have received one that was not."""
        self.waiting: list[Arrival] = []
        """Lines that came with another stream's, or that wait for one before them."""

    def take(self, page: Sequence[Mapping[str, Any]]) -> list[Arrival]:
        """Return the lines that the entries complete."""
        found = [arrival for entry in page for arrival in self._reader.add(entry)]
        self.received_ms = max([self.received_ms, *(one.ingested_ms for one in found)])
        return found

    def wait_with(self, entry: Mapping[str, Any]) -> None:
        """Keep the line that the entry completes, if any, until the stream is read further."""
        self.waiting += [one for one in self.take([entry]) if one.record.seq > self.seq]

    def passed_on(self, arrivals: Iterator[Arrival]) -> Iterator[LogRecord]:
        """Yield the lines, and remember how far that is."""
        for arrival in arrivals:
            self.seq, self.passed_ms = arrival.record.seq, arrival.ingested_ms
            yield arrival.record


def about_stream(stream: str) -> str:
    """Return the query for a stream's entries."""
    return f'labels.stream="{stream}"'


def _since(received_ms: int) -> str:
    """Return the query for what Logging has received since about then."""
    since = datetime.fromtimestamp(received_ms / 1000, timezone.utc) - OVERLAP
    oldest = since - 2 * MAX_AGE  # Only to spare Logging a search through all that it has.
    return f'timestamp>="{iso(oldest)}" AND receiveTimestamp>="{iso(since)}"'
