"""``cloudspot run``: submits a job; then follows it, leaves it, or only says what it would do."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cloudspot.cli import exit_codes, output
from cloudspot.cli.follow import follow, print_event, relaunch_warning
from cloudspot.cli.jobs import DEFAULT_PROVIDER, Job, check_job_id, new_job_id
from cloudspot.cli.options import debug_option, store_option
from cloudspot.controller.actions import Create
from cloudspot.controller.loop import Controller, Tick
from cloudspot.controller.plan import LaunchPlan, plan
from cloudspot.errors import JobExists, SpecError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobstore.bundle import make_bundle
from cloudspot.jobstore.records import Submission
from cloudspot.jobstore.submission import new_submission, submit
from cloudspot.registry import open_provider, open_store
from cloudspot.spec import JobSpec, check_files, load_job

MAX_ID_TRIES = 5
DETACH_TRIES = 5
DETACH_SECONDS = 3.0


@click.command("run")
@click.argument("job_file", default="job.toml", type=click.Path(path_type=Path))
@click.option(
    "--provider",
    "provider_name",
    default=DEFAULT_PROVIDER,
    show_default=True,
    metavar="NAME",
    help="Where to run.",
)
@click.option("--name", metavar="ID", help="The job's id, as it is; default: its name and a random suffix.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Replace a field of the job file, such as limits.max_cost=5; repeatable.",
)
@click.option("--detach", is_flag=True, help="Return as soon as the first machine is requested.")
@click.option(
    "--dry-run", is_flag=True, help="Print the offers and the very request; launch and store nothing."
)
@click.option("--json", "as_json", is_flag=True, help="With --dry-run or --detach: print JSON.")
@store_option
@debug_option
@click.pass_context
def run(
    ctx: click.Context,
    job_file: Path,
    provider_name: str,
    name: str | None,
    overrides: tuple[str, ...],
    detach: bool,
    dry_run: bool,
    as_json: bool,
    store_url: str | None,
) -> None:
    """Submit a job and follow it to its end.

    JOB_FILE is job.toml by default. Prints what happens and the log, relaunches after a reclaim,
    and ends with the job: 0 succeeded, 1 failed, 10 stopped. Ctrl-C detaches; the job goes on.
    """
    if as_json and not (dry_run or detach):
        raise SpecError("--json needs --dry-run or --detach; a followed job prints its log")
    if dry_run and detach:
        raise SpecError("give --dry-run or --detach, not both")
    spec = load_job(job_file, overrides=overrides)
    workdir = check_files(spec, job_file.resolve().parent)
    provider = open_provider(provider_name, spec)
    store = open_store(_choose_store(store_url, spec, provider))
    if name is not None:
        check_job_id(name)
    if dry_run:
        _dry_run(spec, provider, store, name or new_job_id(spec.name), workdir, as_json=as_json)
        return
    submission = _submit(store, spec, provider_name, workdir, name)
    job = Job(store, submission.job_id)
    if not as_json:
        size = output.size_text(submission.code_bytes)
        output.echo(f"submitted job {output.styled(job.id, 'bold')} to {store.url} ({size} of code)")
    ctx.exit(_detach(job, as_json=as_json) if detach else follow(job, is_new=True))


def _choose_store(store_url: str | None, spec: JobSpec, provider: Provider) -> str:
    url = store_url or spec.store or provider.default_store()
    if url is None:
        raise SpecError(
            f"no store: provider {provider.name!r} has no default; set store in the job file, "
            "--store or CLOUDSPOT_STORE"
        )
    return url


def _submit(
    store: ObjectStore, spec: JobSpec, provider_name: str, workdir: Path, name: str | None
) -> Submission:
    for number in range(1, MAX_ID_TRIES + 1):
        job_id = name or new_job_id(spec.name)
        try:
            return submit(
                store,
                spec=spec,
                provider=provider_name,
                workdir=workdir,
                environ=os.environ,
                job_id=job_id,
            )
        except JobExists:
            # A random suffix may meet another; a name that was given is the user's to change.
            if name is not None or number == MAX_ID_TRIES:
                raise
    raise AssertionError("the loop returns or raises")


def _detach(job: Job, *, as_json: bool) -> int:
    """Drive the new job until its first machines are requested; return the exit status."""
    controller = Controller(job.store, job.id, job.provider)
    for number in range(DETACH_TRIES):
        if number:
            time.sleep(DETACH_SECONDS)
        tick = controller.run_pass()
        if not as_json:
            for event in tick.events:
                print_event(event, tick.history)
        if _has_machines(tick) or (tick.history is not None and tick.history.finished is not None):
            break
    finished = None if tick.history is None else tick.history.finished
    if as_json:
        output.echo_json({"id": job.id, "store": job.store.url, "launched": _has_machines(tick)})
    elif finished is None:
        output.echo(f"follow it with: {job.command('attach')}")
    if finished is not None:
        return exit_codes.of_outcome(finished.outcome)
    if not _has_machines(tick):
        output.warn(f"job {job.id} has no machine yet")
    output.warn(relaunch_warning(job))
    return exit_codes.SUCCEEDED


def _has_machines(tick: Tick) -> bool:
    created = any(isinstance(action, Create) for action in tick.actions) and not tick.problems
    return created or bool(tick.instances)


def _dry_run(
    spec: JobSpec, provider: Provider, store: ObjectStore, job_id: str, workdir: Path, *, as_json: bool
) -> None:
    bundle = make_bundle(workdir, entrypoint=spec.run.entrypoint)
    submission = new_submission(spec, provider=provider.name, bundle=bundle, job_id=job_id)
    planned = plan(spec, provider, submission, store.url)
    if as_json:
        output.echo_json(_plan_json(planned, store, submission))
        return
    output.echo(f"job {job_id} on {planned.provider}, {spec.nodes.max} node(s), store {store.url}")
    output.echo(f"code {bundle.sha256[:12]}: {len(bundle.files)} files, {output.size_text(bundle.size)}")
    output.echo()
    output.echo("offers, in the order of trying:", style="bold")
    output.echo_table(
        ("", "TYPE", "ZONE", "MARKET", "PRICE AN HOUR"),
        [
            (
                str(number),
                launch.offer.instance_type,
                launch.offer.zone,
                launch.offer.market.value,
                output.money_text(launch.offer.price_per_hour, launch.offer.currency),
            )
            for number, launch in enumerate(planned.launches, start=1)
        ],
    )
    output.echo()
    output.echo("request for offer 1 (--json prints all of them):", style="bold")
    _echo_body(planned.launches[0].request.body, indent="  ")
    output.echo()
    output.echo("dry run: nothing was launched and nothing stored")


def _echo_body(body: Mapping[str, Any], *, indent: str) -> None:
    """Print a request's fields; a text of several lines, such as the boot script, as it is."""
    for name, value in body.items():
        if isinstance(value, Mapping):
            output.echo(f"{indent}{name}:")
            _echo_body(value, indent=indent + "  ")
        elif isinstance(value, str) and "\n" in value:
            output.echo(f"{indent}{name}:")
            for line in value.splitlines():
                output.echo(f"{indent}  | {line}")
        else:
            output.echo(f"{indent}{name}: {value}")


def _plan_json(planned: LaunchPlan, store: ObjectStore, submission: Submission) -> dict[str, Any]:
    return {
        "id": planned.job_id,
        "provider": planned.provider,
        "store": store.url,
        "code": {"sha256": submission.code_sha256, "bytes": submission.code_bytes},
        "launches": [
            {
                "instance_type": launch.offer.instance_type,
                "zone": launch.offer.zone,
                "market": launch.offer.market.value,
                "price_per_hour": launch.offer.price_per_hour,
                "on_demand_price_per_hour": launch.offer.on_demand_price_per_hour,
                "currency": launch.offer.currency,
                "request": launch.request.body,
            }
            for launch in planned.launches
        ],
    }
