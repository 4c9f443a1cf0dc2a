"""The timeline of a job: a lane of events for the job, and one for each node; does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from cloudspot.cli.screen.output import duration_text
from cloudspot.cli.screen.printable import in_one_line
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Seat
from cloudspot.story.spans import Span
from cloudspot.story.timeline import Timeline

MAX_NODES = 48
"""The maximum number of nodes with a lane; if a page omits the oldest nodes, it says so."""
LEAST_WIDTH = 0.15
"""The minimum width in percent at which a bar is visible."""


@dataclass(frozen=True)
class Bar:
    """A period in one state; positions are in percent of the job's time."""

    left: float
    width: float
    state: str
    title: str


@dataclass(frozen=True)
class Mark:
    """A moment: a generation, a notice or a save."""

    left: float
    kind: str
    title: str


@dataclass(frozen=True)
class Lane:
    """The history of the job or of a node."""

    name: str
    bars: Sequence[Bar]
    marks: Sequence[Mark]


@dataclass(frozen=True)
class Lanes:
    """A job's timeline as a picture."""

    lanes: Sequence[Lane]
    states: Sequence[str]
    """The states in the picture, in the order of their first bars."""
    num_older: int
    """The number of nodes without a lane."""
    ticks: Sequence[str]
    """The times since the submission at five evenly spaced positions."""


def lanes(history: History, times: Timeline) -> Lanes:
    """Return the picture of the job's timeline."""
    place = _Place(times)
    shown = times.nodes[max(0, len(times.nodes) - MAX_NODES) :]
    rows = [Lane("job", place.bars(times.spans), list(_job_marks(history, place)))]
    notices = {Seat(one.notice.launch, one.rank): one for one in times.answers}
    for line in shown:
        marks = []
        if line.seat in notices:
            one = notices[line.seat].notice
            left = (one.deadline - one.at).total_seconds()
            text = f"notice from {one.source}: {duration_text(max(0.0, left))} to the end of the machine"
            marks.append(Mark(place.of(one.at), "notice", in_one_line(text)))
        rows.append(Lane(str(line.seat), place.bars(line.spans), marks))
    states = dict.fromkeys(bar.state for row in rows for bar in row.bars)
    ticks = ["0", *(duration_text(times.total_seconds * number / 4) for number in range(1, 5))]
    return Lanes(rows, list(states), len(times.nodes) - len(shown), ticks)


def _job_marks(history: History, place: _Place) -> Iterator[Mark]:
    for generation in history.generations:
        text = f"generation {generation.number} ({generation.why}), {len(generation.seats)} nodes"
        yield Mark(place.of(generation.at), "generation", in_one_line(text))
    for commit in history.commits:
        yield Mark(place.of(commit.at), "save", f"checkpoint at step {commit.step}")


class _Place:
    """Converts moments to positions in the picture."""

    def __init__(self, times: Timeline) -> None:
        self._start = times.start
        self._seconds = max(times.total_seconds, 1e-3)

    def of(self, moment: datetime) -> float:
        """Return the position of a moment in percent, within the picture."""
        return round(min(100.0, max(0.0, 100 * (moment - self._start).total_seconds() / self._seconds)), 2)

    def bars(self, spans: Sequence[Span]) -> list[Bar]:
        """Return the bars of spans; adjacent spans in the same state become one bar."""
        merged: list[Span] = []
        for span in spans:
            last = merged[-1] if merged else None
            if last is not None and (last.state, last.generation, last.end) == (
                span.state,
                span.generation,
                span.start,
            ):
                merged[-1] = Span(span.state, last.start, span.end, span.generation)
            else:
                merged.append(span)
        return [self._bar(span) for span in merged]

    def _bar(self, span: Span) -> Bar:
        left = self.of(span.start)
        of = "" if span.generation is None else f", generation {span.generation}"
        return Bar(
            left,
            max(LEAST_WIDTH, round(self.of(span.end) - left, 2)),
            span.state,
            f"{span.state} for {duration_text(span.seconds)}{of}",
        )
