"""``cloudspot shell``: open a shell on one of a job's nodes, in parallel with the training."""

from __future__ import annotations

import click

from cloudspot.cli.jobs import open_job
from cloudspot.cli.remote.attached import attach, terminal_size
from cloudspot.cli.remote.nodes import call, choose_nodes, max_requests_option
from cloudspot.cli.sharedoptions import job_argument, node_option, store_option
from cloudspot.jobstore.layout.records import Seat

_SHELL = ("/bin/sh", "-c", "if command -v bash > /dev/null; then exec bash -i; fi; exec sh -i")


@click.command("shell")
@job_argument
@node_option(help="The node, such as 2.0. Default: the first node that trains.")
@max_requests_option
@store_option
@click.pass_context
def shell(
    ctx: click.Context, job_id: str, node: Seat | None, max_requests: int, store_url: str | None
) -> None:
    """Open a shell on one of a job's nodes.

    The shell has the training's environment and working directory, and runs in its container if it has one.
    Keystrokes and output pass through the store. Type `~.` at the beginning of a line to leave, as in ssh.
    """
    size = terminal_size()
    job = open_job(store_url, job_id)
    seat = choose_nodes(job, node)[0]
    process = call(job, seat, _SHELL, size=size, most=max_requests)
    ctx.exit(attach(process, has_terminal=True))
