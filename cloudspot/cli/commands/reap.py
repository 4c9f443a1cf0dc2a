"""``cloudspot reap``: end resources in the account whose jobs have ended or are in no store."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click
import msgspec

from cloudspot.cli import exit_codes
from cloudspot.cli.completers import complete_providers, complete_stores
from cloudspot.cli.config import named_store, open_configured
from cloudspot.cli.invocation import DEFAULT_PROVIDER, current_invocation
from cloudspot.cli.jobs import unnamed_store
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import STORE_VARIABLE, json_option, parsed
from cloudspot.controller.account_orphans import AccountReaper, Ended, Fate, Judged, Unlisted
from cloudspot.controller.ownership import store_label
from cloudspot.errors import CloudspotError, SpecError, StoreMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobfile.amounts import money_text
from cloudspot.jobfile.quantities import parse_duration
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.store_clock import store_time, utc_now
from cloudspot.jobstore.jobs.job_lists import list_live
from cloudspot.jobstore.jobs.store_inventory import SharedObjectInventory, UploadInventory
from cloudspot.registry import open_job_store, open_store

HEADERS = ("KIND", "A DAY", "WHERE", "ID", "WHY")


def _choose_stores(_ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> list[str]:
    """Return the URLs of the stores given after the command, before it, or in the variable, in this order."""
    assert param.name is not None
    if values:
        return [named_store(one, "--store").url for one in values]
    before, variable = current_invocation().store, os.environ.get(STORE_VARIABLE)
    if before:
        return [named_store(before, "--store").url]
    return [named_store(variable, STORE_VARIABLE).url] if variable else []


@click.command("reap")
@click.option(
    "--provider",
    "provider_names",
    multiple=True,
    default=(DEFAULT_PROVIDER,),
    show_default=True,
    metavar="NAME",
    shell_complete=complete_providers,
    help="The provider to look in. Repeatable.",
)
@click.option("--all-regions", is_flag=True, help="Look in every region of the account instead of one.")
@click.option(
    "--store",
    "store_urls",
    multiple=True,
    metavar="STORE",
    callback=_choose_stores,
    shell_complete=complete_stores,
    help=f"The store whose jobs decide. Repeatable. Default: as for other commands, with {STORE_VARIABLE}.",
)
@click.option(
    "--gone-store",
    "gone_urls",
    multiple=True,
    metavar="URL",
    help="A store that no longer exists: end everything that was made for it. Repeatable.",
)
@click.option(
    "--older-than",
    default="1h",
    show_default=True,
    metavar="DURATION",
    callback=parsed(parse_duration),
    help="Keep everything younger than this.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be ended, and end nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask first.")
@json_option
@click.pass_context
def reap(
    ctx: click.Context,
    provider_names: Sequence[str],
    all_regions: bool,
    store_urls: Sequence[str],
    gone_urls: Sequence[str],
    older_than: float,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """End what jobs have left in the account and in the bucket.

    This covers machines, disks, placement groups, schedules, drivers, unfinished uploads and staged agents:
    every resource that carries the tags of cloudspot and of this store and whose job has ended or is not in
    the store. The resources are shown first, with their daily cost, and the command asks before ending them.
    A resource is not ended if its job is live or cannot be read, if it is younger than an hour, or if it
    belongs to another store that --gone-store does not name.

    Not every provider lists the parts of drivers; `cloudspot driver remove` removes all parts of a driver.

    Exits with 1 if a resource could not be listed or ended.
    """
    stores = [open_job_store(url) for url in dict.fromkeys(store_urls or [unnamed_store().url])]
    gone = [_label_of_gone_store(url) for url in gone_urls]
    providers = [open_configured(name, None) for name in dict.fromkeys(provider_names)]
    accounts = map_parallel(
        lambda provider: provider.inventories(all_regions=all_regions), providers, num_threads=len(providers)
    )
    for store in stores:
        label = store_label(store)
        accounts.append([UploadInventory(store, label), SharedObjectInventory(store, label)])
    reaper = AccountReaper(
        accounts,
        stores,
        gone=gone,
        older_than=timedelta(seconds=older_than),
        now=partial(_time_of, stores),
    )
    judged, problems = reaper.find()
    orphans = [one for one in judged if one.fate is Fate.ORPHAN]
    if not as_json:
        _show(judged, problems, stores)
    done: Sequence[Ended] = ()
    if orphans and not dry_run:
        question = f"End {'this' if len(orphans) == 1 else f'these {len(orphans)} things'} permanently?"
        output.confirm(question, action="end them", otherwise="nothing was ended", yes=yes)
        done = reaper.end(orphans)
    if as_json:
        output.echo_json(_json(judged, problems, done))
    else:
        _show_ended(done)
    ctx.exit(exit_codes.FAILED if problems or any(one.error for one in done) else exit_codes.SUCCEEDED)


def _label_of_gone_store(url: str) -> str:
    """Return the label of a store that the user declares gone.

    Raises:
        SpecError: the store exists, and has live jobs.
        CloudspotError: the store may exist but cannot be read; its service does not report that the bucket is
            gone.
    """
    store = open_store(url)
    label = store_label(store)
    try:
        live = sorted(list_live(store))
    except StoreMissing:
        return label
    if live:
        raise SpecError(
            f"--gone-store: {url} still exists, and these of its jobs may be live: {', '.join(live)}"
        )
    return label


def _show(judged: Sequence[Judged], problems: Sequence[Unlisted], stores: Sequence[ObjectStore]) -> None:
    for problem in problems:
        output.warn(f"cannot look at {problem.title}: {problem.error}")
    orphans = [one for one in judged if one.fate is Fate.ORPHAN]
    if orphans:
        output.echo_table(HEADERS, [_row(one) for one in orphans])
        output.echo(_sum_text(orphans))
    else:
        output.echo(f"nothing to end from jobs in {', '.join(store.url for store in stores)}")
    kept = [one for one in judged if one.fate is Fate.KEPT]
    if kept:
        output.echo(f"{len(kept)} more are kept: live jobs need them, or they are young (--json lists them)")
    foreign = [one for one in judged if one.fate is Fate.FOREIGN]
    if foreign:
        output.echo("kept, because they belong to other stores (if a store is gone: --gone-store URL):")
        output.echo_table(HEADERS, [_row(one) for one in foreign])


def _row(one: Judged) -> tuple[str, ...]:
    asset = one.asset
    what = f"{asset.kind} ({asset.detail})" if asset.detail else asset.kind
    price = "?" if asset.price_per_day is None else money_text(asset.price_per_day, asset.currency)
    return what, price, asset.where, asset.id, one.why


def _sum_text(orphans: Sequence[Judged]) -> str:
    sums: dict[str, float] = defaultdict(float)
    for orphan in orphans:
        if orphan.asset.price_per_day is not None:
            sums[orphan.asset.currency] += orphan.asset.price_per_day
    num_unknown = sum(orphan.asset.price_per_day is None for orphan in orphans)
    parts = [money_text(amount, currency) for currency, amount in sorted(sums.items())]
    unknown = f"; the price of {num_unknown} is unknown" if num_unknown else ""
    return f"together {' and '.join(parts) or '?'} a day{unknown}"


def _show_ended(done: Sequence[Ended]) -> None:
    for ended in done:
        name = f"{ended.asset.kind} {ended.asset.id}"
        if ended.error is None:
            output.echo(f"ended {name}")
        else:
            output.warn(f"{name} was not ended: {ended.error}")


def _json(judged: Sequence[Judged], problems: Sequence[Unlisted], done: Sequence[Ended]) -> dict[str, Any]:
    results = {id(one.asset): one for one in done}

    def shown(one: Judged) -> dict[str, Any]:
        result = results.get(id(one.asset))
        error = None if result is None or result.error is None else str(result.error)
        return {
            **msgspec.structs.asdict(one.asset),
            "fate": one.fate.value,
            "why": one.why,
            "ended": result is not None and error is None,
            "error": error,
        }

    return {
        "assets": [shown(one) for one in judged],
        "unlisted": [{"title": one.title, "error": str(one.error)} for one in problems],
    }


def _time_of(stores: Sequence[ObjectStore]) -> datetime:
    """Return the time by the first store that answers or, if none does, by this computer's clock."""
    for store in stores:
        with suppress(CloudspotError):  # The search itself reports stores that do not answer.
            return store_time(store)
    return utc_now()
