"""Reads the content of a job's page."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from cloudspot.cli.joblog.logtail import Life, LogTail, lives_of
from cloudspot.cli.jobs import Job
from cloudspot.cli.screen.jobsummary import headline_fields, job_json
from cloudspot.cli.screen.printable import in_one_line, printable, printable_value
from cloudspot.jobstore.checkpoints.retention import standing_checkpoints
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.logs.log_streams import FOR_PROGRAMS, parse_stream
from cloudspot.jobstore.logs.stored_artifacts import Artifact, list_artifacts
from cloudspot.model import LogRecord
from cloudspot.story.series import MetricSeries
from cloudspot.story.timeline import Timeline, timeline
from cloudspot_ui.page.machine_series import MachineSeries

MAX_POINTS = 50_000
"""The maximum number of points of a metric that are kept between two resumes; a picture shows fewer."""
LOG_LINES = 200
"""How many lines from the log's end a page shows."""
LINE_CHARACTERS = 2_000
"""The length at which a line is cut; the number of missing characters is then appended."""


@dataclass(frozen=True)
class Line:
    """A line of the log in the form that a page shows."""

    at: datetime
    node: str
    source: str
    text: str
    """The printable text, which is cut if it is very long."""

    @property
    def head(self) -> str:
        """Return the part of the line before the text."""
        return f"{self.at.astimezone(timezone.utc):%H:%M:%S} {self.node} {self.source}"


@dataclass(frozen=True)
class KeptCheckpoint:
    """A checkpoint from which the job can resume."""

    name: str
    step: int
    size: int
    at: datetime


@dataclass(frozen=True)
class JobStory:
    """The content of a job's page. All text in it is printable; the page escapes it."""

    history: History
    report: Mapping[str, Any]
    """The output of ``show --json``."""
    times: Timeline
    series: MetricSeries
    machines: MachineSeries
    lines: Sequence[Line]
    checkpoints: Sequence[KeptCheckpoint]
    artifacts: Sequence[Artifact]
    is_behind: bool
    """Whether the log has not been read to its end yet, so that ``series`` and ``machines`` lack the latest
    lines.
    """
    next_step: str
    """The command that users most often need at this point."""
    at: datetime
    """When the job was read."""


@dataclass
class JobReading:
    """Reads a job repeatedly, but only the new lines of its log.

    The reader may be used by one thread at a time.
    """

    job: Job
    _history: History | None = None
    _tail: LogTail | None = None
    _records: Iterator[LogRecord] | None = None
    """The lines that the last look at the log left unread."""
    _series: MetricSeries = field(default_factory=lambda: MetricSeries(max_points=MAX_POINTS))
    _machines: MachineSeries = field(default_factory=MachineSeries)
    _lines: deque[LogRecord] = field(default_factory=lambda: deque(maxlen=LOG_LINES))

    def read(self, now: datetime, *, log_seconds: float = math.inf) -> JobStory:
        """Return the job's story at ``now``.

        The call reads the log for at most ``log_seconds``; the next call continues from there.

        Raises:
            CorruptData: a record is malformed.
            TransientError: the store or the log's service does not answer.
        """
        job, history = self.job, self.job.history()
        report: dict[str, Any] = printable_value(_plain(job_json(job, history)))
        self._series.know(history.generations)
        self._history = history
        is_whole = self._read_log(time.monotonic() + log_seconds)
        next_step = dict(headline_fields(job, report)).get("next", "")
        return JobStory(
            history=history,
            report=report,
            times=timeline(history, now),
            series=self._series,
            machines=self._machines,
            lines=[as_line(record) for record in (self._lines if is_whole else self._last_lines())],
            checkpoints=_checkpoints(job, history),
            artifacts=list_artifacts(job.store, job.id),
            is_behind=not is_whole,
            next_step=in_one_line(next_step),
            at=now,
        )

    def _lives(self) -> Mapping[str, Life]:
        return {} if self._history is None else lives_of(self._history)

    def _read_log(self, until: float) -> bool:
        """Read the log until a monotonic moment; return whether its end was reached."""
        if self._tail is None:
            self._tail = LogTail(self.job.log_sink, lives=self._lives)
        if self._records is None:
            self._records = self._tail.new_records()
        records, self._records = self._records, None  # after an error, continue after the last line
        for number, record in enumerate(records):
            if not (self._series.add(record) or self._machines.add(record)):
                self._lines.append(record)
            if number % 100 == 99 and time.monotonic() >= until:
                self._records = records
                return False
        return True

    def _last_lines(self) -> Sequence[LogRecord]:
        end = LogTail(self.job.log_sink, lives=self._lives)
        return end.last_records(LOG_LINES, shown=lambda record: record.source not in FOR_PROGRAMS)


def as_line(record: LogRecord) -> Line:
    """Return a line of the log in the form that a page shows."""
    text = printable(record.text[: 4 * LINE_CHARACTERS])
    left = len(record.text) - LINE_CHARACTERS
    if left > 0 and len(text) > LINE_CHARACTERS:
        text = f"{text[:LINE_CHARACTERS]} ... {left} more characters"
    return Line(record.time, str(Seat(*parse_stream(record.stream))), record.source, text)


def _plain(value: Any) -> Any:
    """Return the value with lists as tuples, because ``printable_value`` looks only into these."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def _checkpoints(job: Job, history: History) -> list[KeptCheckpoint]:
    """Return the kept checkpoints, beginning with the best one to resume from."""
    commits = {commit.id: commit for commit in history.commits}
    standing = standing_checkpoints(job.store, job.id, job.reader.journal.read())
    return [
        KeptCheckpoint(str(one), one.step, commits[one].size, commits[one].at)
        for one in standing
        if one in commits
    ]
