"""``cloudspot plan``: show what ``run`` would try, in order and with the exact requests; launch nothing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from cloudspot.cli.jobs import new_job_id
from cloudspot.cli.preparing.inputs import FoundInput, check_places, find_inputs, inputs_json, inputs_text
from cloudspot.cli.preparing.preparedjob import (
    PreparedJob,
    agent_archive,
    prepare_job,
    suggest_trackers,
    warn_of_losses,
)
from cloudspot.cli.preparing.prospects import (
    Prospects,
    anyway_option,
    find_prospects,
    outlook,
    prospects_json,
    setup_text,
)
from cloudspot.cli.screen import output
from cloudspot.cli.screen.transfers import EXPLAINED, transfer_column
from cloudspot.cli.sharedoptions import (
    job_file_argument,
    json_option,
    overrides_option,
    provider_option,
    store_option,
)
from cloudspot.controller.launchrequest import PlannedLaunch
from cloudspot.controller.launchrequest import plan as make_plan
from cloudspot.controller.ownership import store_label
from cloudspot.controller.supply.needs import MOST_AT_ONCE
from cloudspot.host.size_text import size_text
from cloudspot.interfaces import ObjectStore
from cloudspot.jobfile.amounts import money_text
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.code.bundle import make_bundle
from cloudspot.jobstore.jobs.submission import check_secrets, new_submission
from cloudspot.jobstore.layout.records import Submission

request_option = click.option(
    "--request",
    "shows_request",
    is_flag=True,
    help="Also print the whole request for the first offer, including the boot script.",
)


@click.command("plan")
@job_file_argument
@provider_option
@overrides_option
@anyway_option
@request_option
@store_option
@json_option
def plan(
    job_file: Path,
    provider_name: str,
    overrides: tuple[str, ...],
    anyway: bool,
    shows_request: bool,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Show what a job would launch, without launching it.

    Does the same as `run --dry-run`: makes all the local checks of `run`, asks the provider for its offers,
    and prints the offers and the expected cost of the job. --request adds the first request.
    """
    prepared = prepare_job(job_file, provider_name, overrides, store_url)
    print_plan(
        prepared,
        new_job_id(prepared.spec.name),
        anyway=anyway,
        shows_request=shows_request,
        as_json=as_json,
    )


def print_plan(
    prepared: PreparedJob, job_id: str, *, anyway: bool, shows_request: bool, as_json: bool
) -> None:
    """Print what a submission with that id would try, raising the same errors; launch and store nothing."""
    spec, store = prepared.spec, prepared.store
    check_secrets(spec.secret_names, os.environ)
    check_places(spec, prepared.workdir)
    inputs = find_inputs(spec, prepared.provider)
    bundle = make_bundle(prepared.workdir, entrypoint=spec.run.entrypoint)
    agent = agent_archive(prepared.provider, prepared.store, prepared.spec)
    submission = new_submission(
        spec, provider=prepared.provider.name, bundle=bundle, job_id=job_id, agent=agent
    )
    submission = msgspec.structs.replace(submission, store_id=store.find_id())
    planned = make_plan(spec, prepared.provider, submission, store.url, label=store_label(store))
    prospects = find_prospects(prepared, [launch.offer for launch in planned], anyway=anyway)
    warn_of_losses(prepared)
    suggest_trackers(prepared)
    if as_json:
        output.echo_json(_plan_json(planned, store, submission, spec, prospects, inputs))
        return
    output.echo(f"job {job_id} on {submission.provider}, {spec.nodes.max} node(s), store {store.url}")
    for line in outlook(prospects, spec, [launch.offer for launch in planned]):
        output.echo(line)
    output.echo("nothing was launched or stored; to start it, use cloudspot run with the same arguments")
    output.echo()
    output.echo(f"code {bundle.sha256[:12]}: {len(bundle.files)} files, {size_text(bundle.size)}")
    for line in inputs_text(inputs, [launch.offer for launch in planned]):
        output.echo(line)
    for line in setup_text([launch.offer for launch in planned]):
        output.echo(line)
    output.echo(f"command on each node: {_start_text(spec)}")
    output.echo()
    output.echo("offers, in the order in which they are tried:", style="bold")
    # An offer is for one machine, but the job pays for all its nodes.
    counts = sorted({1, spec.nodes.max})
    header, cells = transfer_column([launch.offer for launch in planned])
    output.echo_table(
        (
            *("", "TYPE", "ZONE", "MARKET"),
            *("PER HOUR" if n == 1 else f"{n} NODES PER HOUR" for n in counts),
            *header,
        ),
        [
            (
                str(number),
                launch.offer.instance_type,
                launch.offer.zone,
                launch.offer.market.value,
                *(money_text(n * launch.offer.price_per_hour, launch.offer.currency) for n in counts),
                *cell,
            )
            for number, (launch, cell) in enumerate(zip(planned, cells, strict=True), start=1)
        ],
    )
    if header:
        output.echo(EXPLAINED)
    if planned[0].offer.price_text:
        output.echo(f"price parts of offer 1 per hour: {planned[0].offer.price_text}")
    output.echo(_overlap_text(spec, planned))
    if spec.limits.keep_failed is not None:
        output.echo(_keep_text(spec.limits.keep_failed, planned))
    if shows_request:
        output.echo()
        output.echo("request for offer 1 (--json prints all requests):", style="bold")
        _echo_body(planned[0].request.body, indent="  ")


