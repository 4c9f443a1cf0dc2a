"""The lines of a job's log: merged over its nodes, read on from where one stopped, and printed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from cloudspot.cli import output
from cloudspot.interfaces import LogSink
from cloudspot.jobstore.streams import METRICS, parse_stream
from cloudspot.model import LogRecord

LABEL_WIDTH = 9
"""Of the column that says who speaks: ``train``, ``setup``, ``agent``, ``cloudspot``."""


class LogTail:
    """Reads a job's log on from where it last stopped; every line once."""

    def __init__(self, sink: LogSink, *, wanted: Callable[[int, int], bool] | None = None) -> None:
        """Read the streams whose launch and rank are ``wanted``; all by default."""
        self._sink = sink
        self._wanted = wanted
        self._newest: dict[str, int] = {}

    def new_records(self) -> Iterator[LogRecord]:
        """Yield what has come since the last call, merged by time; a stream keeps its own order.

        Raises:
            TransientError: the sink did not answer; the next call goes on from the last line.
        """
        streams = [
            stream
            for stream in self._sink.streams()
            if self._wanted is None or self._wanted(*parse_stream(stream))
        ]
        streams.sort(key=parse_stream)
        for record in heapq.merge(*map(self._read_on, streams), key=lambda record: record.time):
            # Counted here and not where it is read: merge reads one line of each stream ahead.
            self._newest[record.stream] = record.seq
            yield record

    def _read_on(self, stream: str) -> Iterator[LogRecord]:
        return self._sink.read(stream, after=self._newest.get(stream, -1))


def print_records(records: Iterable[LogRecord], *, name_nodes: bool) -> None:
    """Print log lines with their time and who speaks.

    The metrics' own lines are for programs and are left out.
    """
    for record in records:
        if record.source == METRICS:
            continue
        rank = parse_stream(record.stream)[1]
        label = f"{record.source}[{rank}]" if name_nodes else record.source
        output.echo(f"{line_head(record.time, label)} {record.text}")


def line_head(moment: datetime, label: str) -> str:
    """Return the start of a line: its time, and who speaks."""
    return output.styled(f"{output.clock_text(moment)} {label.ljust(LABEL_WIDTH)}", "dim")


def record_json(record: LogRecord) -> dict[str, Any]:
    """Return a log line as ``logs --json`` prints it."""
    launch, rank = parse_stream(record.stream)
    return {
        "launch": launch,
        "rank": rank,
        "seq": record.seq,
        "time": record.time.isoformat(),
        "source": record.source,
        "text": record.text,
    }
