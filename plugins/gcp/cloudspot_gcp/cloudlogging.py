"""Log lines in Cloud Logging: entries of text in one log of the project, labelled by job, store and node.

An entry's labels carry the line's number: by it repeats are dropped and the order is kept, whatever clock
the node had. Entries carry the line's time, but never one that Logging would refuse or sort before what was
delivered earlier; the line's own is then a label too.

Logging answers 60 lists a minute for a whole project. One who follows therefore asks for all nodes of the
job at once, and not more often than every two seconds; one who is throttled waits.

Source: Cloud Logging API reference, entries.write and entries.list; "Quotas and limits" (checked 2026-11).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from cloudspot.errors import AuthError, CloudspotError, SpecError, TransientError
from cloudspot.interfaces import LogSink
from cloudspot.logorder import Arrival, Order, read_back
from cloudspot.model import LogRecord
from cloudspot.persistence import persist
from cloudspot_gcp.attributes import store_digest
from cloudspot_gcp.clients import TIMEOUT, GcpClients
from cloudspot_gcp.errors import SDK_ERRORS, THROTTLED, error_code, status_of, translation
from cloudspot_gcp.logentries import EntryReader, iso, milliseconds, parse_time

LOG_NAME = "cloudspot"
MAX_BATCH_ENTRIES = 1000
MAX_BATCH_BYTES = 5_000_000
"""As counted here, where a character is six bytes of JSON; a request holds 10 MB."""
ENTRY_OVERHEAD_BYTES = 500
MAX_TEXT = 50_000
"""Longer lines become several entries: a character takes at most four bytes, an entry holds 256 KiB."""
MAX_AGE = timedelta(hours=12)
"""Of an entry's own time: Logging drops what is older than its bucket's retention, 30 days as a rule."""
MAX_AHEAD = timedelta(hours=1)
"""Logging refuses what is a day ahead."""
PAGE_ENTRIES = 1000
OVERLAP = timedelta(seconds=60)
"""A reader that follows goes back so far: entries need not show in the order in which they came."""
SHARE_SECONDS = 2.0
NUM_THROTTLED_TRIES = 10
"""Of a list: 51 s in all, since the quota is by the minute."""

_STREAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LOG = re.compile(r"[A-Za-z0-9._-]{1,200}")
_BAD_REQUEST = 400

# Below the logger whose lines an agent delivers with its job's log.
_log = logging.getLogger("cloudspot.gcp.logs")


class _Throttled(TransientError):
    """Nothing was done, since there were too many requests."""


class _Unwell(TransientError):
    """The service failed, or did not answer."""


class _Refused(CloudspotError):
    """An entry is not to Logging's liking."""


