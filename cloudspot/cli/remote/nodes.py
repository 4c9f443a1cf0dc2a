"""Choose the nodes on which a command runs, and call them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cloudspot.cli.jobs import Job
from cloudspot.cli.screen import output
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.jobstore.access.store_clock import store_time
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.nodes.keeping import kept_now
from cloudspot.jobstore.remote.calling import RemoteProcess, call_node
from cloudspot.jobstore.remote.channel import (
    BUSY_PER_HOUR,
    DEFAULT_MAX_REQUESTS,
    IDLE_PER_HOUR,
    Requests,
)
from cloudspot.story.states import live_members

max_requests_option = click.option(
    "--max-requests",
    type=click.IntRange(min=100),
    default=DEFAULT_MAX_REQUESTS,
    show_default=True,
    metavar="N",
    help="End the command after N requests from this machine to the store.",
)


_PYTHON = (
    "for python in python python3; do"
    ' if command -v "$python" > /dev/null; then exec "$python" -m "$0"; fi; done;'
    " echo 'the job has no python on its PATH there' >&2; exit 127"
)


def python_command(module: str) -> tuple[str, ...]:
    """Return the command that runs a module of cloudspot with the job's Python on a node."""
    return ("/bin/sh", "-c", _PYTHON, module)


def choose_nodes(job: Job, node: Seat | None) -> list[Seat]:
    """Return the named node, or all nodes that train, or else all that have a machine, including kept ones.

    Raises:
        CloudspotError: there is no such node, or no command may run there.
    """
    if not job.spec.run.exec:
        raise CloudspotError(f"job {job.id} runs no commands: its job file has run.exec = false")
    history = job.first_history
    claimed = [
        Seat(launch.number, rank)
        for launch in history.live_launches
        for rank in launch.claimed
        if rank in launch.live_ranks
    ]
    kept = None if history.kept is None else kept_now(history, store_time(job.store))
    claimed += [] if kept is None else [kept.seat]
    found = [*live_members(history)] or claimed
    if node is not None:
        found = [one for one in claimed if one == node]
    if not found:
        what = "no running machine" if node is None else f"no running machine for node {node}"
        raise CloudspotError(f"job {job.id} has {what}; see: {job.command('show')}")
    return found


def call(
    job: Job, seat: Seat, command_line: Sequence[str], *, size: tuple[int, int] | None = None, most: int
) -> RemoteProcess:
    """Start a command on the node, and print to standard error how many requests it makes to the store."""
    try:
        for argument in command_line:
            argument.encode()
    except UnicodeEncodeError as error:
        raise SpecError(f"{argument!a} is not UTF-8, but all words of a command must be") from error
    idle, busy = (
        f"{one.num_reads + one.num_writes:,} requests to the store an hour (usually {one.usd:.3f} USD)"
        for one in (IDLE_PER_HOUR, BUSY_PER_HOUR)
    )
    output.echo(
        f"calling node {seat} of job {job.id}: while nothing happens, both sides make {idle}; at most {busy}",
        error=True,
    )
    return call_node(job.store, job.id, seat, command_line, size=size, requests=Requests(most))
