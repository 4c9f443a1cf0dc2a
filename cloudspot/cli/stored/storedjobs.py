"""Look at many jobs of a store, by their summaries or, if these do not suffice, by their records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import TypeVar

import click
import msgspec

from cloudspot.cli.screen import output
from cloudspot.errors import (
    AuthError,
    CloudspotError,
    CorruptData,
    JobNotFound,
    TransientError,
    as_cloudspot_error,
)
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.jobs.job_lists import list_jobs
from cloudspot.jobstore.jobs.reader import HistoryReader, read_summary
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Summary
from cloudspot.story.report import summarise
from cloudspot.story.states import TERMINAL_STATES

NUM_THREADS = 32
"""The number of parallel requests. Each request fetches one small object, so the store's latency dominates.
"""

_Found = TypeVar("_Found")


def driven_json(job: Summary) -> dict[str, str] | None:
    """Return the last driver of the job and its time for ``ps`` and ``show``, or None if unknown."""
    if job.driven_at is None:
        return None
    return {"by": job.driven_by, "at": job.driven_at.isoformat(), "undone": job.undone}


class StoredJobs:
    """The jobs of a store, and the errors of those whose records cannot be read."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._faults: dict[str, CloudspotError] = {}

    def each(self, look: Callable[[str], _Found | None], job_ids: Sequence[str]) -> list[_Found]:
        """Return the results of ``look`` for the jobs, in order, without results that are None."""
        found = map_parallel(look, job_ids, num_threads=NUM_THREADS)
        return [one for one in found if one is not None]

    def find_summary(self, job_id: str) -> Summary | None:
        """Return the job's summary, which may be outdated, or None if it has no readable summary."""
        try:
            return read_summary(self._store, job_id)
        except CorruptData:
            return None  # The records contain the same facts.

    def work_out(
        self, job_id: str, fold: Callable[[History], _Found], *, otherwise: _Found | None = None
    ) -> _Found | None:
        """Return the result of ``fold`` on the job's records, or None if its submission was never completed.

        If the records cannot be read, keep the error for ``report_faults`` and return ``otherwise``.
        """
        try:
            return fold(HistoryReader(self._store, job_id).read())
        except JobNotFound:
            return None
        except (AuthError, TransientError):
            raise
        except Exception as error:  # noqa: BLE001 - one job's fault must not hide the others
            self._faults[job_id] = as_cloudspot_error(error)
            return otherwise

    def summaries(self) -> list[Summary]:
        """Return the summaries of all jobs: final summaries as stored, others computed from the records."""

        def look(job_id: str) -> Summary | None:
            summary = self.find_summary(job_id)
            # Any other summary may be outdated, because its driver may have died.
            if summary is not None and summary.state in TERMINAL_STATES:
                return summary
            return self.work_out(job_id, partial(summarised, before=summary), otherwise=summary)

        return self.each(look, list_jobs(self._store))

    def report_faults(self, ctx: click.Context) -> None:
        """Warn about the jobs whose records cannot be read, and end the command if there are any."""
        for job_id, fault in sorted(self._faults.items()):
            output.warn(f"job {job_id}: {fault}")
        if self._faults:
            ctx.exit(CorruptData.exit_code)


def summarised(history: History, before: Summary | None = None) -> Summary:
    """Return the current summary; ``before`` is the summary that a driver has written."""
    summary = summarise(history, datetime.now(timezone.utc))
    if before is None:
        return summary
    return msgspec.structs.replace(summary, driven_by=before.driven_by, driven_at=before.driven_at)
