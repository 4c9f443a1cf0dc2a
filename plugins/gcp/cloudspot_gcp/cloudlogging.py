"""Log lines in Cloud Logging: entries of text in one log of the project, labelled by job, store and node.

An entry's labels contain the line's number, which readers use to drop repeats and to keep the order, even if
the node's clock was wrong. An entry has the line's time, unless Logging would refuse that time or sort the
entry before earlier ones; the line's own time is then a label, too.

The first line of a stream on each day (UTC) is marked, so that a query for the few marked entries finds all
streams and days.

For a whole project, Logging answers at most 60 list requests a minute. A reader that follows the log
therefore asks for all nodes of the job at once, and waits two seconds for each thousand entries before it
asks again.

Source: Cloud Logging API reference, entries.write and entries.list; "Quotas and limits" (checked 2026-11).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timezone
from typing import Any

from cloudspot.errors import CloudspotError
from cloudspot.interfaces import check_stream
from cloudspot.model import LogPiece, LogRecord
from cloudspot.plugin.answers import moment_of
from cloudspot.plugin.logdelivery import EntryTimes, batches, cut
from cloudspot.plugin.machinetags import store_digest
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.cloudloggingentries import MARK, day_of, iso, milliseconds
from cloudspot_gcp.cloudloggingreader import CloudLoggingReader, about_stream
from cloudspot_gcp.cloudloggingrequests import EntryRefused, LogRequests

LOG_NAME = "cloudspot"
MAX_BATCH_ENTRIES = 1000
MAX_BATCH_BYTES = 5_000_000
"""The limit counts six bytes of JSON for each character; a request can hold 10 MB."""
ENTRY_OVERHEAD_BYTES = 500
MAX_TEXT = 50_000
"""The maximum length of one entry, in characters; longer lines become several entries. A character takes up
to four bytes, and an entry holds 256 KiB.
"""
SHARE_SECONDS = 2.0

# A child of the logger whose lines an agent delivers with its job's log.
_log = logging.getLogger("cloudspot.gcp.logs")


class CloudLoggingSink(CloudLoggingReader):
    """A job's log in Cloud Logging. Thread-safe.

    ``log_name`` is the log that jobs share, ``cloudspot`` by default; the retention of its log bucket decides
    how long it keeps its entries.
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
        """Do no I/O. ``store_url`` is canonical; ``log_name`` was checked with the options."""
        self._log_name = log_name or LOG_NAME
        labels = {"job": job_id, "store": store_digest(store_url)}
        requests = LogRequests(clients or GcpClients(), log_name=self._log_name, labels=labels, sleep=sleep)
        super().__init__(requests, labels=labels, share_seconds=share_seconds, now=now, clock=clock)
        self._times = EntryTimes(self._newest_time, now=now)
        self._marked: dict[str, date] = {}
        """The day of the last line written, by stream; a line of that day has been marked already."""

    def write(self, records: Sequence[LogRecord]) -> None:
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
        if is_taken:
            self._marked[stream] = day_of(records[-1].time)
        else:
            self._marked.pop(stream, None)

    def remove(self, pieces: Sequence[LogPiece]) -> None:
        if pieces:
            raise CloudspotError(
                "lines of one job cannot be deleted from Cloud Logging: they expire after the retention time "
                f"of the log's bucket; to delete {self._log_name!r} with the lines of all its jobs, run: "
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
                    # Entries with the same time are listed in the order of their ids.
                    "insertId": f"{about}-{stream}-{record.seq:012}-{number:06}",
                    "labels": labels,
                }

    def _newest_time(self, stream: str) -> datetime | None:
        """Return the time of the stream's last entry, which another process may have delivered."""
        page = next(self._requests.pages(about_stream(stream), order="timestamp desc", size=1), [])
        found = milliseconds(page[0].get("timestamp", "")) if page else 0
        return moment_of(found / 1000) if found else None

    def _deliver(self, stream: str, entries: list[dict[str, Any]]) -> bool:
        try:
            self._requests.write(entries)
        except EntryRefused as error:
            # Delivering these entries again would not help, and would hold up all later lines.
            _log.warning("Cloud Logging refuses lines of %s: %s", stream, error)
            return False
        return True
