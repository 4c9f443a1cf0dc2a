"""The lines that tell of a job as it goes: when, who speaks, and what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from cloudspot.cli.screen import output
from cloudspot.cli.screen.printable import printable
from cloudspot.jobstore.history import History
from cloudspot.jobstore.streams import parse_stream
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
"""Of the column that says who speaks: ``train``, ``setup``, ``agent``, ``cloudspot``."""


@dataclass(frozen=True)
class Line:
    """One line."""

    at: datetime
    who: str
    text: str
    """Without control characters."""
    style: str | None = None

    @property
    def head(self) -> str:
        """Return its start: the time, and who speaks."""
        return f"{output.clock_text(self.at)} {self.who.ljust(LABEL_WIDTH)}"


def echo_line(line: Line) -> None:
    """Print a line."""
    output.echo(f"{output.styled(line.head, 'dim')} {output.styled(line.text, line.style)}")


def record_line(record: LogRecord, *, name_nodes: bool) -> Line:
    """Return a line of the log as it is shown; ``name_nodes``: with the rank of its node."""
    rank = parse_stream(record.stream)[1]
    who = f"{record.source}[{rank}]" if name_nodes else record.source
    return Line(record.time, who, printable(record.text))


def event_line(event: Event, history: History | None, *, who: str = WHO) -> Line:
    """Return an event as a line; one without a time of its own has the present one."""
    moment = event_time(event, history) or datetime.now(timezone.utc)
    return Line(moment, who, printable(event.text), _style(event))


def in_order_of_time(events: Sequence[Event], history: History | None) -> list[Event]:
    """Return the events by their own times; one without a time stays behind the one before it."""
    latest = datetime.min.replace(tzinfo=timezone.utc)
    timed = []
    for event in events:
        moment = event_time(event, history)
        latest = latest if moment is None else moment
        timed.append((latest, event))
    return [event for _, event in sorted(timed, key=lambda pair: pair[0])]


def event_time(event: Event, history: History | None) -> datetime | None:
    """Return when the event happened by its own record; None where it has none."""
    if isinstance(event, Launched):
        return event.intent.at
    if isinstance(event, Claimed):
        return event.slot.at
    if isinstance(event, Started):
        return event.generation.at
    if isinstance(event, Noticed):
        return event.notice.at
    if isinstance(event, NodeEnded):
        return event.exit.at
    if isinstance(event, LaunchClosed):
        return event.closed.at
    if isinstance(event, JobFinished):
        return event.finished.at
    if isinstance(event, Warned):
        return event.at
    if isinstance(event, NodeState) and history is not None:
        return history.launches[event.launch - 1].heartbeats[event.rank].at
    if isinstance(event, StopRequested) and history is not None and history.stop is not None:
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
