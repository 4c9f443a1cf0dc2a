"""The local site's cache of the store, which is read when a page needs it, but only every few seconds."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial

from markupsafe import Markup

from cloudspot.cli.jobs import Job, find_job
from cloudspot.cli.stored.storedjobs import StoredJobs, summarised
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.jobs.job_lists import list_jobs, list_live
from cloudspot.jobstore.layout.records import Summary
from cloudspot.story.states import TERMINAL_STATES
from cloudspot_ui.page.rendering import job_sections
from cloudspot_ui.page.store_story import StoreStory, as_rows
from cloudspot_ui.page.story import JobReading, JobStory

FRESH_SECONDS = 2.0
"""How long a job that was read is shown before it is read again."""
FIRST_LOG_SECONDS, LOG_SECONDS = 0.3, 1.5
"""How long the first look and later looks may read a log: the first page appears soon, and a long log is read
in several looks."""
LIST_SECONDS = 5.0
"""How long a list of jobs is shown before it is read again; each job needs one or more requests."""
SUMMARY_SECONDS = 30.0
"""The age at which a live job's summary is replaced by one computed from its records, because its driver may
have died.
"""
MAX_JOBS = 12
"""The number of jobs that are kept in memory, which are the most recently viewed ones."""


class JobWatch:
    """A job as its pages show it. Any thread may use it; only one thread at a time reads the store."""

    def __init__(self, job: Job, links: Callable[[str], Mapping[str, object]]) -> None:
        """Watch a job; ``links`` returns the values that the site adds to a job's page, by the job's id."""
        self.job = job
        self._reading = JobReading(job)
        self._links = links
        self._lock = threading.Lock()
        self._read_at = -FRESH_SECONDS
        self._seen: tuple[JobStory, Mapping[str, Markup]] | None = None

    def look(self) -> tuple[JobStory, Mapping[str, Markup]]:
        """Return the job's story and the sections of its page by name, at most ``FRESH_SECONDS`` old."""
        with self._lock:
            if self._seen is None or time.monotonic() - self._read_at >= FRESH_SECONDS:
                seconds = FIRST_LOG_SECONDS if self._seen is None else LOG_SECONDS
                story = self._reading.read(datetime.now(timezone.utc), log_seconds=seconds)
                self._seen = story, job_sections(story, **self._links(self.job.id))
                self._read_at = time.monotonic()
            return self._seen


class StoreWatch:
    """A store's jobs as pages show them. Any thread may use it; only one thread at a time reads the store."""

    def __init__(self, store: ObjectStore, links: Callable[[str], Mapping[str, object]]) -> None:
        self.store = store
        self._links = links
        self._lock = threading.Lock()
        self._read_at = -LIST_SECONDS
        self._summaries: dict[str, Summary] = {}
        self._jobs: OrderedDict[str, JobWatch] = OrderedDict()

    def story(self, passes: Callable[[Summary], bool] = lambda _job: True) -> StoreStory:
        """Return the store's jobs that pass the test, as they were at most ``LIST_SECONDS`` ago."""
        with self._lock:
            if time.monotonic() - self._read_at >= LIST_SECONDS:
                self._read()
                self._read_at = time.monotonic()
            found = [job for job in self._summaries.values() if passes(job)]
        return StoreStory(self.store.url, as_rows(found), StoredJobs(self.store), datetime.now(timezone.utc))

    def job(self, job_id: str) -> JobWatch:
        """Return the job's watch.

        Raises:
            JobNotFound: the job does not exist.
        """
        found = find_job(self.store, job_id)
        with self._lock:
            if found not in self._jobs:
                self._jobs[found] = JobWatch(Job(self.store, found), self._links)
            self._jobs.move_to_end(found)
            while len(self._jobs) > MAX_JOBS:
                self._jobs.popitem(last=False)
            return self._jobs[found]

    def _read(self) -> None:
        """Read the jobs that may have changed: those that are marked live or were never read to their end."""
        live, stored = list_live(self.store), StoredJobs(self.store)
        listed = list_jobs(self.store)
        wanted = [one for one in listed if one in live or self._is_open(one)]
        found = stored.each(partial(_look, stored), wanted)
        known = {**self._summaries, **{one.job_id: one for one in found}}
        self._summaries = {one: known[one] for one in listed if one in known}

    def _is_open(self, job_id: str) -> bool:
        known = self._summaries.get(job_id)
        return known is None or known.state not in TERMINAL_STATES


def _look(stored: StoredJobs, job_id: str) -> Summary | None:
    summary = stored.find_summary(job_id)
    if summary is not None:
        age = (datetime.now(timezone.utc) - summary.at).total_seconds()
        if summary.state in TERMINAL_STATES or abs(age) <= SUMMARY_SECONDS:
            return summary
    return stored.work_out(job_id, partial(summarised, before=summary), otherwise=summary)
