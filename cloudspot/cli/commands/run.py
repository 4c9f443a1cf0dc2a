"""``cloudspot run``: submit a job, then follow it or leave it; or only show what it would do."""

from __future__ import annotations

from pathlib import Path

import click

from cloudspot.cli.commands.plan import print_plan
from cloudspot.cli.following.detached import echo_drivers, launch
from cloudspot.cli.following.follow import follow
from cloudspot.cli.jobs import Job, check_job_id, new_job_id
from cloudspot.cli.preparing.inputs import check_places, find_inputs, inputs_text
from cloudspot.cli.preparing.preparedjob import prepare_job, warn_of_losses
from cloudspot.cli.preparing.prospects import anyway_option, find_prospects, outlook, setup_text
from cloudspot.cli.preparing.submitting import submit_prepared
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import (
    job_file_argument,
    overrides_option,
    plain_option,
    provider_option,
    store_option,
)
from cloudspot.controller.launchrequest import find_offers
from cloudspot.errors import SpecError
from cloudspot.host.size_text import size_text
from cloudspot.model import Capability


@click.command("run")
@job_file_argument
@provider_option
@click.option("--name", metavar="ID", help="The job's id. Default: its name and a random suffix.")
@overrides_option
@anyway_option
@click.option("--detach", is_flag=True, help="Return as soon as the first machine is requested.")
@click.option("--dry-run", is_flag=True, help="Print the same as `plan`; launch and store nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run or --detach: print JSON.")
@plain_option
@store_option
@click.pass_context
def run(
    ctx: click.Context,
    job_file: Path,
    provider_name: str,
    name: str | None,
    overrides: tuple[str, ...],
    anyway: bool,
    detach: bool,
    dry_run: bool,
    as_json: bool,
    is_plain: bool,
    store_url: str | None,
) -> None:
    """Submit a job and follow it to its end.

    JOB_FILE is job.toml by default. Prints events and the log, relaunches after a reclaim, and exits when
    the job ends: 0 succeeded, 1 failed, 10 stopped, 11 suspended. Ctrl-C detaches; the job continues.
    """
    if as_json and not (dry_run or detach):
        raise SpecError("--json needs --dry-run or --detach; a followed job prints its log")
    if dry_run and detach:
        raise SpecError("give --dry-run or --detach, not both")
    if name is not None:
        check_job_id(name)
    prepared = prepare_job(job_file, provider_name, overrides, store_url)
    if dry_run:
        print_plan(
            prepared,
            name or new_job_id(prepared.spec.name),
            anyway=anyway,
            shows_request=False,
            as_json=as_json,
        )
        return
    check_places(prepared.spec, prepared.workdir)
    inputs = find_inputs(prepared.spec, prepared.provider)
    # These raise, before the job exists, if no offer fits or the job cannot succeed.
    offers = find_offers(prepared.spec, prepared.provider)
    prospects = find_prospects(prepared, offers, anyway=anyway)
    store = prepared.store
    submission = submit_prepared(prepared, name)
    job = Job(store, submission.job_id)
    if not as_json:
        size = size_text(submission.code_bytes)
        output.echo("submitted job ", output.Styled(job.id, "bold"), f" to {store.url} ({size} of code)")
        for line in outlook(prospects, prepared.spec, offers):
            output.echo(line)
        if not detach:
            output.echo(
                f"Ctrl-C leaves the job running; come back with: {job.command('attach')}; "
                f"end it with: {job.command('stop')}"
            )
        for line in (*inputs_text(inputs, offers), *setup_text(offers)):
            output.echo(line)
    warn_of_losses(prepared)  # nothing has been launched yet
    if not detach and Capability.THIS_COMPUTER not in prepared.provider.capabilities:
        echo_drivers(job, when="If this command ends before the job", until="")
    ctx.exit(launch(job, as_json=as_json) if detach else follow(job, is_new=True, is_plain=is_plain))
