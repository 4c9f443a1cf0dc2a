"""Chooses the node of a job on which a command runs, and calls it."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cloudspot.cli.jobs import Job
from cloudspot.cli.screen import output
from cloudspot.errors import CloudspotError
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.remote.calling import RemoteProcess, call_node
from cloudspot.jobstore.remote.channel import (
    DEFAULT_MAX_REQUESTS,
    Requests,
    busy_requests_per_hour,
    idle_requests_per_hour,
)
from cloudspot.story.states import live_members

max_requests_option = click.option(
    "--max-requests",
    type=click.IntRange(min=100),
    default=DEFAULT_MAX_REQUESTS,
    show_default=True,
    metavar="N",
    help="End it after N requests of the store from this side.",
)


def choose_nodes(job: Job, node: Seat | None) -> list[Seat]:
    """Return the node that is named, or all that train, or else all that have a machine.

    Raises:
        CloudspotError: there is none, or no command may run there.
    """
    if not job.spec.run.exec:
        raise CloudspotError(f"job {job.id} runs no commands: its job file says run.exec = false")
    history = job.first_history
    claimed = [
        Seat(launch.number, rank)
        for launch in history.live_launches
        for rank in launch.claimed
        if rank in launch.live_ranks
    ]
    found = [*live_members(history)] or claimed
    if node is not None:
        found = [one for one in claimed if one == node]
    if not found:
        what = "no running machine" if node is None else f"no running machine for node {node}"
        raise CloudspotError(f"job {job.id} has {what}; see: {job.command('show')}")
    return found


def call(
    job: Job, seat: Seat, words: Sequence[str], *, size: tuple[int, int] | None = None, most: int
) -> RemoteProcess:
    """Have the node run a command, and say on standard error what that takes."""
    idle, busy = 2 * idle_requests_per_hour(), 2 * busy_requests_per_hour()
    output.echo(
        f"calling node {seat} of job {job.id}: both sides make {idle:,.0f} requests an hour while nothing"
        f" happens, and {busy:,.0f} at most",
        error=True,
    )
    return call_node(job.store, job.id, seat, words, size=size, requests=Requests(most))
