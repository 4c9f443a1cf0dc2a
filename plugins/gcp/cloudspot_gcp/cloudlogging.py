"""Log lines in Cloud Logging: entries of text in one log of the project, labelled by job, store and node.

An entry's labels carry the line's number: by it repeats are dropped and the order is kept, whatever clock
the node had. Entries carry the line's time, but never one that Logging would refuse or sort before what was
delivered earlier; the line's own is then a label too.

The first line of a stream on each day (UTC) is marked: by these few entries streams and their days are found.

Logging answers 60 lists a minute for a whole project. One who follows therefore asks for all nodes of the
job at once, and not more often than every two seconds for each thousand entries; one who is throttled waits.

Source: Cloud Logging API reference, entries.write and entries.list; "Quotas and limits" (checked 2026-11).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta, timezone
from typing import Any

from cloudspot.errors import AuthError, CloudspotError, SpecError
from cloudspot.interfaces import LogSink
from cloudspot.model import LogPiece, LogRecord
from cloudspot.plugin.machinetags import store_digest
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.logentries import MARK, MAX_AGE, day_of, iso, parse_time
from cloudspot_gcp.logreading import STREAM, LogReading, about_stream
from cloudspot_gcp.logrequests import EntryRefused, LogRequests

LOG_NAME = "cloudspot"
MAX_BATCH_ENTRIES = 1000
MAX_BATCH_BYTES = 5_000_000
"""As counted here, where a character is six bytes of JSON; a request holds 10 MB."""
ENTRY_OVERHEAD_BYTES = 500
MAX_TEXT = 50_000
"""Longer lines become several entries: a character takes at most four bytes, an entry holds 256 KiB."""
MAX_AHEAD = timedelta(hours=1)
"""Logging refuses what is a day ahead."""
SHARE_SECONDS = 2.0

_LOG = re.compile(r"[A-Za-z0-9._-]{1,200}")

# Below the logger whose lines an agent delivers with its job's log.
_log = logging.getLogger("cloudspot.gcp.logs")


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
        self._requests = LogRequests(
            clients or GcpClients(), log_name=self._log_name, labels=self._labels, sleep=sleep
        )
        self._reading = LogReading(
            self._requests, labels=self._labels, share_seconds=share_seconds, now=now, clock=clock
        )
        self._now = now
        self._lock = threading.RLock()
        self._newest: dict[str, datetime] = {}
        """Of each stream written to: the time of its last entry."""
        self._marked: dict[str, date] = {}
        """Of each stream written to: the day of its last line, which is marked."""

    def write(self, records: Sequence[LogRecord]) -> None:
        """Deliver records of one stream; see LogSink."""
        if not records:
            return
        stream = records[0].stream
        _check_stream(stream)
        batch: list[dict[str, Any]] = []
        size, is_taken = 0, True
        for entry in self._entries(stream, records):
            num_bytes = 6 * len(entry["textPayload"]) + ENTRY_OVERHEAD_BYTES
            if batch and (size + num_bytes > MAX_BATCH_BYTES or len(batch) == MAX_BATCH_ENTRIES):
                is_taken &= self._deliver(stream, batch)
                batch, size = [], 0
            batch.append(entry)
            size += num_bytes
        is_taken &= self._deliver(stream, batch)
        with self._lock:
            if is_taken:
                self._marked[stream] = day_of(records[-1].time)
            else:
                self._marked.pop(stream, None)

    def streams(self) -> Sequence[str]:
        """Return the names of the job's streams, sorted; see LogSink.

        One who follows may ask every moment: new ones then show in what is fetched for all streams.
        """
        return self._reading.streams()

    def read(self, stream: str, *, after: int = -1) -> Iterator[LogRecord]:
        """Yield the stream's records with ``seq > after``, in order, each once; see LogSink.

        A line that came a moment ago is held back while one before it is missing: it may show later.
        """
        _check_stream(stream)
        yield from self._reading.read(stream, after=after)

    def read_back(self, stream: str) -> Iterator[LogRecord]:
        """Yield the stream's records from the newest back; see LogSink. Fetches no more than is asked for."""
        _check_stream(stream)
        yield from self._reading.read_back(stream)

    def pieces(self) -> Sequence[LogPiece]:
        """Return each stream as one piece, without its size; see LogSink. A list serves a thousand days."""
        return self._reading.pieces()

    def remove(self, pieces: Sequence[LogPiece]) -> None:
        """Raise CloudspotError if there is anything to remove; see LogSink."""
        if pieces:
            raise CloudspotError(
                f"lines of one job cannot be deleted from Cloud Logging: they end by the retention of the "
                f"log's bucket; to delete {self._log_name!r} with the lines of all its jobs, run: "
                f"gcloud logging logs delete {self._log_name}"
            )

    # --- writing ----------------------------------------------------------------------------------

    def _entries(self, stream: str, records: Sequence[LogRecord]) -> Iterator[dict[str, Any]]:
        newest, now = self._newest_time(stream), self._now()
        about = f"{self._labels['job']}-{self._labels['store']}"
        if newest > now + MAX_AHEAD:
            newest = now - MAX_AGE  # The clock went far back: how the entries lie matters less than that.
        marked = self._marked.get(stream)
        for record in records:
            newest = max(newest, min(max(record.time, now - MAX_AGE), now))
            texts = [record.text[at : at + MAX_TEXT] for at in range(0, len(record.text), MAX_TEXT)] or [""]
            labels = {"stream": stream, "seq": str(record.seq), "source": record.source}
            if newest != record.time:
                labels["time"] = iso(record.time)
            if marked != day_of(record.time):
                marked = day_of(record.time)
                labels["mark"] = MARK
            for number, text in enumerate(texts):
                if len(texts) > 1:
                    labels = {**labels, "part": str(number), "parts": str(len(texts))}
                yield {
                    "textPayload": text,
                    "timestamp": iso(newest),
                    # Entries of one time are listed in its order.
                    "insertId": f"{about}-{stream}-{record.seq:012}-{number:06}",
                    "labels": labels,
                }

    def _newest_time(self, stream: str) -> datetime:
        """Return the time of the stream's last entry, also where another process has delivered it."""
        with self._lock:
            known = self._newest.get(stream)
        if known is not None:
            return known
        try:
            page = next(self._requests.pages(about_stream(stream), order="timestamp desc", size=1), [])
        except AuthError:
            page = []  # A service account that may only write: its node's clock is then trusted.
        return parse_time(page[0]["timestamp"]) if page else self._now() - MAX_AGE

    def _deliver(self, stream: str, entries: list[dict[str, Any]]) -> bool:
        """Write the entries; say whether Logging has taken all of them."""
        is_taken = True
        try:
            self._requests.write(entries)
        except EntryRefused as error:
            # To deliver them again would help nobody, and hold up all lines to come.
            is_taken = False
            _log.warning("Cloud Logging refuses lines of %s: %s", stream, error)
        with self._lock:
            self._newest[stream] = parse_time(entries[-1]["timestamp"])
        return is_taken


def _check_stream(stream: str) -> None:
    if STREAM.fullmatch(stream) is None:
        raise ValueError(f"a stream is named by letters, digits and .-_: got {stream!r}")
