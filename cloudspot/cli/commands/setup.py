"""``cloudspot setup``: create everything that an account needs before its first job, and remove it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from cloudspot.calls import SetupRequest
from cloudspot.cli import exit_codes
from cloudspot.cli.commands.providers import check_all, echo_results
from cloudspot.cli.completers import complete_providers
from cloudspot.cli.config import config_path, open_overridden
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import overrides_option, store_option
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.interfaces import AccountSetup
from cloudspot.model import Capability, SetupSettings

if TYPE_CHECKING:
    from cloudspot.cli.account.parts import Found
    from cloudspot.cli.account.record import SetupRecord


@click.command("setup")
@click.argument("name", metavar="PROVIDER", shell_complete=complete_providers)
@click.option(
    "--grant-to",
    multiple=True,
    metavar="WHO",
    help="Who may submit jobs from then on, such as user/ada, group/ml or role/trainer. Repeatable. Nobody "
    "else gets permissions; you get them only if you name yourself.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be made, and make nothing.")
@click.option(
    "--print",
    "shown",
    type=click.Choice(["commands"]),
    help="Print commands for the cloud's own command line that would make the missing parts; make nothing.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="AMOUNT",
    help="Also make an alarm for when the account's monthly bill reaches this amount; needs --warn.",
)
@click.option("--warn", metavar="ADDRESS", help="The email address for the alarm.")
@click.option(
    "--remove", "removes", is_flag=True, help="Remove the parts that this command has made, and nothing else."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask first.")
@overrides_option
@store_option
@click.pass_context
def setup(
    ctx: click.Context,
    name: str,
    grant_to: tuple[str, ...],
    dry_run: bool,
    shown: str | None,
    budget: float | None,
    warn: str | None,
    removes: bool,
    yes: bool,
    overrides: Sequence[str],
    store_url: str | None,
) -> None:
    """Make everything that an account of PROVIDER needs before its first job.

    First shows what it will create, why, and at what cost, and asks for confirmation. Run this command with
    an administrator's credentials. It uses existing parts if they belong to the account and allow no more
    than needed; otherwise it stops and shows the difference. It never changes anything that it did not
    create. It records everything that it creates in your state directory, so that you can repeat it after an
    interruption at any point. Finally, it writes the store and the provider's options to your config file,
    and runs `providers check`.
    """
    # These import parsers and readers that `--help` does not need.
    from cloudspot.cli.account.parts import completed, look_at, make
    from cloudspot.cli.account.record import SetupRecord

    if (budget is None) != (warn is None):
        raise SpecError("--budget and --warn belong together: give an amount and an email address")
    provider = open_overridden(name, overrides)
    provider.require(Capability.SETUP)
    account = provider.account_setup()
    place = account.account()
    record = SetupRecord(name, place)
    asked = SetupRequest(store_url=store_url, grant_to=grant_to, monthly_limit=budget, warn=warn)
    request = completed(asked, record)
    if removes:
        _remove(name, account, record, request, dry_run=dry_run, yes=yes)
        return
    found = look_at(account.parts(request), record)
    if shown is None:
        output.echo(f"account {place}")
        for one in found:
            _echo_part(one)
    refused = [one for one in found if one.plan.value == "refuse"]
    if refused:
        excesses = "; ".join(
            f"{one.part.kind} {one.part.name}: {', '.join(one.state.excess)}" for one in refused
        )
        raise CloudspotError(f"nothing was made: {excesses}")
    missing = [one for one in found if one.plan.value in {"make", "complete"}]
    if shown is not None:
        for one in missing:
            for line in (f"# {one.part.kind} {one.part.name}: {one.part.purpose}", *one.part.commands):
                output.echo(line)
        return
    if dry_run:
        return
    if missing:
        output.confirm("Make these?", action="make them", otherwise="nothing was made", yes=yes)
    for part in make(found, request, record):
        output.echo(f"made {part.kind} {part.name}")
    settings = account.settings(request)
    _echo_settings(name, settings)
    results = check_all(open_overridden(name, overrides), settings.store_url, None)
    echo_results(results)
    ctx.exit(exit_codes.SUCCEEDED if all(one.ok for one in results) else exit_codes.FAILED)


def _remove(
    name: str, account: AccountSetup, record: SetupRecord, request: SetupRequest, *, dry_run: bool, yes: bool
) -> None:
    from cloudspot.cli.account.configfile import withdraw_settings
    from cloudspot.cli.account.parts import recorded_parts, remove

    parts = recorded_parts(account, record)
    for part in parts:
        output.echo(f"remove {part.kind} {part.name}")
    if not parts:
        output.echo("no parts of this account are recorded here as made by cloudspot setup")
        return
    if dry_run:
        return
    output.confirm_deletion(f"{len(parts)} parts of the account's setup", yes=yes)
    settings, path = account.settings(request), config_path()
    removal = remove(parts, settings.store_url, record)
    for number, (part, stays) in enumerate(removal):
        if number == 0 and path is not None:  # the bucket was removed, which could have been refused
            withdraw_settings(path, name, settings)
        named = f"{part.kind} {part.name}"
        output.echo(f"removed {named}" if stays is None else f"{named} {stays}")


def _echo_part(one: Found) -> None:
    part = one.part
    output.echo(f"{one.plan.value:>8}  {part.kind} {part.name}: {part.purpose} ({part.cost})")
    if one.plan.value in {"make", "complete"}:
        for right in part.rights:
            output.echo(f"{'':10}- {right}")
    for line in one.state.excess:
        output.echo(f"{'':10}! {line}")
    for line in one.state.lacks:
        output.echo(f"{'':10}lacks: {line}")


def _echo_settings(name: str, settings: SetupSettings) -> None:
    from cloudspot.cli.account.configfile import write_settings

    path = config_path()
    if path is None:
        raise SpecError(
            "the path of the config file is not known; set CLOUDSPOT_CONFIG and repeat this command"
        )
    for line in write_settings(path, name, settings):
        output.echo(f"{path}: {line}")
    for note in settings.notes:
        output.warn(note)
