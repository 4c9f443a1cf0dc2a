"""``cloudspot logs``: a job's log, also long after its machines are gone."""

from __future__ import annotations

import json
import time

import click

from cloudspot.cli import output
from cloudspot.cli.jobs import open_job
from cloudspot.cli.logtail import LogTail, print_records, record_json
from cloudspot.cli.options import debug_option, job_argument, json_option, store_option
from cloudspot.errors import SpecError, TransientError

FOLLOW_SECONDS = 1.0


@click.command("logs")
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--node", "rank", type=click.IntRange(min=0), metavar="RANK", help="Only this node's lines.")
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the lines of attempt N, as `cloudspot show` counts them, from 1.",
)
@store_option
@json_option
@debug_option
def logs(
    job_id: str, follow: bool, rank: int | None, attempt: int | None, store_url: str | None, as_json: bool
) -> None:
    """Print a job's log.

    The lines of setup, training script and agent, all attempts in order.

    With --json each line is one JSON object.
    """
    job = open_job(store_url, job_id)
    launch: int | None = None
    if attempt is not None:
        attempts = job.first_history.attempts
        if attempt > len(attempts):
            raise SpecError(f"--attempt must be <= {len(attempts)}, what {job.id} had so far: got {attempt}")
        launch = attempts[attempt - 1].number

    def wanted(stream_launch: int, stream_rank: int) -> bool:
        return (launch is None or stream_launch == launch) and (rank is None or stream_rank == rank)

    tail = LogTail(job.log_sink, wanted=wanted)
    name_nodes = job.spec.nodes.max > 1
    complaint = ""
    while True:
        try:
            # Asked before reading: what a node wrote before its end is then read below.
            ended = not follow or job.history().finished is not None
            if as_json:
                for record in tail.new_records():
                    click.echo(json.dumps(record_json(record)))
            else:
                print_records(tail.new_records(), name_nodes=name_nodes)
        except TransientError as error:
            if not follow:
                raise
            ended = False
            if str(error) != complaint:
                complaint = str(error)
                output.warn(f"{complaint}; trying again")
        if ended:
            return
        time.sleep(FOLLOW_SECONDS)
