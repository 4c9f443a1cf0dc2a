"""The lines printed while a job runs: when, from whom, and what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from cloudspot.cli.screen import output
from cloudspot.cli.screen.printable import printable
from cloudspot.jobstore.history import History
from cloudspot.jobstore.log_streams import parse_stream
from cloudspot.model import LogRecord
from cloudspot.story.events import (
    Claimed,
    Event,
    JobFinished,
    LaunchClosed,
    Launched,
    NodeEnded,
    NodeState,
    Noticed,
    Started,
    StopRequested,
    Warned,
)

WHO = "cloudspot"
LABEL_WIDTH = 9
"""The width of the column that names the source: ``train``, ``setup``, ``agent``, ``cloudspot``."""


@dataclass(frozen=True)
class Line:
    """One line."""

    at: datetime
    who: str
    text: str
    """Has no control characters."""
    style: str | None = None

    @property
    def head(self) -> str:
        """Return the start of the line: the time and the source."""
        return f"{output.clock_text(self.at)} {self.who.ljust(LABEL_WIDTH)}"


def echo_line(line: Line) -> None:
    """Print a line."""
    output.echo(f"{output.styled(line.head, 'dim')} {output.styled(line.text, line.style)}")


def record_line(record: LogRecord, *, name_nodes: bool) -> Line:
    """Return a line of the log as it is shown; with ``name_nodes``, with its node's rank."""
    rank = parse_stream(record.stream)[1]
    who = f"{record.source}[{rank}]" if name_nodes else record.source
    return Line(record.time, who, printable(record.text))


def event_line(event: Event, history: History | None, *, who: str = WHO) -> Line:
    """Return an event as a line; an event without a time gets the present one."""
    moment = event_time(event, history) or datetime.now(timezone.utc)
    return Line(moment, who, printable(event.text), _style(event))


def in_order_of_time(events: Sequence[Event], history: History | None) -> list[Event]:
    """Return the events ordered by time; one without a time stays after the one before it."""
    latest = datetime.min.replace(tzinfo=timezone.utc)
    timed = []
    for event in events:
        moment = event_time(event, history)
        latest = latest if moment is None else moment
        timed.append((latest, event))
    return [event for _, event in sorted(timed, key=lambda pair: pair[0])]


def event_time(event: Event, history: History | None) -> datetime | None:
    """Return when the event happened, from its own record; None if it has none."""
    match event:
        case (
            Launched(intent=record)
            | Claimed(slot=record)
            | Started(generation=record)
            | Noticed(notice=record)
            | NodeEnded(exit=record)
            | LaunchClosed(closed=record)
            | JobFinished(finished=record)
        ):
            return record.at
        case Warned():
            return event.at
        case NodeState() if history is not None:
            return history.launches[event.launch - 1].heartbeats[event.rank].at
        case StopRequested() if history is not None and history.stop is not None:
            return history.stop.at
    return None


def _style(event: Event) -> str | None:
    if isinstance(event, Noticed | Warned | StopRequested):
        return output.WARNING_STYLE
    if isinstance(event, NodeEnded):
        return "red" if event.exit.outcome == "failed" else None
    if isinstance(event, JobFinished):
        return output.STATE_STYLES.get(event.finished.outcome)
    return "cyan" if isinstance(event, Launched | Started) else None
