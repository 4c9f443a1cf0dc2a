"""``cloudspot driver``: a cloud function that drives a store's jobs without a computer of the user's."""

from __future__ import annotations

import click

from cloudspot.boot.functionarchive import make_function_archive
from cloudspot.cli import exit_codes
from cloudspot.cli.config import open_configured
from cloudspot.cli.function import EVERY, NAME, PROVIDER
from cloudspot.cli.jobs import open_named_store
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import provider_option, store_option
from cloudspot.controller.ownership import store_label
from cloudspot.interfaces import FunctionHost, ObjectStore
from cloudspot.jobfile.quantities import parse_duration
from cloudspot.model import Capability, DriverFunction
from cloudspot.plugin.driverinventory import driver_name
from cloudspot.registry import driver_distributions

DEFAULT_EVERY = "2m"


@click.group("driver")
def driver() -> None:
    """Let a cloud function drive the store's jobs.

    The function does the same as `reconcile`, on a schedule and whenever the cloud reclaims one of the
    machines: it relaunches nodes, ends machines that should not run, and enforces the limits. So none of your
    own computers has to be on. It runs in the provider's account and region, and drives the jobs of one
    store.
    """


@driver.command("deploy")
@provider_option
@click.option(
    "--every", default=DEFAULT_EVERY, show_default=True, metavar="DURATION", help="Time between two passes."
)
@click.option("--reap", "reaps", is_flag=True, help="Let it run `cloudspot reap` once a day, too.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask first.")
@store_option
def deploy(provider_name: str, every: str, reaps: bool, yes: bool, store_url: str | None) -> None:
    """Create or update the function.

    First prints what will be created and what it costs. The function contains the installed version of
    cloudspot with its plugins, and runs once before this command ends. Its role has only the permissions that
    a driver needs.
    """
    store, host = open_named_store(store_url), _host(provider_name)
    seconds = parse_duration(every)
    archive = make_function_archive(driver_distributions(provider_name, store.url))
    name = _name(store)
    function = DriverFunction(
        name=name,
        archive=archive.data,
        unpacked_bytes=archive.unpacked_bytes,
        needs_glibc=archive.needs_glibc,
        handler="cloudspot.cli.function.handle",
        every_seconds=seconds,
        reaps=reaps,
        store_url=store.url,
        environment={
            "CLOUDSPOT_STORE": store.url,
            NAME: f"function {name}",
            EVERY: f"{seconds:g}",
            PROVIDER: provider_name,
            "HOME": "/tmp",  # noqa: S108 - the only place where functions may write
        },
    )
    for line in host.plan(function):
        output.echo(line)
    if not yes:
        click.confirm("deploy it", abort=True)
    host.deploy(function)
    shown = output.duration_text(seconds)
    output.echo(f"deployed: {name} drives the jobs of {store.url}, about every {shown}")


@driver.command("status")
@provider_option
@store_option
@click.pass_context
def status(ctx: click.Context, provider_name: str, store_url: str | None) -> None:
    """Show the store's function.

    Exits with 1 if the store has no function.
    """
    store = open_named_store(store_url)
    function = _host(provider_name).status(_name(store))
    if function is None:
        output.echo(f"no function of {provider_name} drives the jobs of {store.url}")
    else:
        every = (
            "no schedule" if function.every_seconds is None else output.duration_text(function.every_seconds)
        )
        output.echo_fields(
            [
                ("function", function.where),
                ("state", function.state),
                ("every", every),
                ("cloudspot", function.version),
                ("changed", "" if function.changed_at is None else output.moment_text(function.changed_at)),
            ]
        )
    ctx.exit(exit_codes.FAILED if function is None else exit_codes.SUCCEEDED)


@driver.command("remove")
@provider_option
@store_option
def remove(provider_name: str, store_url: str | None) -> None:
    """Remove the function, its schedule and its role, as well as its log if the cloud allows that.

    The jobs remain unchanged; from then on, only other drivers relaunch them.
    """
    store = open_named_store(store_url)
    removed = _host(provider_name).remove(_name(store))
    for one in removed:
        output.echo(f"removed {one}")
    if not removed:
        output.echo(f"no function of {provider_name} drives the jobs of {store.url}")


def _host(provider_name: str) -> FunctionHost:
    provider = open_configured(provider_name, None)
    provider.require(Capability.FUNCTIONS)
    return provider.function_host()


def _name(store: ObjectStore) -> str:
    """Return the function's name, which is the same for every spelling of the store's URL."""
    return driver_name(store_label(store))