class CloudLoggingSink(LogSink):
    """A job's log in Cloud Logging. Thread-safe.

    ``log_name`` is the log that jobs share, ``cloudspot`` by default; how long it keeps its entries is its
    log bucket's to say.
    """

    def __init__(
        self,
        job_id: str,
        *,
        store_url: str,
        clients: GcpClients | None = None,
        log_name: str | None = None,
        share_seconds: float = SHARE_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Do no I/O; ``store_url`` is the canonical one.

        Raises:
            SpecError: the log has no valid name.
        """
        if log_name is not None and _LOG.fullmatch(log_name) is None:
            raise SpecError(f"log name must be 1 to 200 letters, digits and .-_: got {log_name!r}")
        self._log_name = log_name or LOG_NAME
        self._labels = {"job": job_id, "store": store_digest(store_url)}
        self._clients = clients or GcpClients()
        self._share_seconds = share_seconds
        self._sleep = sleep
        self._now = now
        self._clock = clock
        self._lock = threading.RLock()
        self._newest: dict[str, datetime] = {}
        """Of each stream written to: the time of its last entry."""
        self._followed: dict[str, _Followed] = {}
        """The streams that were read to their end."""
        self._received_ms: int | None = None
        """When Logging got the newest entry that was read for those who follow."""
        self._shared_at: float | None = None

    def write(self, records: Sequence[LogRecord]) -> None:
        """Deliver records of one stream; see LogSink."""
        if not records:
            return
        stream = records[0].stream
        _check_stream(stream)
        batch: list[dict[str, Any]] = []
        size = 0
        for entry in self._entries(stream, records):
            num_bytes = 6 * len(entry["textPayload"]) + ENTRY_OVERHEAD_BYTES
            if batch and (size + num_bytes > MAX_BATCH_BYTES or len(batch) == MAX_BATCH_ENTRIES):
                self._deliver(stream, batch)
                batch, size = [], 0
            batch.append(entry)
            size += num_bytes
        self._deliver(stream, batch)

    def streams(self) -> Sequence[str]:
        """Return the names of the job's streams, sorted; see LogSink. A stream is known by its first line."""
        found: set[str] = set()
        for page in self._pages('labels.seq="0"'):
            found |= {entry.get("labels", {}).get("stream", "") for entry in page}
        return tuple(sorted(name for name in found if _STREAM.fullmatch(name)))

    def read(self, stream: str, *, after: int = -1) -> Iterator[LogRecord]:
        """Yield the stream's records with ``seq > after``, in order, each once; see LogSink.

        A line that came a moment ago is held back while one before it is missing: it may show later.
        """
        _check_stream(stream)
        followed = self._followed.get(stream)
        if followed is not None and after >= followed.seq:
            yield from self._read_on(followed, after)
            return
        followed, order = _Followed(stream), Order(after)
        for page in self._pages(_about(stream)):
            for arrival in followed.take(page, self._labels):
                yield from followed.passed_on(order.add(arrival))
        yield from followed.passed_on(order.rest(now_ms=self._now_ms()))
        with self._lock:
            self._followed[stream] = followed

    def read_back(self, stream: str) -> Iterator[LogRecord]:
        """Yield the stream's records from the newest back; see LogSink. Fetches no more than is asked for."""
        _check_stream(stream)
        reader = EntryReader(stream, self._labels)
        pages = self._pages(_about(stream), order="timestamp desc")
        yield from read_back([arrival for entry in page for arrival in reader.add(entry)] for page in pages)

    # --- writing ----------------------------------------------------------------------------------

    def _entries(self, stream: str, records: Sequence[LogRecord]) -> Iterator[dict[str, Any]]:
        newest, now = self._newest_time(stream), self._now()
        if newest > now + MAX_AHEAD:
            newest = now - MAX_AGE  # The clock went far back: how the entries lie matters less than that.
        for record in records:
            newest = max(newest, min(max(record.time, now - MAX_AGE), now))
            texts = [record.text[at : at + MAX_TEXT] for at in range(0, len(record.text), MAX_TEXT)] or [""]
            labels = {"stream": stream, "seq": str(record.seq), "source": record.source}
            if newest != record.time:
                labels["time"] = iso(record.time)
            for number, text in enumerate(texts):
                if len(texts) > 1:
                    labels = {**labels, "part": str(number), "parts": str(len(texts))}
                yield {
                    "textPayload": text,
                    "timestamp": iso(newest),
                    # Entries of one time are listed in its order.
                    "insertId": f"{self._labels['job']}-{stream}-{record.seq:012}-{number:06}",
                    "labels": labels,
                }

    def _newest_time(self, stream: str) -> datetime:
        """Return the time of the stream's last entry, also where another process has delivered it."""
        with self._lock:
            known = self._newest.get(stream)
        if known is not None:
            return known
        try:
            page = next(self._pages(_about(stream), order="timestamp desc", size=1), [])
        except AuthError:
            page = []  # A service account that may only write: its node's clock is then trusted.
        return parse_time(page[0]["timestamp"]) if page else self._now() - MAX_AGE

    def _deliver(self, stream: str, entries: list[dict[str, Any]]) -> None:
        project = self._clients.project
        body = {
            "logName": f"projects/{project}/logs/{self._log_name}",
            "resource": {"type": "global", "labels": {"project_id": project}},
            "labels": self._labels,
            "entries": entries,
            "partialSuccess": True,
        }
        try:
            self._ask("write", body)
        except _Refused as error:
            # To deliver them again would help nobody, and hold up all lines to come.
            _log.warning("Cloud Logging refuses lines of %s: %s", stream, error)
        with self._lock:
            self._newest[stream] = parse_time(entries[-1]["timestamp"])

    # --- reading ----------------------------------------------------------------------------------

    def _read_on(self, followed: _Followed, after: int) -> Iterator[LogRecord]:
        with self._lock:
            if self._shared_at is None or self._clock() - self._shared_at >= self._share_seconds:
                self._fetch_new()
                self._shared_at = self._clock()
            order = Order(after)
            found = [record for one in followed.waiting for record in followed.passed_on(order.add(one))]
            found += followed.passed_on(order.rest(now_ms=self._now_ms()))
            newest = max(after, followed.seq)
            followed.waiting = [one for one in followed.waiting if one.record.seq > newest]
        yield from found

    def _fetch_new(self) -> None:
        """Hand to all streams that are followed what Logging got since the last time."""
        if self._received_ms is None:
            self._received_ms = min(one.received_ms for one in self._followed.values())
        since = datetime.fromtimestamp(self._received_ms / 1000, timezone.utc) - OVERLAP
        newest = self._received_ms
        oldest = since - 2 * MAX_AGE  # Only to spare Logging a look at all that it has.
        about = f'timestamp>="{iso(oldest)}" AND receiveTimestamp>="{iso(since)}"'
        for page in self._pages(about):
            for entry in page:
                newest = max(newest, milliseconds(entry.get("receiveTimestamp", "")))
                followed = self._followed.get(entry.get("labels", {}).get("stream", ""))
                if followed is not None:
                    followed.waiting += followed.take([entry], self._labels)
        self._received_ms = newest

    def _pages(
        self, about: str, *, order: str = "timestamp asc", size: int = PAGE_ENTRIES
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the entries of the job that the query is about, page by page."""
        project = self._clients.project
        parts = [f'logName="projects/{project}/logs/{self._log_name}"']
        parts += [f'labels.{name}="{value}"' for name, value in self._labels.items()]
        body = {
            "resourceNames": [f"projects/{project}"],
            "filter": " AND ".join([*parts, about]),
            "orderBy": order,
            "pageSize": size,
        }
        while True:
            answer = self._ask("list", body, num_tries=NUM_THROTTLED_TRIES)
            yield answer.get("entries", [])
            token = answer.get("nextPageToken")
            if not token:
                return
            body["pageToken"] = token

    # --- requests ---------------------------------------------------------------------------------

    def _ask(self, method: str, body: Mapping[str, Any], *, num_tries: int = 5) -> Any:
        """Make a request, again where it failed in passing: each of ours may be repeated."""

        def call() -> Any:
            try:
                return self._clients.logging().logging_api.api_request(
                    method="POST", path=f"/entries:{method}", data=body, timeout=TIMEOUT
                )
            except SDK_ERRORS as error:
                found = translation(error, f"log {self._log_name} of project {self._clients.project}")
                if status_of(error) == _BAD_REQUEST:
                    raise _Refused(str(found)) from error
                if status_of(error) == 429 or error_code(error) in THROTTLED:
                    raise _Throttled(str(found)) from error
                if isinstance(found, TransientError):
                    raise _Unwell(str(found)) from error
                raise found from error

        def patient() -> Any:
            return persist(call, sleep=self._sleep, kind=_Unwell)

        return persist(patient, sleep=self._sleep, kind=_Throttled, num_tries=num_tries)

    def _now_ms(self) -> int:
        return int(self._now().timestamp() * 1000)


class _Followed:
    """How far a stream has been read."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._reader: EntryReader | None = None
        self.seq = -1
        """The number of the last line that was passed on."""
        self.received_ms = 0
        """When Logging got the newest entry that was read."""
        self.waiting: list[Arrival] = []
        """Lines that came with another stream's, or that wait for one before them."""

    def take(self, page: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> list[Arrival]:
        """Return the lines that the entries complete."""
        if self._reader is None:
            self._reader = EntryReader(self._stream, labels)
        found = [arrival for entry in page for arrival in self._reader.add(entry)]
        self.received_ms = max([self.received_ms, *(one.ingested_ms for one in found)])
        return found

    def passed_on(self, arrivals: Iterator[Arrival]) -> Iterator[LogRecord]:
        """Yield the lines, and remember how far that is."""
        for arrival in arrivals:
            self.seq = arrival.record.seq
            yield arrival.record


def _about(stream: str) -> str:
    return f'labels.stream="{stream}"'


def _check_stream(stream: str) -> None:
    if _STREAM.fullmatch(stream) is None:
        raise ValueError(f"a stream is named by letters, digits and .-_: got {stream!r}")