def _overlap_text(spec: JobSpec, planned: Sequence[PlannedLaunch]) -> str:
    dearest = max((launch.offer for launch in planned), key=lambda offer: offer.price_per_hour)
    most = MOST_AT_ONCE * spec.nodes.max
    price = money_text(most * dearest.price_per_hour, dearest.currency)
    return f"while new machines replace old ones, at most {most} run at once, for up to {price} an hour"


def _keep_text(seconds: float, planned: Sequence[PlannedLaunch]) -> str:
    dearest = max((launch.offer for launch in planned), key=lambda offer: offer.price_per_hour)
    price = money_text(seconds / 3600 * dearest.price_per_hour, dearest.currency)
    lasts = output.duration_text(seconds)
    return f"if the job fails for good, the machine that failed first is kept for {lasts}, for up to {price}"


def _start_text(spec: JobSpec) -> str:
    text = " ".join(shlex.join(spec.run.command_line(spec.run.python or "python")).split())
    if spec.run.launcher_or_default != "none":
        text += f", {spec.procs_per_node} time(s), by torchrun"
    return text if spec.run.image is None else f"{text}, in a container of {spec.run.image}"


def _echo_body(body: Mapping[str, Any], *, indent: str) -> None:
    """Print the fields of a request; multi-line text, such as the boot script, is printed unchanged."""
    for name, value in body.items():
        if isinstance(value, Mapping):
            output.echo(f"{indent}{name}:")
            _echo_body(value, indent=indent + "  ")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                _echo_body({f"{name}[{number}]": item}, indent=indent)
        elif isinstance(value, str) and "\n" in value:
            output.echo(f"{indent}{name}:")
            for line in value.splitlines():
                output.echo(f"{indent}  | {line}")
        else:
            output.echo(f"{indent}{name}: {value}")


def _plan_json(
    planned: Sequence[PlannedLaunch],
    store: ObjectStore,
    submission: Submission,
    spec: JobSpec,
    prospects: Prospects,
    inputs: Sequence[FoundInput],
) -> dict[str, Any]:
    return {
        "id": submission.job_id,
        "provider": submission.provider,
        "store": store.url,
        "code": {"sha256": submission.code_sha256, "bytes": submission.code_bytes},
        "image": spec.run.image,
        "data": inputs_json(inputs),
        "most_machines": MOST_AT_ONCE * spec.nodes.max,
        "keep_failed_seconds": spec.limits.keep_failed,
        "forecast": prospects_json(prospects),
        "launches": [
            {
                "instance_type": launch.offer.instance_type,
                "zone": launch.offer.zone,
                "market": launch.offer.market.value,
                "price_per_hour": launch.offer.price_per_hour,
                "on_demand_price_per_hour": launch.offer.on_demand_price_per_hour,
                "price_parts": launch.offer.price_text or None,
                "transfer_price_per_gib": launch.offer.transfer_price_per_gib,
                "currency": launch.offer.currency,
                "request": launch.request.body,
            }
            for launch in planned
        ],
    }
