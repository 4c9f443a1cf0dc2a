"""``cloudspot plan``: what ``run`` would try, in order, and the very requests; nothing is done."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from cloudspot.boot.agentarchive import AgentArchive, make_agent_archive
from cloudspot.cli import output
from cloudspot.cli.config import ChosenStore, default_store
from cloudspot.cli.jobs import new_job_id, note_store
from cloudspot.cli.options import (
    debug_option,
    job_file_argument,
    json_option,
    overrides_option,
    provider_option,
    store_option,
)
from cloudspot.controller.launchrequest import LaunchPlan
from cloudspot.controller.launchrequest import plan as make_plan
from cloudspot.controller.ownership import store_label
from cloudspot.errors import SpecError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.spec import JobSpec, check_files, load_job
from cloudspot.jobstore.bundle import make_bundle
from cloudspot.jobstore.records import Submission
from cloudspot.jobstore.submission import check_secrets, new_submission
from cloudspot.registry import open_provider, open_store, plugin_distributions


@dataclass(frozen=True)
class Order:
    """A job file that was read and checked, with what it would run on."""

    spec: JobSpec
    workdir: Path
    provider: Provider
    store: ObjectStore


@click.command("plan")
@job_file_argument
@provider_option
@overrides_option
@store_option
@json_option
@debug_option
def plan(
    job_file: Path,
    provider_name: str,
    overrides: tuple[str, ...],
    store_url: str | None,
    as_json: bool,
) -> None:
    """Print the offers and requests of a job; launch and store nothing.

    The same as `run --dry-run`: it checks all that `run` checks on this side, and asks the provider for its
    offers.
    """
    order = read_order(job_file, provider_name, overrides, store_url)
    print_plan(order, new_job_id(order.spec.name), as_json=as_json)


STAGE_DEPENDENCIES = "CLOUDSPOT_STAGE_DEPENDENCIES"
"""Set to 1, what the agent depends on is staged too, for nodes without a way to a package index."""


def agent_archive(order: Order) -> AgentArchive | None:
    """Return what the job's machines install their agent from; None where their image has it.

    Raises:
        CloudspotError: cloudspot or the plugin is not installed as a distribution here.
    """
    if order.provider.boot_profile().has_cloudspot:
        return None
    plugins = plugin_distributions(order.provider.name, order.store.url)
    return make_agent_archive(plugins, with_dependencies=os.environ.get(STAGE_DEPENDENCIES) == "1")


def read_order(job_file: Path, provider_name: str, overrides: Sequence[str], store_url: str | None) -> Order:
    """Read the job file and open what it needs; asks the provider for no more than ``pinned_options``.

    The store is the command line's or the environment's (``store_url``), else the job file's, else the
    user's default one, else the provider's.

    Raises:
        SpecError: the job file, an override or the user's file is wrong, or there is no store.
        PluginError: a plugin is missing or broken.
        AuthError: the provider has no credentials.
    """
    spec = load_job(job_file, overrides=overrides)
    workdir = check_files(spec, job_file.resolve().parent)
    provider = open_provider(provider_name, spec)
    pinned = provider.pinned_options()
    if pinned:
        table = {**spec.providers.get(provider_name, {}), **pinned}
        spec = msgspec.structs.replace(spec, providers={**spec.providers, provider_name: table})
        provider = open_provider(provider_name, spec)
    if store_url is None:
        store_url = note_store(_choose_store(spec, provider, job_file)).url
    return Order(spec, workdir, provider, open_store(store_url))


def _choose_store(spec: JobSpec, provider: Provider, job_file: Path) -> ChosenStore:
    if spec.store is not None:
        return ChosenStore(spec.store, f"store in {job_file}")
    chosen = default_store()
    if chosen is not None:
        return chosen
    url = provider.default_store()
    if url is None:
        raise SpecError(
            f"no store: provider {provider.name!r} has no default; set store in the job file, "
            "--store or CLOUDSPOT_STORE"
        )
    return ChosenStore(url, f"the default of the provider {provider.name}")


def print_plan(order: Order, job_id: str, *, as_json: bool) -> None:
    """Print what a submission under that id would try; launches and stores nothing.

    Raises:
        CloudspotError: the job cannot be submitted as it is, or no offer fits it.
    """
    spec, store = order.spec, order.store
    check_secrets(spec, os.environ)
    bundle = make_bundle(order.workdir, entrypoint=spec.run.entrypoint)
    agent = agent_archive(order)
    submission = new_submission(spec, provider=order.provider.name, bundle=bundle, job_id=job_id, agent=agent)
    planned = make_plan(spec, order.provider, submission, store.url, label=store_label(store))
    if as_json:
        output.echo_json(_plan_json(planned, store, submission))
        return
    output.echo(f"job {job_id} on {planned.provider}, {spec.nodes.max} node(s), store {store.url}")
    output.echo(f"code {bundle.sha256[:12]}: {len(bundle.files)} files, {output.size_text(bundle.size)}")
    output.echo()
    output.echo("offers, in the order of trying:", style="bold")
    # What is offered is one machine; what is paid is all of them.
    counts = sorted({1, spec.nodes.max})
    output.echo_table(
        ("", "TYPE", "ZONE", "MARKET", *("AN HOUR" if n == 1 else f"{n} NODES AN HOUR" for n in counts)),
        [
            (
                str(number),
                launch.offer.instance_type,
                launch.offer.zone,
                launch.offer.market.value,
                *(output.money_text(n * launch.offer.price_per_hour, launch.offer.currency) for n in counts),
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
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                _echo_body({f"{name}[{number}]": item}, indent=indent)
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
