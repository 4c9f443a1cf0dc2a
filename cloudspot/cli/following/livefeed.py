"""Collect the observations of a job so far, and create the live view from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from cloudspot.cli.following import pace
from cloudspot.cli.following.liveview import Sights, View, look, newest_heartbeats
from cloudspot.controller.loop import Tick
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.logs.log_streams import stream_name
from cloudspot.model import Instance, LogRecord
from cloudspot.story.series import Curve, MetricSeries

LATE_SECONDS = 60.0
"""How long a node may still deliver log lines after it was first seen to have ended."""
LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)
MAX_POINTS = 500
"""The maximum number of points of a metric that are kept between two resumes: more than a terminal has
columns of dots."""


@dataclass(frozen=True)
class _Seen:
    """The data for a view; it is replaced as a whole, so that another thread can read it at any time."""

    history: History
    instances: tuple[Instance, ...] | None
    sights: Sights


class LiveFeed:
    """Takes in ticks and log lines in one thread, and creates views in any thread."""

    def __init__(self) -> None:
        self._seen: _Seen | None = None
        self._over: dict[Seat, datetime] = {}
        """The time when each node was first seen to be over."""
        self._quiet: set[Seat] = set()
        """The nodes that will log nothing more."""
        self._series = MetricSeries(max_points=MAX_POINTS)
        self._logged: tuple[Mapping[str, float], Curve | None] = ({}, None)
        """The newest metrics and the curve to draw; they are replaced as a whole, like ``_seen``."""

    def take(self, tick: Tick, now: datetime) -> None:
        """Take in a controller's observations at ``now``."""
        history = tick.history
        if history is None:
            return
        before = self._seen
        old = Sights() if before is None else before.sights
        point = pace.sight(history)
        origin = pace.origin(history) if point is not None and not old.points else None
        points = old.points if origin is None else (origin,)
        sights = Sights(
            points=pace.with_point(points, point), heard=newest_heartbeats(old.heard, history, now)
        )
        instances = tick.instances
        if instances is None:
            instances = None if before is None else before.instances
        self._series.know(history.generations)
        for launch in history.launches:
            for rank in launch.claimed:
                seat = Seat(launch.number, rank)
                if seat not in self._quiet and launch.is_over(rank):
                    over = self._over.setdefault(seat, now if before is not None else LONG_AGO)
                    if (now - over).total_seconds() > LATE_SECONDS:
                        self._quiet.add(seat)
        self._seen = _Seen(history, instances, sights)

    def add(self, records: Sequence[LogRecord]) -> None:
        """Take in log lines, which are in order within each stream, and keep their metrics."""
        if not sum(self._series.add(record) for record in records):
            return
        names = self._series.names()
        name = next((name for name in names if "loss" in name.lower()), names[0] if names else None)
        curve = None if name is None else self._series.curve(name)
        self._logged = (self._series.newest(), curve)

    @property
    def history(self) -> History | None:
        """The records at the newest tick."""
        return None if self._seen is None else self._seen.history

    def streams(self, *, live: bool) -> tuple[str, ...]:
        """Return the log's streams, one per node; if ``live``, only those that may still receive lines.

        The streams of training nodes come first, in rank order.
        """
        if self._seen is None:
            return ()
        history = self._seen.history
        members = history.generations[-1].seats if history.generations else ()
        claimed = [Seat(launch.number, rank) for launch in history.launches for rank in launch.claimed]
        shown = [seat for seat in dict.fromkeys([*members, *claimed]) if not live or seat not in self._quiet]
        return tuple(stream_name(*seat) for seat in shown)

    def view(self, now: datetime) -> View | None:
        """Return the view at ``now``, or None before the first tick."""
        seen, (newest, curve) = self._seen, self._logged
        if seen is None:
            return None
        return look(
            seen.history, now, sights=seen.sights, logged=newest, curve=curve, instances=seen.instances
        )
