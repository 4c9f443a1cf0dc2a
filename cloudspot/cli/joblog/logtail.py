"""Read a job's log, merged over its nodes, continuing where the last call stopped."""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from cloudspot.interfaces import LogSink
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.logs.log_streams import is_node_stream, parse_stream, stream_name
from cloudspot.model import LogRecord

Life = tuple[datetime, datetime | None]
"""The period in which a node may have written lines; the end is None if it may still write."""
SLACK = timedelta(minutes=1)
"""The maximum difference between a machine's clock and the clock that recorded its end."""


def lives_of(history: History) -> dict[str, Life]:
    """Return the times during which the nodes of the job wrote their logs, by stream."""
    lives: dict[str, Life] = {}
    for launch in history.launches:
        for rank, slot in launch.claimed.items():
            over = launch.over_at(rank)
            lives[stream_name(launch.number, rank)] = (
                slot.at - SLACK,
                None if over is None else over + SLACK,
            )
    return lives


class LogTail:
    """Reads a job's log from where the last call stopped, each line once.

    The lines found by one call are merged by time, but each stream keeps its own order. A late line is
    returned by a later call, after newer lines of other nodes, because waiting for one node would delay all
    others. If the life of a node is known, its stream is not read before its first line may exist. A sink
    that does not answer raises TransientError; the next call continues after the last line.
    """

    def __init__(
        self,
        sink: LogSink,
        *,
        streams: Callable[[], Sequence[str]] | None = None,
        wanted: Callable[[int, int], bool] | None = None,
        lives: Callable[[], Mapping[str, Life]] = dict,
    ) -> None:
        """Read the streams that ``streams`` returns at each call (by default, those that the sink lists).

        ``wanted`` decides by launch and rank whether to read a stream; by default, all streams are read.
        ``lives`` returns the known lives of the nodes, by stream.
        """
        self._sink = sink
        self._streams = sink.streams if streams is None else streams
        self._wanted = wanted
        self._lives = lives
        self._newest: dict[str, int] = {}

    def new_records(self) -> Iterator[LogRecord]:
        """Yield the records that have arrived since the last call."""
        for record in self._merged(self._to_read(), self._read_on):
            # Record this here and not in the reader, because merging reads one line of each stream in
            # advance.
            self._newest[record.stream] = record.seq
            yield record

    def last_records(
        self,
        count: int,
        *,
        since: datetime | None = None,
        shown: Callable[[LogRecord], bool] = lambda _record: True,
    ) -> list[LogRecord]:
        """Return the last ``count`` records that ``shown`` selects; ``new_records`` continues after them.

        Call this before ``new_records``. If the sink supports it, reading goes backwards from the log's end,
        only as far as needed and never before ``since``.
        """
        self._newest.clear()
        streams, opened = self._to_read(), set[str]()

        def read(stream: str) -> Iterator[LogRecord]:
            opened.add(stream)
            return self._read_back(stream)

        matching: list[LogRecord] = []
        records = self._merged(streams, read, is_backwards=True)
        for record in records:
            is_recent = since is None or record.time >= since
            if is_recent and len(matching) < count and shown(record):
                matching.append(record)
            if not is_recent or len(matching) >= count:
                break
        records.close()
        self._skip(stream for stream in streams if stream not in opened)
        return matching[::-1]

    def skip_before(self, moment: datetime) -> None:
        """Make ``new_records`` start, in each stream, after the last line from before ``moment``."""
        lives = self._lives()
        for stream in self._to_read():
            _, end = lives.get(stream, (None, None))
            if end is not None and end < moment:
                self._skip([stream])
            else:
                self._skip_stream(stream, moment)

    def _to_read(self) -> list[str]:
        """Return the wanted streams, by launch and rank."""
        streams = sorted(filter(is_node_stream, self._streams()), key=parse_stream)
        return [each for each in streams if self._wanted is None or self._wanted(*parse_stream(each))]

    def _merged(
        self,
        streams: Sequence[str],
        read: Callable[[str], Iterator[LogRecord]],
        *,
        is_backwards: bool = False,
    ) -> Generator[LogRecord]:
        """Yield the records of all streams by time; open each stream when its first record may be due."""
        sign, lives = -1 if is_backwards else 1, self._lives()
        waiting: list[tuple[float, int, LogRecord | None, Iterator[LogRecord]]] = []
        for number, stream in enumerate(streams):
            bound = lives.get(stream, (None, None))[is_backwards]
            due = -math.inf if bound is None else sign * bound.timestamp()
            # If two lines have the same time, the one that is first when reading forwards is last when
            # reading backwards.
            waiting.append((due, sign * number, None, iter(())))
        heapq.heapify(waiting)
        while waiting:
            _, place, record, rest = waiting[0]
            if record is None:
                rest = read(streams[sign * place])
            else:
                yield record
            following = next(rest, None)
            if following is None:
                heapq.heappop(waiting)
            else:
                due = sign * following.time.timestamp()
                heapq.heapreplace(waiting, (due, place, following, rest))

    def _skip(self, streams: Iterable[str]) -> None:
        """Skip the streams of nodes that ended before the period to be read."""
        self._newest.update(dict.fromkeys(streams, sys.maxsize))

    def _skip_stream(self, stream: str, moment: datetime) -> None:
        """Skip the records from before the moment."""
        for record in self._sink.read_back(stream):
            if record.time < moment:
                self._newest[stream] = record.seq
                return

    def _read_on(self, stream: str) -> Iterator[LogRecord]:
        newest = self._newest.get(stream, -1)
        return iter(()) if newest == sys.maxsize else self._sink.read(stream, after=newest)

    def _read_back(self, stream: str) -> Generator[LogRecord]:
        for record in self._sink.read_back(stream):
            self._newest.setdefault(stream, record.seq)
            yield record
