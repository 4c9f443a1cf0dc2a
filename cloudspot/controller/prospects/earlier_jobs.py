"""What an earlier job of the same name tells of a new one: how long it trains, and how its machines start."""

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
"""Of so many jobs whose ids begin like the name, the newest, the summaries are read."""
MAX_HISTORIES = 2
"""Of so many of these the records are read, until one tells its length."""
MAX_UNKNOWN_SHARE = 0.1
"""What a job may not know of its own time, as a share of its training, to tell its length."""


@dataclass(frozen=True, kw_only=True)
class EarlierJob:
    """A job of the same name, on machines of the same kind and number."""

    job_id: str
    length_seconds: float
    """How long it trained, or would have, on machines that nobody takes."""
    start_seconds: float
    commit_seconds: float | None
    """From one checkpoint to the next, in the median; None: fewer than two came after one another."""
    is_same_run: bool
    """It ran the same command with the same arguments."""


def find_earlier(store: ObjectStore, spec: JobSpec, provider: str, now: datetime) -> EarlierJob | None:
    """Return the newest job of that name that tells its length; one that has succeeded comes first.

    The id of such a job begins with the name. It ran on the same provider, with the same resources, nodes and
    processes. None, too, if the store does not answer: whoever asks goes on without.
    """
    try:
        for job_id in jobs_of_name(store, spec.name):
            found = _tell(store, job_id, spec, provider, now)
            if found is not None:
                return found
    except CloudspotError:
        return None
    return None


def jobs_of_name(store: ObjectStore, name: str) -> Iterator[str]:
    """Yield the newest jobs of a name that may tell their length, those that have succeeded first."""
    ids = [one for one in list_recent(store)[0] if f"{one}-".startswith(f"{name}-")][:MAX_SUMMARIES]

    def read(job_id: str) -> Summary | None:
        try:
            return read_summary(store, job_id)
        except CloudspotError:
            return None

    summaries = [one for one in map_parallel(read, ids) if one is not None and one.name == name]
    telling = [one for one in summaries if one.state == "succeeded" or one.steps_total is not None]
    telling.sort(key=lambda one: one.state != "succeeded")
    yield from (one.job_id for one in telling[:MAX_HISTORIES])


def _tell(store: ObjectStore, job_id: str, spec: JobSpec, provider: str, now: datetime) -> EarlierJob | None:
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
    """Return how long the whole training takes, as far as the job's records tell; None: they do not.

    A job that has succeeded tells it by the time in which it made steps that counted; another one by the
    steps that it planned, at the pace of those that it made.
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
    """Return how long it takes from one commit to the next while the training runs; None: it is not known."""
    gaps = [
        (after.sealed_at - before.sealed_at).total_seconds()
        for commits in history.commits_by_generation.values()
        for before, after in pairwise(commits)
    ]
    return max(0.0, statistics.median(gaps)) if gaps else None
