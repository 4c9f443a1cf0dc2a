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
from datetime import date, datetime, timezone
from typing import Any

from cloudspot.errors import CloudspotError, SpecError
from cloudspot.interfaces import LogSink, check_stream
from cloudspot.model import LogPiece, LogRecord
from cloudspot.plugin.logdelivery import EntryTimes, batches, cut
from cloudspot.plugin.machinetags import store_digest
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.logentries import MARK, day_of, iso, parse_time
from cloudspot_gcp.logreading import LogReading, about_stream
from cloudspot_gcp.logrequests import EntryRefused, LogRequests

LOG_NAME = "cloudspot"
MAX_BATCH_ENTRIES = 1000
MAX_BATCH_BYTES = 5_000_000
"""As counted here, where a character is six bytes of JSON; a request holds 10 MB."""
ENTRY_OVERHEAD_BYTES = 500
MAX_TEXT = 50_000
"""Longer lines become several entries: a character takes at most four bytes, an entry holds 256 KiB."""
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
        self._lock = threading.RLock()
        self._times = EntryTimes(self._newest_time, now=now)
        self._marked: dict[str, date] = {}
        """Of each stream written to: the day of its last line, which is marked."""

    def write(self, records: Sequence[LogRecord]) -> None:
        """Deliver records of one stream; see LogSink."""
        if not records:
            return
        stream = records[0].stream
        check_stream(stream)
        is_taken = True
        for batch in batches(
            self._entries(stream, records),
            size_of=lambda entry: 6 * len(entry["textPayload"]) + ENTRY_OVERHEAD_BYTES,
            max_bytes=MAX_BATCH_BYTES,
            max_entries=MAX_BATCH_ENTRIES,
        ):
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
        check_stream(stream)
        yield from self._reading.read(stream, after=after)

    def read_back(self, stream: str) -> Iterator[LogRecord]:
        """Yield the stream's records from the newest back; see LogSink. Fetches no more than is asked for."""
        check_stream(stream)
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
        about = f"{self._labels['job']}-{self._labels['store']}"
        marked = self._marked.get(stream)
        for record, at in self._times.assign(stream, records):
            texts = cut(record.text, MAX_TEXT)
            labels = {"stream": stream, "seq": str(record.seq), "source": record.source}
            if at != record.time:
                labels["time"] = iso(record.time)
            if marked != day_of(record.time):
                marked = day_of(record.time)
                labels["mark"] = MARK
            for number, text in enumerate(texts):
                if len(texts) > 1:
                    labels = {**labels, "part": str(number), "parts": str(len(texts))}
                yield {
                    "textPayload": text,
                    "timestamp": iso(at),
                    # Entries of one time are listed in its order.
                    "insertId": f"{about}-{stream}-{record.seq:012}-{number:06}",
                    "labels": labels,
                }

    def _newest_time(self, stream: str) -> datetime | None:
        """Return the time of the stream's last entry, which another process may have delivered."""
        page = next(self._requests.pages(about_stream(stream), order="timestamp desc", size=1), [])
        return parse_time(page[0]["timestamp"]) if page else None

    def _deliver(self, stream: str, entries: list[dict[str, Any]]) -> bool:
        """Write the entries; return whether Logging has taken all of them."""
        try:
            self._requests.write(entries)
        except EntryRefused as error:
            # To deliver them again would not help, and would hold up all lines to come.
            _log.warning("Cloud Logging refuses lines of %s: %s", stream, error)
            return False
        return True
