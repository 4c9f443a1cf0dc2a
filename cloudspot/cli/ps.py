"""``cloudspot ps``: the jobs of a store."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import click

from cloudspot.cli import output
from cloudspot.cli.jobs import open_named_store
from cloudspot.cli.options import debug_option, json_option, store_option
from cloudspot.controller.report import summarise
from cloudspot.controller.states import TERMINAL_STATES
from cloudspot.errors import CorruptData, JobNotFound
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.parallel import each
from cloudspot.jobstore.reader import HistoryReader, list_jobs, read_summary
from cloudspot.jobstore.records import Summary

NEWEST = 20
"""How many ended jobs are shown without ``--all``."""

_STATES_WITH_METRICS = ("running", "draining", "succeeded")
"""In these the metrics tell more than what brought the job there."""


@click.command("ps")
@click.option(
    "-a", "--all", "show_all", is_flag=True, help=f"All jobs, not only the newest {NEWEST} that have ended."
)
@store_option
@json_option
@debug_option
def ps(show_all: bool, store_url: str | None, as_json: bool) -> None:
    """List jobs.

    Newest first: the unfinished ones, and the newest that have ended.
    """
    store = open_named_store(store_url)
    jobs = [job for job in each(lambda job_id: _look_at(store, job_id), list_jobs(store)) if job is not None]
    jobs.sort(key=lambda job: job.submitted_at, reverse=True)
    going = [job for job in jobs if job.state not in TERMINAL_STATES]
    ended = [job for job in jobs if job.state in TERMINAL_STATES]
    shown = going + (ended if show_all else ended[:NEWEST])
    if as_json:
        output.echo_json([_as_json(job) for job in shown])
        return
    if not shown:
        output.echo(f"no jobs in {store.url}")
        return
    headers = ("ID", "STATE", "STEP", "ATTEMPTS", "COST", "SUBMITTED", "DETAIL")
    output.echo_table(headers, [_row(job) for job in shown])
    if len(shown) < len(jobs):
        output.echo(f"{len(jobs) - len(shown)} older jobs are not shown; see them with --all", error=True)


def _look_at(store: ObjectStore, job_id: str) -> Summary | None:
    """Return what is to be said of a job; None where its submission was never completed.

    The summary of a job that has ended is final. Any other may be stale: its controller may have
    died, or none may have been there when its nodes ended. The records themselves then tell.
    """
    try:
        summary = read_summary(store, job_id)
    except CorruptData:
        summary = None  # It only ever repeats what the records say.
    if summary is not None and summary.state in TERMINAL_STATES:
        return summary
    now = datetime.now(timezone.utc)
    try:
        return summarise(HistoryReader(store, job_id).read(), now)
    except JobNotFound:
        return None
    except CorruptData as error:
        output.warn(f"job {job_id}: {error}")
        return summary


def _row(job: Summary) -> tuple[str, ...]:
    return (
        job.job_id,
        job.state,
        output.steps_text(job.step, job.steps_total),
        str(job.attempts),
        output.money_text(job.spent, job.currency),
        output.moment_text(job.submitted_at),
        output.metrics_text(job.metrics) if job.state in _STATES_WITH_METRICS else job.detail,
    )


def _as_json(job: Summary) -> dict[str, Any]:
    return {
        "id": job.job_id,
        "state": job.state,
        "provider": job.provider,
        "submitted": job.submitted_at.isoformat(),
        "step": job.step,
        "steps_total": job.steps_total,
        "attempts": job.attempts,
        "cost": {"spent": job.spent, "currency": job.currency},
        "metrics": job.metrics,
        "detail": job.detail,
        "seen": job.at.isoformat(),
    }
