"""Reads a job's log, merged over its nodes, and continues from where it last stopped."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import datetime
from itertools import groupby

from cloudspot.interfaces import LogSink
from cloudspot.jobstore.log_streams import is_node_stream, parse_stream
from cloudspot.model import LogRecord


class LogTail:
    """Reads a job's log from where it last stopped, each line once.

    It reads launch by launch, since one is over before the next begins. The nodes of a launch are merged by
    time, and each stream keeps its own order. A sink that does not answer raises TransientError; call again,
    and it goes on after the last line.
    """

    def __init__(
        self,
        sink: LogSink,
        *,
        streams: Callable[[], Sequence[str]] | None = None,
        wanted: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Read the streams that ``streams`` names at each call (default: those the sink lists).

        ``wanted`` tells by launch and rank whether to read one; by default, all are read.
        """
        self._sink = sink
        self._streams = sink.streams if streams is None else streams
        self._wanted = wanted
        self._newest: dict[str, int] = {}

    def new_records(self) -> Iterator[LogRecord]:
        """Yield what has arrived since the last call."""
        for streams in self._launches():
            for record in heapq.merge(*map(self._read_on, streams), key=_time):
                # Noted here and not where it is read, because merge reads one line of each stream ahead.
                self._newest[record.stream] = record.seq
                yield record

    def last_records(
        self,
        count: int,
        *,
        since: datetime | None = None,
        shown: Callable[[LogRecord], bool] = lambda _record: True,
    ) -> list[LogRecord]:
        """Return the last ``count`` records that are ``shown``; ``new_records`` continues after them.

        Call it first. It reads backwards from the log's end, where the sink can, and no further than needed:
        nothing before ``since``.
        """
        self._newest.clear()
        found: list[LogRecord] = []
        is_complete = False
        for streams in reversed(self._launches()):
            if is_complete:
                self._skip(streams)
                continue
            # Of two lines with the same time, the one that new_records would yield first comes last here.
            backs = [self._read_back(stream) for stream in reversed(streams)]
            for record in heapq.merge(*backs, key=_time, reverse=True):
                is_recent = since is None or record.time >= since
                if is_recent and len(found) < count and shown(record):
                    found.append(record)
                if not is_recent or len(found) >= count:
                    is_complete = True
                    break
            for back in backs:
                back.close()
        return found[::-1]

    def skip_before(self, moment: datetime) -> None:
        """Make ``new_records`` start, in each stream, after the last line before ``moment``."""
        is_older = False
        for streams in reversed(self._launches()):
            if is_older:
                self._skip(streams)
                continue
            have_recent = [self._skip_stream(stream, moment) for stream in streams]
            is_older = False in have_recent and True not in have_recent

    def _launches(self) -> list[list[str]]:
        """Return the wanted streams, grouped by launch and sorted by rank."""
        streams = sorted(filter(is_node_stream, self._streams()), key=parse_stream)
        wanted = [each for each in streams if self._wanted is None or self._wanted(*parse_stream(each))]
        return [list(group) for _, group in groupby(wanted, key=lambda stream: parse_stream(stream)[0])]

    def _skip(self, streams: Sequence[str]) -> None:
        """Skip the streams of a launch that was over before anything that is read."""
        self._newest.update(dict.fromkeys(streams, sys.maxsize))

    def _skip_stream(self, stream: str, moment: datetime) -> bool | None:
        """Skip what is before the moment; return whether lines remain, or None if the stream is empty."""
        has_recent: bool | None = None
        for record in self._sink.read_back(stream):
            if record.time < moment:
                self._newest[stream] = record.seq
                return bool(has_recent)
            has_recent = True
        return has_recent

    def _read_on(self, stream: str) -> Iterator[LogRecord]:
        newest = self._newest.get(stream, -1)
        return iter(()) if newest == sys.maxsize else self._sink.read(stream, after=newest)

    def _read_back(self, stream: str) -> Generator[LogRecord]:
        for record in self._sink.read_back(stream):
            self._newest.setdefault(stream, record.seq)
            yield record


def _time(record: LogRecord) -> datetime:
    return record.time
