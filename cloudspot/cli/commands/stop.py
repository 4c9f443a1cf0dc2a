"""``cloudspot stop``: save a checkpoint and stop a job."""

from __future__ import annotations

import click

from cloudspot.cli import exit_codes
from cloudspot.cli.following.follow import follow
from cloudspot.cli.jobs import Job, open_job
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import job_argument, store_option
from cloudspot.errors import NotAdopted
from cloudspot.jobstore.access.store_clock import clock_of, store_time
from cloudspot.jobstore.jobs.submission import request_stop
from cloudspot.jobstore.nodes.keeping import kept_now
from cloudspot.story.states import is_over, job_state


@click.command("stop")
@job_argument
@click.option("--wait", is_flag=True, help="Drive the job until it has ended.")
@store_option
@click.pass_context
def stop(ctx: click.Context, job_id: str, wait: bool, store_url: str | None) -> None:
    """Save a checkpoint and stop a job.

    A script without a session saves a checkpoint only if checkpoint.on_notice asks it to. Safe to repeat; a
    job that has already ended remains unchanged, but a machine that is kept after its failure
    (limits.keep_failed) ends at once. With --wait, exits with the job's own status.
    """
    job = open_job(store_url, job_id)
    job.check_not_moved()
    kept = None if job.first_history.kept is None else kept_now(job.first_history, store_time(job.store))
    if is_over(job.first_history) and kept is None:
        state = job_state(job.first_history)
        output.echo(f"job {job.id} has already ended: {state}")
        ctx.exit(exit_codes.OF_OUTCOME[state] if wait else exit_codes.SUCCEEDED)
    clock_of(job.store).compare(job.store)
    request_stop(job.store, job.id, "user", resumption=job.first_history.submission.resumption)
    if kept is None:
        output.echo(_answer(job))
    else:
        output.echo(f"asked node {kept.seat} of job {job.id}, which is kept for inspection, to end")
    if wait:
        ctx.exit(follow(job))
    # Make one pass, for a job without other drivers: if the job has no machine, it ends here.
    try:
        job.controller().run_pass()
    except NotAdopted as error:
        output.warn(f"the job can only be stopped by the computer that drives it: {error}")
        return
    output.echo(f"wait for its end with: {job.command('attach')}")


def _answer(job: Job) -> str:
    """Return a message about the request and its effect on the script."""
    spec = job.spec.checkpoint
    if not job.first_history.has_no_session:
        return f"asked job {job.id} to save a checkpoint and stop"
    asked = f"asked job {job.id} to stop"
    if spec.on_notice is not None:
        return f"{asked}; its script has no session, and gets {spec.on_notice} to save"
    if spec.directory is not None:
        newest = job.first_history.head
        lost = "all its work" if newest is None else f"its work after checkpoint {newest}"
        return f"{asked}; its script has no session and saves nothing now: {lost} is probably lost"
    return f"{asked}; its script has no session and no checkpoint.directory, so all its work is lost"
