"""Reads the jobs of a store for its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from cloudspot.cli.screen.jobfields import duration
from cloudspot.cli.screen.printable import printable_value
from cloudspot.cli.stored.storedjobs import StoredJobs
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.layout.records import Summary
from cloudspot.story.states import TERMINAL_STATES


@dataclass(frozen=True)
class JobRow:
    """A job in the list of a store's jobs."""

    job: Summary
    """The job's summary, whose texts are printable."""
    seconds: float | None
    """How long the job has taken, or None if its summary is too old to contain this."""


@dataclass(frozen=True)
class StoreStory:
    """The content of a store's page."""

    url: str
    rows: Sequence[JobRow]
    """The unfinished jobs and then the others, each with the latest first."""
    stored: StoredJobs
    """The store's reader, which knows which jobs cannot be read."""
    at: datetime

    @classmethod
    def read(cls, store: ObjectStore, now: datetime) -> StoreStory:
        """Read every job of the store, with one request for an ended job and about ten for any other."""
        stored = StoredJobs(store)
        return cls(store.url, as_rows(stored.summaries()), stored, now)

    @property
    def spent(self) -> Mapping[str, float]:
        """Return the cost of all jobs, by currency."""
        found: dict[str, float] = {}
        for row in self.rows:
            for currency, amount in ((row.job.currency, row.job.spent), *row.job.others.items()):
                found[currency] = found.get(currency, 0.0) + amount
        return found


def as_rows(jobs: Sequence[Summary]) -> list[JobRow]:
    """Return the rows of the list."""
    newest_first = sorted(jobs, key=lambda job: job.submitted_at, reverse=True)
    newest_first.sort(key=lambda job: job.state in TERMINAL_STATES)
    return [JobRow(_shown(job), duration(job)) for job in newest_first]


def _shown(job: Summary) -> Summary:
    # A list does not show the outlays, which may be large.
    return printable_value(msgspec.structs.replace(job, outlays=None))  # type: ignore[no-any-return]
