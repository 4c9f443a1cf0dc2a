"""Log lines in CloudWatch Logs: a group for each job's id, a stream for each node of each launch.

An event's message is JSON with the line's number, its time, its source and its text. Readers use the number
to drop repeats and to keep the order, even if the node's clock was wrong. The event has the line's time,
unless CloudWatch would reject that time or sort the event before earlier ones.

Source: CloudWatch Logs API reference, PutLogEvents and GetLogEvents (checked 2026-11).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import msgspec

from cloudspot.calls.retrying import retry
from cloudspot.decoding import Dated, Tally, decode
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.interfaces import LogSink, check_stream, is_stream
from cloudspot.model import LogPiece, LogRecord
from cloudspot.plugin.answers import UNREADABLE, moment_of
from cloudspot.plugin.logdelivery import EntryTimes, batches, cut
from cloudspot.plugin.logorder import Arrival, Joiner, Order, read_back
from cloudspot.plugin.machinetags import store_digest
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS

GROUP_PREFIX = "/cloudspot/"
MAX_BATCH_BYTES = 1_048_576
MAX_BATCH_EVENTS = 10_000
EVENT_OVERHEAD_BYTES = 26
MAX_TEXT = 40_000
"""The maximum length of one event, in characters; longer lines become several events. In JSON a character
takes up to six bytes, and some partitions still limit an event to 256 KiB.
"""
OVERLAP_MS = 30_000
"""How far back a follower starts to read, in seconds, because batches may become visible out of order."""
READS_A_SECOND = 8
"""How many pages of events one sink requests per second. An account may make 10 requests per second in a
region, and this quota cannot be raised (CloudWatch Logs user guide, "CloudWatch Logs quotas", GetLogEvents;
checked 2026-11).
"""

# A child of the logger whose lines an agent delivers with its job's log.
_log = logging.getLogger("cloudspot.aws.logs")


class _Missing(CloudspotError):
    """The group or stream does not exist."""


class _Taken(CloudspotError):
    """The group or stream already exists."""


_CODES = {"ResourceNotFoundException": _Missing, "ResourceAlreadyExistsException": _Taken}


class CloudWatchLogSink(LogSink):
    """A job's log in CloudWatch Logs. Thread-safe.

    By default the group is ``/cloudspot/<job>`` and its streams are ``<store>/<stream>``. ``<store>`` is a
    digest of the store's URL, because a job in another store may have the same id. If a group is named, jobs
    share it, and their streams are ``<job>/<store>/<stream>``. A missing group is created, and keeps its
    events for ``retention_days``; an existing group is not changed.
    """

    def __init__(
        self,
        job_id: str,
        *,
        store_url: str,
        clients: AwsClients | None = None,
        group: str | None = None,
        retention_days: int = 30,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Do no I/O; ``store_url`` is canonical, and the group and its retention are checked already.

        ``store_url`` is canonical; the group and its retention were checked with the options.
        """
        self.group = group or f"{GROUP_PREFIX}{job_id}"
        store = store_digest(store_url)
        self._prefix = f"{store}/" if group is None else f"{job_id}/{store}/"
        self._retention_days = retention_days
        self._clients = clients or AwsClients()
        self._sleep = sleep
        self._now = now
        self._monotonic = monotonic
        self._pace_lock = threading.Lock()
        self._reads: deque[float] = deque(maxlen=READS_A_SECOND)
        """When the newest pages were requested, by the monotonic clock."""
        self._times = EntryTimes(self._newest_time, now=now)
        self._seen: dict[str, tuple[int, int]] = {}
        """The number and the time of the last line yielded, by stream."""

    def write(self, records: Sequence[LogRecord]) -> None:
        if not records:
            return
        stream = records[0].stream
        check_stream(stream)
        for batch in batches(
            self._events(stream, records),
            size_of=lambda event: len(event["message"].encode()) + EVENT_OVERHEAD_BYTES,
            max_bytes=MAX_BATCH_BYTES,
            max_entries=MAX_BATCH_EVENTS,
        ):
            self._deliver(stream, batch)

    def streams(self) -> Sequence[str]:
        options: dict[str, Any] = {"logGroupName": self.group, "logStreamNamePrefix": self._prefix}
        streams: list[str] = []
        while True:
            try:
                answer = self._ask("describe_log_streams", **options)
            except _Missing:
                return ()
            names = (entry["logStreamName"].removeprefix(self._prefix) for entry in answer["logStreams"])
            streams += [name for name in names if is_stream(name)]
            if not answer.get("nextToken"):
                return tuple(sorted(streams))
            options["nextToken"] = answer["nextToken"]

    def read(self, stream: str, *, after: int = -1) -> Iterator[LogRecord]:
        """Yield the stream's records with ``seq > after``, in order, each once; see LogSink.

        A line that has just arrived is held back while an earlier line, which may still appear, is missing.
        """
        check_stream(stream)
        seen = self._seen.get(stream)
        start = {}
        if seen is not None and after >= seen[0]:
            start = {"startTime": max(0, seen[1] - OVERLAP_MS)}
        order = Order(after)
        for page in self._pages(stream, startFromHead=True, **start):
            for arrival in page:
                yield from self._passed_on(stream, order.add(arrival))
        yield from self._passed_on(stream, order.rest(now_ms=_milliseconds(self._now())))

    def read_back(self, stream: str) -> Iterator[LogRecord]:
        """Yield the stream's records, newest first; see LogSink. Pages are fetched when they are needed."""
        check_stream(stream)
        yield from read_back(self._pages(stream, startFromHead=False))

    def pieces(self) -> Sequence[LogPiece]:
        """Return each stream as one piece; see LogSink.

        Only the first and the last page of each stream are read.
        """
        pieces = []
        for stream in self.streams():
            ends = [next(self.read(stream), None), next(self.read_back(stream), None)]
            days = [record.time.astimezone(timezone.utc).date() for record in ends if record is not None]
            if days:
                name = f"{self.group}:{self._prefix}{stream}"
                pieces.append(LogPiece(stream=stream, name=name, first_day=min(days), last_day=max(days)))
        return pieces

    def remove(self, pieces: Sequence[LogPiece]) -> None:
        for piece in pieces:
            with suppress(_Missing):
                self._ask("delete_log_stream", **self._place(piece.stream))

    # --- writing ----------------------------------------------------------------------------------

    def _events(self, stream: str, records: Sequence[LogRecord]) -> Iterator[dict[str, Any]]:
        for record, at in self._times.assign(stream, records):
            texts = cut(record.text, MAX_TEXT)
            for number, text in enumerate(texts):
                line = {"seq": record.seq, "time": record.time, "source": record.source, "text": text}
                if len(texts) > 1:
                    line |= {"part": number, "parts": len(texts)}
                yield {"timestamp": _milliseconds(at), "message": msgspec.json.encode(line).decode()}

    def _newest_time(self, stream: str) -> datetime | None:
        """Return the time of the stream's last event, which another process may have delivered."""
        try:
            answer = self._ask("get_log_events", **self._place(stream), limit=1, startFromHead=False)
        except _Missing:
            return None
        times = [event["timestamp"] for event in answer["events"]]
        return moment_of(max(times) / 1000) if times else None

    def _deliver(self, stream: str, events: list[dict[str, Any]]) -> None:
        try:
            answer = self._put(stream, events)
        except _Missing:
            self._make(stream)
            answer = self._put(stream, events)
        rejected = answer.get("rejectedLogEventsInfo")
        if rejected:
            # Delivering these events again would not help, and would hold up all later lines.
            _log.warning("CloudWatch rejects lines of %s for their time: %s; set the clock", stream, rejected)

    def _put(self, stream: str, events: list[dict[str, Any]]) -> Any:
        return self._ask("put_log_events", **self._place(stream), logEvents=events)

    def _make(self, stream: str) -> None:
        """Create the stream, and the group if it does not exist."""
        try:
            self._make_stream(stream)
        except _Missing:
            try:
                self._ask("create_log_group", logGroupName=self.group)
            except _Taken:
                pass  # Another node has created it first, and sets the retention.
            else:
                self._ask(
                    "put_retention_policy", logGroupName=self.group, retentionInDays=self._retention_days
                )
            self._make_stream(stream)

    def _make_stream(self, stream: str) -> None:
        with suppress(_Taken):
            self._ask("create_log_stream", **self._place(stream))

    # --- reading ----------------------------------------------------------------------------------

    def _pages(self, stream: str, *, startFromHead: bool, **options: Any) -> Iterator[list[Arrival]]:  # noqa: N803 - boto3's name
        """Yield the lines of each page in the stream's own order, with pages from its head or its end."""
        joiner = Joiner()
        name = "nextForwardToken" if startFromHead else "nextBackwardToken"
        token: str | None = None
        options |= self._place(stream)
        while True:
            try:
                answer = self._ask("get_log_events", startFromHead=startFromHead, **options)
            except _Missing:
                return
            yield [arrival for event in answer["events"] for arrival in _lines(joiner, stream, event)]
            # An empty page may precede others; the last page repeats the token that led to it.
            if answer[name] == token:
                return
            options["nextToken"] = token = answer[name]

    def _passed_on(self, stream: str, arrivals: Iterator[Arrival]) -> Iterator[LogRecord]:
        for arrival in arrivals:
            self._seen[stream] = (arrival.record.seq, arrival.at_ms)
            yield arrival.record

    # --- requests ---------------------------------------------------------------------------------

    def _place(self, stream: str) -> dict[str, Any]:
        return {"logGroupName": self.group, "logStreamName": self._prefix + stream}

    def _ask(self, operation: str, **options: Any) -> Any:
        """Make a request, and repeat it after a transient failure: every request here is safe to repeat."""
        client = self._clients.client("logs", num_attempts=1)

        def call() -> Any:
            if operation == "get_log_events":
                self._wait_for_quota()
            with ERRORS.translated(f"log group {self.group}", _CODES):
                return getattr(client, operation)(**options)

        return retry(call, sleep=self._sleep, kind=TransientError)

    def _wait_for_quota(self) -> None:
        with self._pace_lock:
            if len(self._reads) == READS_A_SECOND:
                wait = self._reads[0] + 1.0 - self._monotonic()
                if wait > 0:
                    self._sleep(wait)
            self._reads.append(self._monotonic())


class _Line(Dated, frozen=True):
    seq: Tally
    time: datetime
    source: str
    text: str
    part: Tally = 0
    parts: Tally = 1


def _lines(joiner: Joiner, stream: str, event: Mapping[str, Any]) -> Iterator[Arrival]:
    """Yield the line that this event completes, if any; skip events that cloudspot did not write."""
    try:
        line: _Line = decode(event["message"], _Line)
        record = LogRecord(stream=stream, seq=line.seq, time=line.time, text=line.text, source=line.source)
        arrival = Arrival(record, event["timestamp"], event["ingestionTime"])
    except UNREADABLE:
        return
    yield from joiner.add(arrival, part=line.part, num_parts=line.parts)


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
