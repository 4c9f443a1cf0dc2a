"""The lines printed while a job runs: time, source and text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from cloudspot.cli.screen import output
from cloudspot.cli.screen.printable import printable
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.logs.log_streams import parse_stream
from cloudspot.model import LogRecord
from cloudspot.story.events import Event, EventKind

CLOUDSPOT = "cloudspot"
LABEL_WIDTH = 9
"""The width of the column for the source: ``train``, ``setup``, ``agent``, ``cloudspot``."""


@dataclass(frozen=True)
class Line:
    """One line of output."""

    at: datetime
    source: str
    text: str
    style: str | None = None

    @property
    def head(self) -> str:
        """The start of the line: the time and the source."""
        return f"{output.clock_text(self.at)} {self.source.ljust(LABEL_WIDTH)}"


def echo_line(line: Line) -> None:
    """Print a line."""
    output.echo(output.Styled(line.head, "dim"), " ", output.Styled(line.text, line.style))


def are_nodes_named(max_nodes: int, history: History | None) -> bool:
    """Return whether the lines of a job's log name their nodes, because it has or may have several nodes."""
    if max_nodes > 1 or history is None:
        return max_nodes > 1
    return sum(len(launch.claimed) for launch in history.launches) > 1


def record_line(record: LogRecord, *, name_nodes: bool) -> Line:
    """Return a log line for display, without its colours; if ``name_nodes``, add the name of its node."""
    source = f"{record.source}[{Seat(*parse_stream(record.stream))}]" if name_nodes else record.source
    return Line(record.time, source, printable(record.text))


def event_line(event: Event, now: datetime, *, source: str = CLOUDSPOT) -> Line:
    """Return an event as a line; if the event has no time, use ``now``, which is by the store's clock."""
    return Line(event.at or now, source, event.text, _style(event))


def in_order_of_time(events: Sequence[Event]) -> list[Event]:
    """Return the events ordered by time; an event without a time stays after the event before it."""
    latest = datetime.min.replace(tzinfo=timezone.utc)
    timed = []
    for event in events:
        latest = event.at or latest
        timed.append((latest, event))
    return [event for _, event in sorted(timed, key=lambda pair: pair[0])]


def _style(event: Event) -> str | None:
    if event.kind is EventKind.NODE_ENDED:
        return "red" if event.outcome == "failed" else None
    if event.kind is EventKind.JOB_FINISHED:
        return output.STATE_STYLES.get(event.outcome or "")
    return _EVENT_STYLES.get(event.kind)


_EVENT_STYLES = {
    EventKind.NOTICED: output.WARNING_STYLE,
    EventKind.WARNED: output.WARNING_STYLE,
    EventKind.HOLDING: output.WARNING_STYLE,
    EventKind.KEPT: output.WARNING_STYLE,
    EventKind.STOP_REQUESTED: output.WARNING_STYLE,
    EventKind.LAUNCHED: "cyan",
    EventKind.STARTED: "cyan",
}
