"""``cloudspot exec``: run a command on one of a job's nodes, in parallel with the training."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cloudspot.cli.jobs import open_job
from cloudspot.cli.remote.attached import attach, terminal_size
from cloudspot.cli.remote.nodes import call, choose_nodes, max_requests_option
from cloudspot.cli.sharedoptions import job_argument, node_option, store_option
from cloudspot.jobstore.layout.records import Seat


@click.command("exec")
@job_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@node_option(help="The node, such as 2.0. Default: the first node that trains.")
@click.option("-t", "--tty", "has_terminal", is_flag=True, help="Give the command a terminal.")
@max_requests_option
@store_option
@click.pass_context
def exec(  # noqa: A001 - the command's name
    ctx: click.Context,
    job_id: str,
    command: Sequence[str],
    node: Seat | None,
    has_terminal: bool,
    max_requests: int,
    store_url: str | None,
) -> None:
    """Run a command on one of a job's nodes.

    Put `--` before COMMAND so that its options are not taken for cloudspot's. The command runs in the
    training's environment and working directory, and in its container if it has one. The standard streams are
    relayed through the store, and the exit status is the command's.

    The command ends when the node ends or when you leave. The job's log records each command and the user who
    ran it.
    """
    size = terminal_size() if has_terminal else None
    job = open_job(store_url, job_id)
    seat = choose_nodes(job, node)[0]
    process = call(job, seat, command, size=size, most=max_requests)
    ctx.exit(attach(process, has_terminal=has_terminal))
