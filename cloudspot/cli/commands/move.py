"""``cloudspot move``: move a running job to other machines, which are prepared first."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from datetime import datetime

import click

from cloudspot.agent.training.watching.drain_schedule import JOIN_AFTER_STARTS
from cloudspot.calls import OffersRequest
from cloudspot.cli import exit_codes
from cloudspot.cli.following.detached import echo_drivers
from cloudspot.cli.jobs import Job, open_job
from cloudspot.cli.screen import output
from cloudspot.cli.screen.lines import echo_line, event_line, in_order_of_time
from cloudspot.cli.sharedoptions import job_argument, store_option
from cloudspot.cli.stored.trust import check_trusted, trust_option
from cloudspot.controller.actions import OpenLaunch
from cloudspot.controller.assess.measured import restart_seconds, seconds_to_end, start_seconds
from cloudspot.controller.loop import Controller
from cloudspot.controller.moving import Target, has_moved, is_given_up, plan_move
from cloudspot.errors import CapacityError, CloudspotError, SpecError
from cloudspot.jobfile.amounts import money_text
from cloudspot.jobstore.access.store_clock import clock_of, store_time
from cloudspot.jobstore.jobs.resumption import CHANGED
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.model import Market, Offer
from cloudspot.story.node_names import named
from cloudspot.story.outcomes import end_so_far, own_beat
from cloudspot.story.stretches import stretches

_MAX_TRIES = 10
"""The maximum number of attempts to record the launch while the job itself is writing records."""


@click.command("move")
@job_argument
@click.option("--zone", metavar="ZONE", help="The zone to move to. Default: any.")
@click.option(
    "--type", "instance_type", metavar="TYPE", help="The machine type to move to. Default: the present one."
)
@click.option(
    "--market",
    type=click.Choice([one.value for one in Market]),
    help="Spot or on-demand. Default: the present one.",
)
@trust_option
@click.option("--detach", is_flag=True, help="Return as soon as the machines are requested.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@store_option
@click.pass_context
def move(
    ctx: click.Context,
    job_id: str,
    zone: str | None,
    instance_type: str | None,
    market: str | None,
    trust: str | None,
    detach: bool,
    yes: bool,
    store_url: str | None,
) -> None:
    """Move a running job to another zone, machine type or market.

    New machines are bought, set up and restored while the job keeps training. They take over once they are
    ready, the training has made a checkpoint, and it has run ten times as long as its start took: the job
    then saves and continues on them, and the old machines end. Until then, both are billed, and both count
    towards limits.max_cost. If the new machines cannot be bought, or are lost before they take over, the job
    keeps training, and the next suitable offer is tried. Any driver of the job completes the move, so this
    command need not keep running. If the job ends before it has moved, the exit status is the same as for
    `run`.

    To change the provider or the store, stop the job and resume it there.

    If the job's record differs from what was submitted from this computer, the command shows the differences
    and asks for confirmation. Without a terminal, --trust gives the answer.
    """
    if zone is None and instance_type is None and market is None:
        raise SpecError("give at least one of --zone, --type and --market")
    target = Target(zone=zone, instance_type=instance_type, market=None if market is None else Market(market))
    job = open_job(store_url, job_id)
    job.check_not_moved()
    history = job.first_history
    check_trusted(job, history, trust=trust, action="move", sends=None)
    offers = _offers(job)
    launch = _plan(job, history, offers, target)
    _echo_plan(launch)
    _warn_of_end(history)
    if not yes:
        click.confirm("move it", abort=True)
    controller = job.controller(known=history)
    launch = _open(job, controller, launch, job.history(), offers, target)
    if detach:
        _look(job, controller)
        echo_drivers(job)
        return
    ctx.exit(_follow(job, controller, launch, target))


def _offers(job: Job) -> tuple[Offer, ...]:
    request = OffersRequest(resources=job.spec.resources.to_model())
    return job.provider.provisioner().offers(request).offers


def _plan(job: Job, history: History, offers: Sequence[Offer], target: Target) -> OpenLaunch:
    return plan_move(job.spec, history, offers, store_time(job.store), target)


def _open(
    job: Job,
    controller: Controller,
    planned: OpenLaunch,
    history: History,
    offers: Sequence[Offer],
    target: Target,
) -> OpenLaunch:
    """Record the launch. Records that the job writes in the meantime matter only if they change the plan."""
    for _ in range(_MAX_TRIES):
        launch = _plan(job, history, offers, target)
        if dataclasses.replace(launch, number=planned.number) != planned:
            break
        if controller.open_launch(launch, history):
            return launch
        history = job.history()
    raise CloudspotError(CHANGED.format(job.id))


def _echo_plan(launch: OpenLaunch) -> None:
    offer, count = launch.offer, launch.num_nodes
    price = money_text(count * offer.price_per_hour, offer.currency)
    nodes = named(seat for seat in launch.stands_in_for if seat is not None)
    output.echo(f"moving {nodes} {launch.detail} to {offer.key}")
    machines = "machine trains" if count == 1 else "machines train"
    output.echo(f"this adds {price} an hour until the new {machines}")


def _warn_of_end(history: History) -> None:
    """Warn if the job will probably end by itself before new machines could train."""
    left, needed = seconds_to_end(history), start_seconds(history) + restart_seconds(history)
    if left is not None and left < needed:
        output.warn(
            f"the job will end by itself in about {output.duration_text(left)}, but new machines would train "
            f"only in about {output.duration_text(needed)}: it will probably end before it has moved"
        )


def _look(job: Job, controller: Controller) -> History | None:
    tick = controller.run_pass()
    for event in in_order_of_time(tick.events):
        echo_line(event_line(event, clock_of(job.store).now()))
    return tick.history


def _follow(job: Job, controller: Controller, launch: OpenLaunch, target: Target) -> int:
    """Drive the job until it has moved or can no longer move; return the exit status."""
    printed = ""
    while True:
        history = _look(job, controller)
        if history is not None and len(history.launches) >= launch.launch:
            if has_moved(history, launch.launch):
                output.echo(f"job {job.id} has moved to {launch.offer.key}; the old machines end now")
                echo_drivers(job)
                return exit_codes.SUCCEEDED
            if history.finished is not None:
                output.echo(f"job {job.id} {history.finished.outcome} before it had moved")
                return exit_codes.OF_OUTCOME[history.finished.outcome]
            waits = wait_text(history, launch.launch, store_time(job.store))
            if waits not in {"", printed}:
                output.echo(waits)
                printed = waits
            if is_given_up(history, launch.launch):
                _warn_of_loss(history.launches[launch.launch - 1])
                offers = _offers(job)
                try:
                    launch = _plan(job, history, offers, target)
                except CapacityError as error:
                    raise CloudspotError(f"job {job.id} was not moved and keeps training: {error}") from error
                _echo_plan(launch)
                launch = _open(job, controller, launch, history, offers, target)
                continue
        time.sleep(controller.poll_seconds)


def wait_text(history: History, number: int, now: datetime) -> str:
    """Return a text that states what the launch's ready machines wait for, or "" if they are not ready."""
    launch, generation = history.launches[number - 1], history.generations[-1]
    beats = [own_beat(launch, rank) for rank in range(launch.intent.num_nodes)]
    if any(beat is None or beat.state != "ready" for beat in beats):
        return ""
    begun, first = stretches(history, now)[-1].started, []
    if not any(commit.generation == generation.number for commit in history.commits):
        first.append("makes a checkpoint")
    if begun is None:
        first.append("begins")
    elif (until := begun + JOIN_AFTER_STARTS * (begun - generation.at)) > now:
        first.append(f"trains until {output.clock_text(until)}, ten times the duration of its start")
    what = f"wait, while billed, until the training {' and '.join(first)}" if first else "take over now"
    return f"the new machines are ready and {what}"


def _warn_of_loss(launch: LaunchHistory) -> None:
    end = end_so_far(launch)
    if end is not None:
        why = f": {end.detail}" if end.detail else ""
        output.warn(f"launch {launch.number} ({launch.intent.offer.key}): {end.outcome}{why}")
