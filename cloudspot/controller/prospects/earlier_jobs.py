"""Estimate a new job's training time and its machines' start time from an earlier job of the same name."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from cloudspot.controller.assess.measured import start_seconds
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.jobs.job_lists import list_recent
from cloudspot.jobstore.jobs.reader import HistoryReader, read_summary
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Summary
from cloudspot.story.progress import first_step, steps_total
from cloudspot.story.stretches import stretches
from cloudspot.story.timeline import timeline

MAX_SUMMARIES = 12
"""Summaries are read of this many newest jobs whose ids begin with the name."""
MAX_HISTORIES = 2
"""At most this many of these jobs are read completely, until one gives a training time."""
MAX_UNKNOWN_SHARE = 0.1
"""A job with more unaccounted time than this share of its training time gives no training time."""


@dataclass(frozen=True, kw_only=True)
class EarlierJob:
    """A job of the same name, on machines of the same kind and number."""

    job_id: str
    length_seconds: float
    """The training time, actual or projected, on machines that are never reclaimed."""
    start_seconds: float
    commit_seconds: float | None
    """The median time between consecutive checkpoints; None if no generation has two."""
    is_same_run: bool
    """Whether the job ran the same command with the same arguments."""


def find_earlier(store: ObjectStore, spec: JobSpec, provider: str, now: datetime) -> EarlierJob | None:
    """Return the newest job of that name that gives a training time, preferring jobs that have succeeded.

    The id of that job begins with the name, and it ran on the same provider, with the same resources, nodes
    and processes. The result is None if no such job exists or the store does not answer.
    """
    try:
        for job_id in jobs_of_name(store, spec.name):
            found = _read_job(store, job_id, spec, provider, now)
            if found is not None:
                return found
    except CloudspotError:
        return None
    return None


def jobs_of_name(store: ObjectStore, name: str) -> Iterator[str]:
    """Yield the ids of the newest jobs of a name that may give a training time, succeeded jobs first."""
    ids = [one for one in list_recent(store)[0] if f"{one}-".startswith(f"{name}-")][:MAX_SUMMARIES]

    def read(job_id: str) -> Summary | None:
        try:
            return read_summary(store, job_id)
        except CloudspotError:
            return None

    summaries = [one for one in map_parallel(read, ids) if one is not None and one.name == name]
    informative = [one for one in summaries if one.state == "succeeded" or one.steps_total is not None]
    informative.sort(key=lambda one: one.state != "succeeded")
    yield from (one.job_id for one in informative[:MAX_HISTORIES])


def _read_job(
    store: ObjectStore, job_id: str, spec: JobSpec, provider: str, now: datetime
) -> EarlierJob | None:
    history = HistoryReader(store, job_id).read()
    before = history.job_file
    if history.submission.provider != provider or _machines(before) != _machines(spec):
        return None
    length = length_seconds(history, now)
    if length is None:
        return None
    return EarlierJob(
        job_id=job_id,
        length_seconds=length,
        start_seconds=start_seconds(history),
        commit_seconds=commit_seconds(history),
        is_same_run=before.run == spec.run,
    )


def _machines(spec: JobSpec) -> tuple[object, ...]:
    return spec.resources, spec.nodes, spec.procs_per_node


def length_seconds(history: History, now: datetime) -> float | None:
    """Return the time of the whole training, or None if the job's records do not show it.

    For a job that has succeeded, this is the time in which it made steps that counted; for another job, the
    time for its planned steps at its own pace.
    """
    if history.finished is not None and history.finished.outcome == "succeeded":
        seconds = timeline(history, now).seconds
        if 0 < seconds["training"] >= seconds["unknown"] / MAX_UNKNOWN_SHARE:
            return seconds["training"]
    total, num_steps, taken = steps_total(history), 0, 0.0
    for part, generation in zip(stretches(history, now), history.generations, strict=True):
        if part.started is not None and part.ended is not None:
            num_steps += part.last_step - first_step(generation)
            taken += (part.ended - part.started).total_seconds()
    if total is None or num_steps <= 0 or taken <= 0:
        return None
    return total * taken / num_steps


def commit_seconds(history: History) -> float | None:
    """Return the median time between commits while the training runs; None if that is not known."""
    gaps = [
        (after.sealed_at - before.sealed_at).total_seconds()
        for commits in history.commits_by_generation.values()
        for before, after in pairwise(commits)
    ]
    return max(0.0, statistics.median(gaps)) if gaps else None
