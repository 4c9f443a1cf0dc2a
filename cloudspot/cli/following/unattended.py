"""Says who drives a job that no command follows."""

from __future__ import annotations

from datetime import datetime, timezone

from cloudspot.cli.jobs import Job
from cloudspot.cli.screen import output
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import Provider
from cloudspot.jobstore.standing_drivers import list_drivers


def tell_of_drivers(job: Job, *, when: str = "From now on", until: str = " until you come back") -> None:
    """Print who drives the job besides this command; warn that nobody does, and what would.

    ``when`` and ``until`` say of what time that is told.
    """
    try:
        found = list_drivers(job.store, datetime.now(timezone.utc))
    except CloudspotError as error:
        output.warn(f"nobody can tell whether anything drives the job: {error}")
        return
    if found:
        soonest = min(found, key=lambda one: one.every or 0.0)
        every = output.duration_text(soonest.every or 0.0)
        output.echo(f"{soonest.who} drives all jobs of this store, about every {every}")
        return
    command = job.command("reconcile --watch --job")
    if type(job.provider).function_host is not Provider.function_host:
        command += f"; or for good: {job.store_command(f'driver deploy --provider {job.provider.name}')}"
    output.warn(
        f"{when}, nothing relaunches the job after a reclaim or holds its limits{until}, unless something "
        f"runs: {command}"
    )
