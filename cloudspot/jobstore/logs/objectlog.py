"""Log lines in the object store: create-only segments of JSON lines, by stream and UTC date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date as calendar_date
from datetime import timezone
from itertools import groupby
from typing import ClassVar, NamedTuple

from cloudspot.errors import CorruptData
from cloudspot.interfaces import LogSink, ObjectStore, check_stream
from cloudspot.jobstore.access.creation import create
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import find_bytes, first_names
from cloudspot.jobstore.layout import codec, keys
from cloudspot.model import LogPiece, LogRecord

_WHOLE_LISTING = 1000
"""A stream of up to this many segments is listed completely each time, in one request."""
_NUM_LATE_DATES = 2
"""In a longer stream, new segments are looked for after the newest one, and in this number of the newest
dates, because a clock may have gone back past midnight.
"""
_LEAST_LINE_BYTES = 64
"""The minimum length of a line in a segment, given by the names of its fields."""


class _Segment(NamedTuple):
    """A segment in a listing; segments sort by the numbers of their first lines."""

    first: int
    date: str
    key: str
    size: int

    @property
    def most(self) -> int:
        """An upper bound on the line numbers of the segment."""
        return self.first + self.size // _LEAST_LINE_BYTES


class ObjectStoreLogSink(LogSink):
    """Keeps a job's log lines under ``jobs/<id>/logs/<stream>/<date>/<first seq>``. Thread-safe.

    A segment never changes. If a restarted agent delivers lines again, they are recognized in the segment
    that holds them, or written to a second segment; readers drop the duplicates.
    """

    is_in_store: ClassVar[bool] = True

    def __init__(self, store: ObjectStore, job_id: str) -> None:
        self._store = with_retries(store)
        self._job_id = job_id
        self._last_seq: dict[str, int] = {}
        """The number of the last line in each segment read so far, which lets later reads skip segments."""
        self._listed: dict[str, tuple[_Segment, ...]] = {}
        """The known segments of each stream."""

    def write(self, records: Sequence[LogRecord]) -> None:
        """Store records of one stream; see LogSink. Each UTC date gets its own segment."""
        for date, run in groupby(records, lambda record: record.time.astimezone(timezone.utc).date()):
            self._write_segment(date.isoformat(), list(run))

    def streams(self) -> Sequence[str]:
        """Return the names of the job's streams, sorted; see LogSink. Each name takes one request."""
        return list_streams(self._store, self._job_id)

    def read(self, stream: str, *, after: int = -1) -> Iterator[LogRecord]:
        newest = after
        # A segment has no gaps, so if two segments overlap, the lines of the earlier segment come first.
        for segment in self._segments(stream):
            if self._last_seq.get(segment.key, after + 1) <= after:
                continue
            for record in self._read_segment(segment.key):
                if record.seq > newest:
                    newest = record.seq
                    yield record

    def read_back(self, stream: str) -> Iterator[LogRecord]:
        """Yield the stream's records, the newest first; see LogSink. Fetch only the segments needed."""
        left = self._segments(stream)
        held: dict[int, LogRecord] = {}
        top = -1
        # A segment that was delivered later may begin before another segment and end after it.
        while further := [segment for segment in left if segment.most > top]:
            left.remove(further[-1])
            held.update((record.seq, record) for record in self._read_segment(further[-1].key))
            top = max(held, default=-1)
        try:
            while held or left:
                while left and top not in held:
                    found = self._read_segment(left.pop().key)
                    held.update((record.seq, record) for record in found if record.seq <= top)
                if not held:
                    return
                top = max(held)
                yield held[top]
                del held[top]
                top -= 1
        finally:
            # A later read that continues from here needs no line of the older segments.
            for segment in left:
                self._last_seq[segment.key] = min(top, self._last_seq.get(segment.key, top))

    def pieces(self) -> Sequence[LogPiece]:
        """Return each day of a stream as one piece; see LogSink. Fetch no segment."""
        pieces = []
        for stream in self.streams():
            segments = self._list(keys.log_stream_prefix(self._job_id, stream), None)
            for date, day in groupby(segments, lambda segment: segment.date):
                name = keys.log_day_prefix(self._job_id, stream, date)
                size = sum(segment.size for segment in day)
                moment = calendar_date.fromisoformat(date)
                pieces.append(
                    LogPiece(stream=stream, name=name, first_day=moment, last_day=moment, num_bytes=size)
                )
        return pieces

    def remove(self, pieces: Sequence[LogPiece]) -> None:
        """Delete a stream's days; see LogSink."""
        for piece in pieces:
            found = [meta.key for meta in self._store.list_objects(piece.name)]
            map_parallel(self._store.delete, found)
            self._listed.pop(piece.stream, None)

    def _write_segment(self, date: str, records: list[LogRecord]) -> None:
        while records:
            first = records[0]
            check_stream(first.stream)
            key = keys.log_segment(self._job_id, first.stream, date, first.seq)
            data = b"".join(codec.encode(record) + b"\n" for record in records)
            winner = create(self._store, key, data)
            if winner is None:
                return
            # The key is taken, so write only the lines that the existing segment does not hold.
            held = {record.seq for record in _parse(winner, key)}
            records = [record for record in records if record.seq not in held and record.seq != first.seq]

    def _segments(self, stream: str) -> list[_Segment]:
        """Return the stream's segments in the order of their first lines: a clock may have gone back."""
        prefix = keys.log_stream_prefix(self._job_id, stream)
        known = self._listed.get(stream, ())
        if len(known) < _WHOLE_LISTING:
            segments = {*self._list(prefix, None)}
        else:
            segments = {*known, *self._list(prefix, max(segment.key for segment in known))}
            dates = sorted({segment.date for segment in known})
            for date in dates[-_NUM_LATE_DATES:]:
                newest = max(segment.key for segment in known if segment.date == date)
                segments.update(self._list(keys.log_day_prefix(self._job_id, stream, date), newest))
        self._listed[stream] = tuple(sorted(segments))
        return list(self._listed[stream])

    def _list(self, prefix: str, after: str | None) -> Iterator[_Segment]:
        """Yield the segments whose keys start with ``prefix`` and sort after ``after``."""
        for meta in self._store.list_objects(prefix, after=after):
            match = keys.log_segment.match(meta.key)
            if match is not None:
                yield _Segment(match[3], match[2], meta.key, meta.size)

    def _read_segment(self, key: str) -> list[LogRecord]:
        data = find_bytes(self._store, key)
        if data is None:
            return []
        records = _parse(data, key)
        self._last_seq[key] = max((record.seq for record in records), default=-1)
        return records


def _parse(data: bytes, key: str) -> list[LogRecord]:
    records = [codec.decode(line, LogRecord, key=key) for line in data.splitlines()]
    match = keys.log_segment.match(key)
    for record in records:
        if match is None or record.stream != match[1]:
            raise CorruptData(f"{key} holds a line of another stream: {record.stream}")
    return records


def list_streams(store: ObjectStore, job_id: str) -> Sequence[str]:
    """Return the names of the streams that have objects below the job's prefix for logs, sorted.

    Each name takes one request.
    """
    prefix = keys.logs_prefix(job_id)
    found = (keys.log_stream_prefix.match(prefix + name) for name in first_names(store, prefix))
    return tuple(sorted(match[1] for match in found if match is not None))
