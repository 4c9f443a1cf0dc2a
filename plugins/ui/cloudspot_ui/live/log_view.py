"""A job's log on the local site: its last lines that match a search, and new ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cloudspot.cli.joblog.logtail import LogTail, lives_of
from cloudspot.cli.jobs import Job
from cloudspot.cli.screen.printable import printable
from cloudspot.jobstore.logs.log_streams import FOR_PROGRAMS
from cloudspot.model import LogRecord
from cloudspot.story.node_names import parse_seat
from cloudspot_ui.page.story import Line, as_line

SHOWN_LINES = 500
SEARCHED_CHARACTERS = 20_000
"""The number of characters of each line that are searched."""


@dataclass
class LogView:
    """The last lines of a job's log that match a search, and new ones.

    The view may be used by one thread at a time.
    """

    job: Job
    search: str = ""
    """The text to look for, ignoring case."""
    node: str = ""
    """The node whose lines are shown, or empty for all nodes. ``first`` raises ValueError for an invalid
    name.
    """
    _tail: LogTail | None = field(default=None)

    def first(self) -> Sequence[Line]:
        """Return the last lines that match, reading no further back than necessary."""
        wanted: Callable[[int, int], bool] | None = None
        if self.node:
            seat = parse_seat(self.node)
            wanted = lambda launch, rank: (launch, rank) == tuple(seat)  # noqa: E731
        lives = lives_of(self.job.history())
        self._tail = LogTail(self.job.log_sink, wanted=wanted, lives=lambda: lives)
        found = self._tail.last_records(SHOWN_LINES, shown=self._matcher())
        return [as_line(record) for record in found]

    def new(self) -> Sequence[Line]:
        """Return the matching lines that have arrived since the last call."""
        assert self._tail is not None
        matches = self._matcher()
        found = [record for record in self._tail.new_records() if matches(record)]
        return [as_line(record) for record in found[-SHOWN_LINES:]]

    def _matcher(self) -> Callable[[LogRecord], bool]:
        if not self.search:
            return lambda record: record.source not in FOR_PROGRAMS
        find = re.compile(re.escape(self.search), re.IGNORECASE).search

        def matches(record: LogRecord) -> bool:
            if record.source in FOR_PROGRAMS:
                return False
            text = record.text[:SEARCHED_CHARACTERS]
            return find(text) is not None and find(printable(text)) is not None

        return matches
