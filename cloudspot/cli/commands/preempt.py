"""``cloudspot preempt``: reclaim a machine on purpose, to test that the job survives."""

from __future__ import annotations

import click

from cloudspot.calls import InstancesRequest, PreemptRequest
from cloudspot.cli.jobs import open_job
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import job_argument, node_option, parsed, store_option
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.jobfile.quantities import parse_duration
from cloudspot.jobstore.layout.records import Seat
from cloudspot.model import Capability
from cloudspot.story.states import live_members


@click.command("preempt")
@job_argument
@node_option(help="The node to reclaim, such as 2.0. Default: the first node that trains.")
@click.option(
    "--notice",
    callback=parsed(parse_duration),
    metavar="DURATION",
    help='The time between notice and reclaim, such as "30s".',
)
@click.option("--no-notice", is_flag=True, help="Reclaim the machine immediately, without notice.")
@store_option
def preempt(
    job_id: str, node: Seat | None, notice: float | None, no_notice: bool, store_url: str | None
) -> None:
    """Reclaim one of a job's machines, as a drill.

    Without --notice or --no-notice, the machine gets the provider's usual notice.
    """
    if notice is not None and no_notice:
        raise SpecError("give --notice or --no-notice, not both")
    notice_seconds = 0.0 if no_notice else notice
    job = open_job(store_url, job_id)
    job.provider.require(Capability.PREEMPT)
    history = job.first_history
    running = [
        Seat(launch.number, rank)
        for launch in history.live_launches
        for rank in launch.claimed
        if rank in launch.live_ranks
    ]
    if node is None:
        node = next(iter([*live_members(history), *running]), None)
    if node is None or node not in running:
        what = "no running machine" if node is None else f"no running machine for node {node}"
        raise CloudspotError(f"job {job.id} has {what}; see: {job.command('show')}")
    instance_id = history.launches[node.launch - 1].slots[node.rank].instance_id
    assert instance_id is not None, "it was claimed"
    # The id comes from a record, so use the provider's listing to check that the machine belongs to the job.
    listed = job.provider.provisioner().instances(InstancesRequest(job_id=job.id)).instances
    if all(one.id != instance_id for one in listed):
        raise CloudspotError(f"{job.provider.name} lists no machine {instance_id} of job {job.id}")
    job.provider.preempt(PreemptRequest(instance_id=instance_id, notice_seconds=notice_seconds))
    how = "without notice" if notice_seconds == 0 else "with its usual notice"
    if notice_seconds:
        how = f"with a notice of {output.duration_text(notice_seconds)}"
    output.echo(f"reclaiming {instance_id} (node {node}) {how}")
