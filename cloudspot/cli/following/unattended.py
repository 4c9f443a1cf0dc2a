"""Says who drives a job that no command follows."""

from __future__ import annotations

from cloudspot.cli.jobs import Job
from cloudspot.cli.screen import output
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import Provider
from cloudspot.jobstore.access.store_clock import clock_of
from cloudspot.jobstore.jobs.standing_drivers import list_drivers


def tell_of_drivers(job: Job, *, when: str = "From now on", until: str = " until you come back") -> None:
    """Print who drives the job besides this command; warn that nobody does, and what would.

    ``when`` and ``until`` say of what time that is told.
    """
    provider = job.provider
    try:
        # Nobody else's cron can drive what runs on this computer.
        is_here = provider.is_this_computer
        found = () if is_here else list_drivers(job.store, clock_of(job.store).now(), provider.name)
    except CloudspotError as error:
        output.warn(f"nobody can tell whether anything drives the job: {error}")
        return
    if found:
        soonest = min(found, key=lambda one: one.every or 0.0)
        every = output.duration_text(soonest.every or 0.0)
        # As the warning: what commands print on standard output may be JSON.
        output.echo(f"{soonest.who} drives all jobs of this store, about every {every}", error=True)
        return
    command = job.command("reconcile --watch --job")
    if type(provider).function_host is not Provider.function_host:
        command += f"; or for good: {job.store_command(f'driver deploy --provider {provider.name}')}"
    nothing = "nothing relaunches the job after a reclaim or holds its limits"
    if job.spec.nodes.drive and not is_here:
        nothing = "only its nodes relaunch the job, at their end, and nothing holds its limits"
    output.warn(f"{when}, {nothing}{until}, unless something runs: {command}")
