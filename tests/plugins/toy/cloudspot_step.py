"""A command that a plugin brings; docs/plugin-kits.md shows it."""

import click

from cloudspot.cli.jobs import open_job
from cloudspot.cli.sharedoptions import store_option
from cloudspot.hookspecs import hookimpl
from cloudspot.story.progress import newest_step

cloudspot_api_version = 2


@click.command("toy-step")
@click.argument("job_id", metavar="ID")
@store_option
def toy_step(job_id, store_url):
    """Print the step that a job has reached."""
    job = open_job(store_url, job_id)
    click.echo(f"{job.id} {newest_step(job.history())}")


@hookimpl
def cloudspot_command(name):
    return toy_step if name == "toy-step" else None
