"""A job's metrics by step, from its log; each step counts once, even if it was repeated; pure."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from cloudspot.jobstore.layout.records import Generation, Seat
from cloudspot.jobstore.logs.log_streams import METRICS, parse_stream
from cloudspot.model import LogRecord
from cloudspot.story.progress import first_step


@dataclass(frozen=True)
class Curve:
    """The values of one metric by step, in order. The three sequences have the same length."""

    name: str
    steps: Sequence[int]
    times: Sequence[float]
    """The time at which the trainer logged each value, in seconds since 1970 (UTC) by that machine's clock.
    """
    values: Sequence[float]
    """The values as logged, including NaN and infinities."""

    def __len__(self) -> int:
        return len(self.steps)


class MetricSeries:
    """Accepts log lines as they arrive, and returns the curve of each metric.

    After a resume, steps are repeated. The newer value of a repeated step counts; the values that the older
    generation logged from the restored step on are *lost*, and not on the curve.
    """

    def __init__(self, *, max_points: int | None = None) -> None:
        """Start empty.

        ``max_points`` (at least 2) is the maximum number of points kept of each metric between two resumes.
        When there are more, every second point is dropped, but never the newest. With None, all points are
        kept, at 24 bytes each.
        """
        if max_points is not None and max_points < 2:
            raise ValueError(f"max_points must be >= 2: got {max_points}")
        self._max_points = max_points
        self._generations: tuple[Generation, ...] = ()
        self._with: dict[Seat, list[Generation]] = {}
        """The generations of each node."""
        self._least: list[float] = [math.inf]
        """By n, the least step at which any generation after the first n began."""
        self._runs: list[_Run] = []
        self._current: dict[str, _Run] = {}
        """By stream."""
        self._names: dict[str, None] = {}
        self.num_malformed = 0
        """The number of metrics lines that could not be read and were skipped."""

    def know(self, generations: Sequence[Generation]) -> None:
        """Accept all generations known by now, which show restarts more exactly than the steps do."""
        if len(generations) == len(self._generations):
            return
        self._generations, self._with = tuple(generations), {}
        self._least = [*accumulate((first_step(one) for one in reversed(generations)), min, initial=math.inf)]
        self._least.reverse()
        for one in self._generations:
            for seat in one.seats:
                self._with.setdefault(seat, []).append(one)

    def add(self, record: LogRecord) -> bool:
        """Accept a line, and return whether it holds metrics. The lines of a stream must arrive in order."""
        if record.source != METRICS:
            return False
        parsed = _parse(record.text)
        if parsed is None:
            self.num_malformed += 1
            return True
        step, time, values = parsed
        run = self._current.get(record.stream)
        if run is None or step < run.last_step:
            run = _Run(seat=Seat(*parse_stream(record.stream)), time=time, step=step, last_step=step)
            self._current[record.stream] = run
            self._runs.append(run)
        run.last_step = step
        for name, value in values.items():
            self._names.setdefault(name)
            run.columns.setdefault(name, _Columns()).add(step, time, value, self._max_points)
        return True

    def extend(self, records: Iterable[LogRecord]) -> None:
        """Accept many lines."""
        for record in records:
            self.add(record)

    def names(self) -> tuple[str, ...]:
        """Return the metrics' names in the order in which they first appeared."""
        return tuple(self._names)

    def curve(self, name: str) -> Curve:
        """Return the metric's curve, which is empty if nothing was logged under that name."""
        return _joined(name, [piece for piece, is_lost in self._pieces(name) if not is_lost])

    def lost(self, name: str) -> tuple[Curve, ...]:
        """Return the metric's lost values, with one curve for each stretch."""
        return tuple(_joined(name, [piece]) for piece, is_lost in self._pieces(name) if is_lost)

    def newest(self) -> dict[str, float]:
        """Return the newest value of each metric."""
        curves = {name: self.curve(name) for name in self._names}
        return {name: curve.values[-1] for name, curve in curves.items() if len(curve)}

    def _pieces(self, name: str) -> list[tuple[_Columns, bool]]:
        """Return the metric's stretches in the order of their runs, and whether each is lost."""
        pieces = []
        # The loop runs backwards, because a later run's start ends all earlier runs.
        end: float = math.inf
        for run in sorted(self._runs, key=self._order, reverse=True):
            columns = run.columns.get(name)
            if columns is not None:
                restarts = self._restarts_after(run)
                kept, lost = _Columns(), _Columns()
                for step, time, value in columns.points():
                    is_lost = step >= end or any(step >= first and time < at for at, first in restarts)
                    (lost if is_lost else kept).add(step, time, value, None)
                pieces += [(one, is_lost) for one, is_lost in ((lost, True), (kept, False)) if one.steps]
            end = min(end, run.step)
        return pieces[::-1]

    def _order(self, run: _Run) -> tuple[float, int, float]:
        """Return the sort key of a run: its generation if known, because each machine has its own clock."""
        mine = self._with.get(run.seat, ())
        begun = [one.number for one in mine[1:] if one.at.timestamp() <= run.time]
        number = max([*(one.number for one in mine[:1]), *begun], default=math.inf)
        return number, run.seat.launch, run.time

    def _restarts_after(self, run: _Run) -> list[tuple[float, float]]:
        """Return the start times (seconds since 1970) and first steps of the generations after the run's."""
        mine = self._with.get(run.seat, ())
        # An excluded node may run on for a while, and none of its later lines count. The clocks of the other
        # nodes agree well enough, because a restart takes seconds.
        later = [(math.inf, self._least[mine[-1].number])] if mine else []
        return [*later, *((one.at.timestamp(), first_step(one)) for one in mine)]


