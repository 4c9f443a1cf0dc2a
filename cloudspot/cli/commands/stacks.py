"""``cloudspot stacks``: show what every rank of a job is doing, even if it hangs."""

from __future__ import annotations

import click

from cloudspot.cli.jobs import Job, open_job
from cloudspot.cli.remote.nodes import call, choose_nodes, python_command
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import job_argument, node_option, store_option
from cloudspot.errors import CloudspotError
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.remote.channel import DEFAULT_MAX_REQUESTS
from cloudspot.jobstore.remote.relay import Kind

_PROGRAM = python_command("cloudspot.agent.remote.stacks")


@click.command("stacks")
@job_argument
@node_option(help="Only the ranks of this node, such as 2.0.")
@store_option
def stacks(job_id: str, node: Seat | None, store_url: str | None) -> None:
    """Show what every rank of a job is doing.

    The stacks of each rank's threads come from py-spy if the training's environment has it, and otherwise
    from the script's session. This works even if the training hangs in a collective operation.
    """
    job = open_job(store_url, job_id)
    failed = 0
    for seat in choose_nodes(job, node):
        output.echo(f"node {seat}", style="bold")
        try:
            for line in _ask(job, seat).splitlines():
                output.echo(line)
        except CloudspotError as error:  # the other nodes are still shown
            output.warn(str(error))
            failed += 1
    if failed:
        raise CloudspotError(f"{failed} of the job's nodes did not answer")


def _ask(job: Job, seat: Seat) -> str:
    process = call(job, seat, _PROGRAM, most=DEFAULT_MAX_REQUESTS)
    written = bytearray()
    try:
        while process.status is None:
            frame = process.frames()
            if frame is not None and frame.kind in {Kind.OUTPUT, Kind.ERRORS}:
                written += frame.data
    finally:
        process.close()
    output_text = written.decode(errors="replace").rstrip()
    if process.status:
        raise CloudspotError(f"node {seat}: {output_text or 'no output'} (status {process.status})")
    return output_text
