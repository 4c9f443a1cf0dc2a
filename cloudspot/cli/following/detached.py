"""Launch a job that this command will not follow, and show who drives it afterwards."""

from __future__ import annotations

import time

from cloudspot.cli import exit_codes
from cloudspot.cli.jobs import Job
from cloudspot.cli.screen import output
from cloudspot.cli.screen.lines import echo_line, event_line, in_order_of_time
from cloudspot.controller.actions import Create
from cloudspot.controller.loop import Tick
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import Provider
from cloudspot.jobstore.access.store_clock import clock_of
from cloudspot.jobstore.jobs.standing_drivers import list_drivers
from cloudspot.jobstore.journal.history import History
from cloudspot.model import Capability, InstanceState

TRIES = 5
TRY_SECONDS = 3.0


def launch(job: Job, *, as_json: bool, since: History | None = None) -> int:
    """Drive a detached job until its first machines have been requested; return the exit status.

    ``since`` holds the records of a job just before its resumption; their events are not repeated.
    """
    controller = job.controller(known=since)
    for number in range(TRIES):
        if number:
            time.sleep(TRY_SECONDS)
        tick = controller.run_pass()
        if not as_json:
            for event in in_order_of_time(tick.events):
                echo_line(event_line(event, clock_of(job.store).now()))
        if _has_machines(tick) or (tick.history is not None and tick.history.finished is not None):
            break
    finished = None if tick.history is None else tick.history.finished
    if as_json:
        output.echo_json({"id": job.id, "store": job.store.url, "launched": _has_machines(tick)})
    elif finished is None:
        output.echo(f"follow it with: {job.command('attach')}")
    if finished is not None:
        return exit_codes.OF_OUTCOME[finished.outcome]
    if not _has_machines(tick):
        output.warn(f"job {job.id} has no machine yet")
    echo_drivers(job)
    return exit_codes.SUCCEEDED


def echo_drivers(job: Job, *, when: str = "From now on", until: str = " until you come back") -> None:
    """Print who else drives the job, or warn that nobody does and name a command that would.

    ``when`` and ``until`` name the period for which this holds.
    """
    provider = job.provider
    try:
        # Drivers on other computers cannot drive jobs that run on this one.
        is_here = Capability.THIS_COMPUTER in provider.capabilities
        drivers = () if is_here else list_drivers(job.store, clock_of(job.store).now(), provider.name)
    except CloudspotError as error:
        output.warn(f"it is unknown whether anything drives the job: {error}")
        return
    if drivers:
        soonest = min(drivers, key=lambda one: one.every or 0.0)
        every = output.duration_text(soonest.every or 0.0)
        # Use standard error, because commands may print JSON to standard output.
        output.echo(f"{soonest.who} drives all jobs of this store, about every {every}", error=True)
        return
    command = job.command("reconcile --watch --job")
    if type(provider).function_host is not Provider.function_host:
        command += f"; or for good: {job.store_command(f'driver deploy --provider {provider.name}')}"
    nothing = "nothing relaunches the job after a reclaim or enforces its limits"
    if job.spec.nodes.drive and not is_here:
        nothing = "only its own nodes relaunch the job, when they end, and nothing enforces its limits"
    output.warn(f"{when}, {nothing}{until}, unless something runs: {command}")


def _has_machines(tick: Tick) -> bool:
    created = any(isinstance(action, Create) for action in tick.actions) and not tick.problems
    live = () if tick.history is None else tick.history.live_launches
    numbers = {launch.number for launch in live}
    return created or any(
        one.state is not InstanceState.ENDED and one.launch in numbers for one in tick.instances or ()
    )