class _Columns:
    """Points of one metric in one run, in the order of their steps."""

    __slots__ = ("_newest", "_num_seen", "_stride", "steps", "times", "values")

    def __init__(self) -> None:
        self.steps, self.times, self.values = array("q"), array("d"), array("d")
        self._stride = 1
        """One in this many points is kept."""
        self._num_seen = 0
        self._newest: tuple[int, float, float] | None = None
        """The newest point, if it is not in the columns."""

    def add(self, step: int, time: float, value: float, max_points: int | None) -> None:
        """Append a point, or replace the last point if that has the same step."""
        if self._newest is not None and self._newest[0] == step:
            self._newest = (step, time, value)
            return
        if self._newest is None and self.steps and self.steps[-1] == step:
            self.times[-1], self.values[-1] = time, value
            return
        index = self._num_seen
        self._num_seen += 1
        if index % self._stride:
            self._newest = (step, time, value)
            return
        self._newest = None
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)
        if max_points is not None and len(self.steps) >= max_points:
            if len(self.steps) % 2 == 0:
                self._newest = (step, time, value)
            self.steps, self.times, self.values = self.steps[::2], self.times[::2], self.values[::2]
            self._stride *= 2

    def points(self) -> list[tuple[int, float, float]]:
        """Return all points in order."""
        found = list(zip(self.steps, self.times, self.values, strict=True))
        return found if self._newest is None else [*found, self._newest]


@dataclass
class _Run:
    """The lines of one stream until its steps went back: a generation, or several without a loss."""

    seat: Seat
    time: float
    """The time of the run's first line; ``step`` is from that line, too."""
    step: int
    last_step: int
    columns: dict[str, _Columns] = field(default_factory=dict)


def _joined(name: str, pieces: Sequence[_Columns]) -> Curve:
    steps, times, values = array("q"), array("d"), array("d")
    for piece in pieces:
        for step, time, value in piece.points():
            steps.append(step)
            times.append(time)
            values.append(value)
    return Curve(name, steps, times, values)


def _parse(text: str) -> tuple[int, float, Mapping[str, float]] | None:
    """Return a line's step, time and values; None if it holds no metrics."""
    try:
        line = json.loads(text)
        step, time, values = line["step"], line["time"], line["values"]
        if not isinstance(values, dict) or not _is_number(time) or not 0 <= step < 1 << 63:
            return None
        found = {name: float(value) for name, value in values.items() if _is_number(value)}
        return (step, float(time), found) if type(step) is int else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
