"""``cloudspot sandbox``: run a command inside an emulated cloud."""

from __future__ import annotations

import click

from cloudspot.cli.screen import output
from cloudspot.errors import SpecError

RECLAIM_HELP = (
    "When a spot machine is reclaimed: fields of [[providers.local.reclaims]], such as "
    "launch=1,rank=0,after_steps=300,notice=2m, or of [providers.local.random_reclaims], such as "
    "mean=5m,max=2, or none. Repeatable. By default, the first machine of the first launch is reclaimed "
    "halfway through the steps."
)

MARKET_HELP = (
    "When there are no spot machines, or at a higher price: after=30s,lasts=1m,capacity=0 or price=2, and "
    "zone=us-east-1a for one zone. Times count from the start of the first spot machine. Repeatable."
)


@click.command("sandbox", context_settings={"ignore_unknown_options": False})
@click.argument("name", metavar="NAME")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--reclaim", "reclaims", multiple=True, metavar="FIELD=VALUE,...|none", help=RECLAIM_HELP)
@click.option("--market", "spells", multiple=True, metavar="FIELD=VALUE,...", help=MARKET_HELP)
@click.option(
    "--keep", is_flag=True, help="Keep the machines' consoles and the cloud's logs, and print where."
)
@click.option(
    "--bare",
    "is_bare",
    is_flag=True,
    help="Start with an account in which nothing is set up, and with COMMAND as its administrator. Your "
    "config file is not changed. This is for `cloudspot setup`.",
)
@click.option(
    "--contrary",
    "contraries",
    multiple=True,
    metavar="NAME",
    help="Let the cloud do something that cloudspot does not expect of it, such as listing-lags; "
    "docs/sandbox.md lists them. Repeatable.",
)
@click.option(
    "--loopback",
    is_flag=True,
    help="Do not isolate the machines, as on a host without namespaces. They get addresses in 127.0.0.0/8.",
)
def sandbox(
    name: str,
    command: tuple[str, ...],
    reclaims: tuple[str, ...],
    spells: tuple[str, ...],
    keep: bool,
    is_bare: bool,
    contraries: tuple[str, ...],
    loopback: bool,
) -> None:
    """Run a command inside an emulated cloud.

    This needs no account and costs nothing. NAME is the name of a provider. The cloud's API, object store and
    machines exist only on this host and only while COMMAND runs, and COMMAND's environment directs all the
    cloud's tools and SDKs to them. The machines really boot, and are really reclaimed. Exits with the exit
    status of COMMAND.
    """
    from cloudspot.emulation.cloud import EmulatedCloud
    from cloudspot.emulation.sandbox_run import (
        Sandbox,
        check_command,
        parse_market,
        parse_reclaims,
        run_in_sandbox,
        sandbox_directory,
        why_not_isolated,
    )
    from cloudspot.registry import sandbox_class

    cloud = sandbox_class(name, EmulatedCloud)  # type: ignore[type-abstract]
    plan = parse_reclaims(reclaims, notice_seconds=cloud.notice_seconds)
    spot_plan = parse_market(spells, cloud)
    if is_bare and not cloud.can_be_bare:
        raise SpecError(f"--bare: the sandbox {name} cannot start with an account in which nothing is set up")
    unknown = sorted({*contraries} - {*cloud.contraries})
    if unknown:
        known = ", ".join(sorted(cloud.contraries)) or "none"
        raise SpecError(f"--contrary: the sandbox {name} has no {unknown[0]}; it has {known}")
    check_command(command)
    reason = "as requested" if loopback else why_not_isolated()
    if reason is None:
        kept = "" if keep else ", and nothing is kept"
        output.echo(f"sandbox {name}: nothing leaves this host{kept}", error=True)
    else:
        output.warn(
            f"sandbox {name}: the machines are not isolated ({reason}): they are processes of this host with "
            "their own addresses, can read and change its files and its network, and can import its packages"
        )
    with sandbox_directory(name, keep=keep) as directory:
        try:
            status = run_in_sandbox(
                Sandbox(cloud, plan, spot_plan, directory, reason is None, is_bare, frozenset(contraries)),
                command,
            )
        finally:
            end = (
                f"kept in {directory}"
                if keep
                else (
                    "ended, and its store is gone. To fetch what a job has made, do it inside the sandbox: "
                    f"cloudspot sandbox {name} -- bash"
                )
            )
            output.echo(f"sandbox {name}: {end}", error=True)
    click.get_current_context().exit(status)
