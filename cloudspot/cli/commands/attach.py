"""``cloudspot attach``: follows a job that was submitted before, from any machine."""

from __future__ import annotations

import click

from cloudspot.cli.following.follow import follow
from cloudspot.cli.jobs import open_job
from cloudspot.cli.sharedoptions import job_argument, plain_option, store_option


@click.command("attach")
@job_argument
@plain_option
@store_option
@click.pass_context
def attach(ctx: click.Context, job_id: str, is_plain: bool, store_url: str | None) -> None:
    """Follow and drive a job that is already submitted.

    The second half of `run`: relaunches after a reclaim, prints events and the log, and exits when the
    job ends. Several may be attached at once. Ctrl-C detaches.
    """
    ctx.exit(follow(open_job(store_url, job_id), is_plain=is_plain))
