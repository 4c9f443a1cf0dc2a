"""``cloudspot attach``: follow a job that was submitted before, from any machine."""

from __future__ import annotations

import time

import click

from cloudspot.calls.retrying import doubling, retry, until
from cloudspot.cli.following.follow import follow
from cloudspot.cli.jobs import Job, open_job
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import job_argument, plain_option, store_option
from cloudspot.cli.stored.trust import check_trusted, trust_option
from cloudspot.controller.ownership import adopt, check_adopted
from cloudspot.errors import NotAdopted, SpecError

WAIT_SECONDS = 60.0
"""How long to look for the job at the start if the store does not answer."""


@click.command("attach")
@job_argument
@click.option(
    "--adopt",
    "is_adopted",
    is_flag=True,
    help="Run a job of the provider local here although it was submitted elsewhere. Check its code first.",
)
@trust_option
@plain_option
@store_option
@click.pass_context
def attach(
    ctx: click.Context,
    job_id: str,
    is_adopted: bool,
    trust: str | None,
    is_plain: bool,
    store_url: str | None,
) -> None:
    """Follow and drive a job that is already submitted.

    This is the second half of `run`: it relaunches after a reclaim, prints events and the log, and exits
    when the job ends. Several drivers may be attached at once. Ctrl-C detaches. If the store does not
    answer at the start, the command retries for a minute.

    The provider `local` runs machines as processes of the computer that drives the job. So such a job is
    driven only where it was submitted, by the same user, or where it was adopted: otherwise anyone with write
    access to the store could run programs there. With --adopt, the job continues here from its newest
    checkpoint. This is refused for ten minutes after a node's last report, because the job must not run
    twice.
    """
    job = _find(store_url, job_id)
    if trust is not None and not is_adopted:
        raise SpecError("--trust has no effect without --adopt; give both, or neither")
    if is_adopted:
        _adopt(job, trust)
    ctx.exit(follow(job, is_plain=is_plain))


def _find(store_url: str | None, job_id: str) -> Job:
    """Return the job once the store answers, because a short outage must not leave a job without a driver."""

    def find() -> Job:
        job = open_job(store_url, job_id)
        job.check_not_moved()
        return job

    waits = until(time.monotonic() + WAIT_SECONDS, doubling(1.0, most=10.0))
    return retry(find, sleep=time.sleep, waits=waits, on_wait=output.warner())


def _adopt(job: Job, trust: str | None) -> None:
    history = job.first_history
    try:
        check_adopted(job.store, job.provider, history)
    except NotAdopted:
        job.check_silence()
        check_trusted(job, history, trust=trust, action="adopt", sends=None)
        adopt(job.store, history.submission, history.submission_sha256)
        output.echo(f"adopted job {job.id}: from now on, this computer runs it")
