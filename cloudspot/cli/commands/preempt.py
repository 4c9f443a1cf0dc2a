"""``cloudspot preempt``: reclaims a machine on purpose, to see that the job survives."""

from __future__ import annotations

import click

from cloudspot.cli.jobs import open_job
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import job_argument, parsed, store_option
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.jobfile.quantities import parse_duration


@click.command("preempt")
@job_argument
@click.option(
    "--node",
    "rank",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="RANK",
    help="The node to reclaim.",
)
@click.option(
    "--notice",
    callback=parsed(parse_duration),
    metavar="DURATION",
    help='Time between the notice and the end, such as "30s".',
)
@click.option("--no-notice", is_flag=True, help="Take the machine at once, without notice.")
@store_option
def preempt(job_id: str, rank: int, notice: float | None, no_notice: bool, store_url: str | None) -> None:
    """Reclaim one of a job's machines, as a drill.

    Without --notice or --no-notice, the machine gets the provider's usual notice.
    """
    if notice is not None and no_notice:
        raise SpecError("give --notice or --no-notice, not both")
    notice_seconds = 0.0 if no_notice else notice
    job = open_job(store_url, job_id)
    launch = job.first_history.open_launch
    slot = None if launch is None else launch.slots.get(rank)
    if launch is None or slot is None or slot.instance_id is None or rank in launch.exits:
        raise CloudspotError(
            f"job {job.id} has no running machine for node {rank}; see: {job.command('show')}"
        )
    job.provider.preempt(slot.instance_id, notice_seconds=notice_seconds)
    how = "without notice" if notice_seconds == 0 else "with its usual notice"
    if notice_seconds:
        how = f"with a notice of {output.duration_text(notice_seconds)}"
    output.echo(f"reclaiming {slot.instance_id} (node {rank} of launch {launch.number}) {how}")
