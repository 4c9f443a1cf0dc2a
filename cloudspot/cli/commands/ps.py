"""``cloudspot ps``: list the jobs of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import click

from cloudspot.cli.jobs import open_named_store
from cloudspot.cli.screen import output
from cloudspot.cli.screen.jobfields import duration, metric_of, parse_filter, sort_jobs
from cloudspot.cli.screen.joblist import echo_jobs
from cloudspot.cli.sharedoptions import json_option, store_option
from cloudspot.cli.stored.storedjobs import StoredJobs, driven_json, summarised
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.jobs.job_lists import list_live, list_recent
from cloudspot.jobstore.layout.records import Summary
from cloudspot.story.states import TERMINAL_STATES

PAGE = 16
"""The number of jobs shown by default. Each job takes a request, and so does each of the two lists of jobs.
"""
MOST = 20
"""The maximum number of ended jobs that are shown with ``--filter`` or ``--sort``."""
FRESH_SECONDS = 30.0
"""Drivers write the summary of an unfinished job more often than this."""
MAX_WORKED_OUT = 2
"""If at most this many jobs on the page have an older summary, their state is computed from their records,
with about ten requests each. Otherwise, their summaries are shown with a warning."""


@click.command("ps")
@click.option("-a", "--all", "show_all", is_flag=True, help=f"Show all jobs instead of the first {PAGE}.")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only jobs that match; also with != < <= > >=, as in metrics.loss<0.3. Repeatable; all must match.",
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

    Shows unfinished jobs first, then ended jobs; the newest first, unless --sort is given. Only --all,
    --filter and --sort read every job of the store. A job with malformed records is named in a warning; the
    command then exits with 8.
    """
    now = datetime.now().astimezone()
    tests = [parse_filter(text, now=now) for text in filters]
    if sort is not None:
        sort_jobs((), sort)  # Refuse an invalid field before anything is read.
    store = open_named_store(store_url)
    stored = StoredJobs(store)
    is_whole = show_all or filters or sort is not None
    page = _Page(stored.summaries()) if is_whole else _read_page(store, now, stored)
    jobs = [job for job in page.jobs if all(passes(job) for passes in tests)]
    jobs.sort(key=lambda job: job.submitted_at, reverse=True)
    if sort is None:
        jobs.sort(key=lambda job: job.state in TERMINAL_STATES)
    else:
        jobs = sort_jobs(jobs, sort)
    shown = jobs if show_all else _without_most_ended(jobs)
    num_more = page.num_more + len(jobs) - len(shown)
    if store_url is not None and not page.jobs and not with_retries(store).list_page("", limit=1).objects:
        # The store is new, or its name contains a typo.
        output.warn(f"{store.url} is empty; check its name")
    asked = [metric for text in (sort or "", *filters) if (metric := metric_of(text)) is not None]
    if as_json:
        output.echo_json([_as_json(job) for job in shown])
    elif shown:
        echo_jobs(shown, metrics_first=asked)
        if num_more:
            at_least = "" if page.is_counted else "at least "
            output.echo(f"{at_least}{num_more} more; see them with --all", error=True)
    else:
        no_match = f"no job in {store.url} matches the filter"
        output.echo(no_match if filters and page.jobs else f"no jobs in {store.url}")
    stored.report_faults(ctx)


def _without_most_ended(jobs: Sequence[Summary]) -> list[Summary]:
    """Return the jobs, with only the first ``MOST`` of the ended ones."""
    ended = [job.job_id for job in jobs if job.state in TERMINAL_STATES]
    left_out = set(ended[MOST:])
    return [job for job in jobs if job.job_id not in left_out]


@dataclass(frozen=True)
class _Page:
    """A page of a store's jobs."""

    jobs: Sequence[Summary]
    num_more: int = 0
    """The number of other jobs that were listed."""
    is_counted: bool = True
    """Whether all jobs were listed, so that the number is exact."""


def _read_page(store: ObjectStore, now: datetime, jobs: StoredJobs) -> _Page:
    """Read the summaries of the newest jobs that are marked live, and then of the newest other jobs."""
    live = list_live(store)
    recent, are_all = list_recent(store)
    waiting = [*sorted(live, key=lambda job_id: live[job_id], reverse=True)]
    waiting += [job_id for job_id in recent if job_id not in live]
    summaries: list[Summary] = []

    def look(job_id: str) -> Summary | None:
        return jobs.find_summary(job_id) or jobs.work_out(job_id, summarised)

    while waiting and len(summaries) < PAGE:
        num_asked = PAGE - len(summaries)
        summaries += jobs.each(look, waiting[:num_asked])
        del waiting[:num_asked]
    return _Page(_freshened(jobs, summaries, now), len(waiting), are_all)


def _freshened(stored: StoredJobs, jobs: list[Summary], now: datetime) -> list[Summary]:
    """Return the jobs, recomputing the old summaries of a few; warn if more have old summaries."""
    stale = {
        job.job_id: job
        for job in jobs
        if job.state not in TERMINAL_STATES and abs((now - job.at).total_seconds()) > FRESH_SECONDS
    }
    if len(stale) > MAX_WORKED_OUT:
        age = output.duration_text(max(abs((now - job.at).total_seconds()) for job in stale.values()))
        output.warn(
            f"{len(stale)} unfinished jobs are shown as a driver last saw them, up to {age} ago; "
            "see the present state of one with: cloudspot show ID"
        )
        return jobs
    worked_out = {
        job_id: stored.work_out(job_id, partial(summarised, before=job), otherwise=job)
        for job_id, job in stale.items()
    }
    found = [worked_out.get(job.job_id, job) for job in jobs]
    return [job for job in found if job is not None]


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
        "starts": job.starts,
        "nodes": job.num_nodes,
        "nodes_max": job.max_nodes,
        "cost": {"spent": job.spent, "currency": job.currency, "others": job.others},
        "metrics": job.metrics,
        "detail": job.detail,
        "idle": job.idle,
        "kept": None
        if job.kept is None or job.kept_until is None
        else {"node": str(job.kept), "until": job.kept_until.isoformat()},
        "seen": job.at.isoformat(),
        "driven": driven_json(job),
    }
