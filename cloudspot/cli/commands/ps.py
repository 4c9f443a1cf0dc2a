"""``cloudspot ps``: the jobs of a store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import click

from cloudspot.cli.jobfields import duration, metric_of, parse_filter, sort_jobs
from cloudspot.cli.jobs import open_named_store
from cloudspot.cli.screen import output
from cloudspot.cli.screen.joblist import echo_jobs
from cloudspot.cli.sharedoptions import json_option, store_option
from cloudspot.errors import (
    AuthError,
    CloudspotError,
    CorruptData,
    JobNotFound,
    TransientError,
    as_cloudspot_error,
)
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.parallel import each
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.reader import HistoryReader, list_jobs, read_summary
from cloudspot.jobstore.records import Summary
from cloudspot.story.report import summarise
from cloudspot.story.states import TERMINAL_STATES

MOST = 20
"""How many ended jobs are shown without ``--all``."""
NUM_THREADS = 32
"""Requests at a time: each fetches one small object, so that the store's latency is what counts."""


@click.command("ps")
@click.option(
    "-a", "--all", "show_all", is_flag=True, help=f"All jobs, not only the first {MOST} ended ones."
)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only jobs that match; also != < <= > >=, as in metrics.loss<0.3. Repeatable; all must match.",
)
@click.option(
    "--sort", metavar="FIELD", help="Sort by this field, such as cost; -cost puts the largest first."
)
@store_option
@json_option
@click.pass_context
def ps(
    ctx: click.Context,
    show_all: bool,
    filters: tuple[str, ...],
    sort: str | None,
    store_url: str | None,
    as_json: bool,
) -> None:
    """List jobs.

    Unfinished jobs, then the newest ended ones; newest first, unless --sort says otherwise. A job whose
    records are malformed is named in a warning; the status is then 8.
    """
    now = datetime.now().astimezone()
    tests = [parse_filter(text, now=now) for text in filters]
    if sort is not None:
        sort_jobs((), sort)  # A wrong field is refused before anything is read.
    store = open_named_store(store_url)
    job_ids = list_jobs(store)
    faults: dict[str, CloudspotError] = {}
    found = each(lambda job_id: _look_at(store, job_id, faults), job_ids, num_threads=NUM_THREADS)
    jobs = [job for job in found if job is not None and all(passes(job) for passes in tests)]
    jobs.sort(key=lambda job: job.submitted_at, reverse=True)
    if sort is None:
        jobs.sort(key=lambda job: job.state in TERMINAL_STATES)
    else:
        jobs = sort_jobs(jobs, sort)
    shown = jobs if show_all else _without_most_ended(jobs)
    if store_url is not None and not job_ids and not patient(store).list_page("", limit=1).objects:
        # A typo in its name looks the same as a new store.
        output.warn(f"nothing is stored in {store.url}; is that the store you meant?")
    asked = [metric for text in (sort or "", *filters) if (metric := metric_of(text)) is not None]
    if as_json:
        output.echo_json([_as_json(job) for job in shown])
    elif shown:
        echo_jobs(shown, metrics_first=asked)
        if len(shown) < len(jobs):
            output.echo(f"{len(jobs) - len(shown)} more; see them with --all", error=True)
    else:
        no_match = f"no job in {store.url} matches the filter"
        output.echo(no_match if filters and found else f"no jobs in {store.url}")
    for job_id, fault in sorted(faults.items()):
        output.warn(f"job {job_id}: {fault}")
    if faults:
        ctx.exit(CorruptData.exit_code)


def _without_most_ended(jobs: Sequence[Summary]) -> list[Summary]:
    """Leave out the ended jobs after the first ``MOST``."""
    ended = [job.job_id for job in jobs if job.state in TERMINAL_STATES]
    left_out = set(ended[MOST:])
    return [job for job in jobs if job.job_id not in left_out]


def _look_at(store: ObjectStore, job_id: str, faults: dict[str, CloudspotError]) -> Summary | None:
    """Return a job's summary; None if its submission was never completed, or nothing of it can be read.

    A fault in its records goes to ``faults``; the summary returned may then be stale.
    The stored summary of an ended job is final. Any other may be stale, since its controller may have
    died, so it is worked out from the records.
    """
    try:
        summary = read_summary(store, job_id)
    except CorruptData:
        summary = None  # The records say the same.
    if summary is not None and summary.state in TERMINAL_STATES:
        return summary
    now = datetime.now(timezone.utc)
    try:
        return summarise(HistoryReader(store, job_id).read(), now)
    except JobNotFound:
        return None
    except (AuthError, TransientError):
        raise
    except Exception as error:  # noqa: BLE001 - one job's fault must not hide the others
        faults[job_id] = as_cloudspot_error(error)
        return summary


def _as_json(job: Summary) -> dict[str, Any]:
    return {
        "id": job.job_id,
        "state": job.state,
        "provider": job.provider,
        "name": job.name,
        "code_sha256": job.code_sha256,
        "submitted": job.submitted_at.isoformat(),
        "started": None if job.started_at is None else job.started_at.isoformat(),
        "finished": None if job.finished_at is None else job.finished_at.isoformat(),
        "duration": None if (seconds := duration(job)) is None else round(seconds, 3),
        "step": job.step,
        "steps_total": job.steps_total,
        "attempts": job.attempts,
        "cost": {"spent": job.spent, "currency": job.currency},
        "metrics": job.metrics,
        "detail": job.detail,
        "seen": job.at.isoformat(),
    }
