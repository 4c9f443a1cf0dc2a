"""``cloudspot offers``: show what would be bought now, and the expected price including losses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from cloudspot.cli.preparing.preparedjob import PreparedJob, prepare_job
from cloudspot.cli.screen import output
from cloudspot.cli.screen.transfers import EXPLAINED, transfer_column
from cloudspot.cli.sharedoptions import (
    job_file_argument,
    json_option,
    overrides_option,
    provider_option,
    store_option,
)
from cloudspot.controller.assess.measured import DEFAULT_START_SECONDS
from cloudspot.controller.launchrequest import find_offers
from cloudspot.controller.prospects.earlier_jobs import EarlierJob, find_earlier
from cloudspot.controller.supply.expected_losses import ExpectedOffer, expected_offers
from cloudspot.controller.supply.experience import Experience, read_experience
from cloudspot.jobfile.amounts import money_text
from cloudspot.model import Market

HEADERS = (
    "TYPE",
    "ZONE",
    "MARKET",
    "PER HOUR",
    "OF ON DEMAND",
    "LOST A DAY",
    "UNTIL LOSS",
    "WITH RESTARTS",
    "SEEN",
)


@click.command("offers")
@job_file_argument
@provider_option
@overrides_option
@store_option
@json_option
def offers(
    job_file: Path, provider_name: str, overrides: tuple[str, ...], store_url: str | None, as_json: bool
) -> None:
    """Show what a job could buy now, and how soon it would be lost.

    Lists the suitable offers, ordered by price; the price includes the losses of spot machines that the
    store's jobs have observed.
    """
    prepared = prepare_job(job_file, provider_name, overrides, store_url)
    available = find_offers(prepared.spec, prepared.provider)
    experience = read_experience(prepared.store, provider_name)
    if experience.problem:
        output.warn(experience.problem)
    earlier = find_earlier(prepared.store, prepared.spec, provider_name, datetime.now(timezone.utc))
    start_seconds = DEFAULT_START_SECONDS if earlier is None else earlier.start_seconds
    expected = expected_offers(available, experience.knowledge, start_seconds)
    if as_json:
        output.echo_json(_json(prepared, expected, experience, start_seconds))
        return
    header, cells = transfer_column([one.offer for one in expected])
    output.echo_table(
        (*HEADERS, *header), [(*_row(one), *cell) for one, cell in zip(expected, cells, strict=True)]
    )
    for line in _explanation(expected, experience, earlier, start_seconds, prepared):
        output.echo(line)
    if header:
        output.echo(EXPLAINED)


def _row(one: ExpectedOffer) -> tuple[str, ...]:
    offer, share, is_spot = one.offer, one.price_share, one.offer.market is Market.SPOT
    return (
        offer.instance_type,
        offer.zone,
        offer.market.value,
        money_text(offer.price_per_hour, offer.currency),
        "" if share is None else f"{100 * share:.0f}%",
        f"{one.losses_per_day:.1f}" if is_spot else "",
        output.duration_text(3600 * one.hours_until_loss) if is_spot else "",
        money_text(one.effective_price, offer.currency),
        _seen(one) if is_spot else "",
    )


def _seen(one: ExpectedOffer) -> str:
    if one.watched_hours == 0:
        return "usual"
    losses = f"{one.num_losses:.0f} loss" + ("" if round(one.num_losses) == 1 else "es")
    return f"{losses} in {output.duration_text(3600 * one.watched_hours)}"


def _explanation(
    expected: Sequence[ExpectedOffer],
    experience: Experience,
    earlier: EarlierJob | None,
    start_seconds: float,
    prepared: PreparedJob,
) -> tuple[str, ...]:
    source = "not measured yet" if earlier is None else f"as in job {earlier.job_id}"
    start = f"a machine starts in {output.duration_text(start_seconds)} ({source})"
    if not any(one.offer.market is Market.SPOT for one in expected):
        return (start,)
    if not experience.num_jobs:
        seen = f"no job in {prepared.store.url} has seen this spot market yet, so usual values are assumed"
    else:
        hours = sum(sum(one.up_hours) + sum(one.down_hours) for one in experience.knowledge.tallies.values())
        jobs = "1 job" if experience.num_jobs == 1 else f"{experience.num_jobs} jobs"
        watched = output.duration_text(3600 * hours)
        seen = (
            f"SEEN: losses seen by {jobs} in {prepared.store.url} during {watched}; usual: no job was there"
        )
    return (seen, f"WITH RESTARTS: the price of an hour of training and of its restarts; {start}")


def _json(
    prepared: PreparedJob, expected: Sequence[ExpectedOffer], experience: Experience, start_seconds: float
) -> dict[str, Any]:
    return {
        "provider": prepared.provider.name,
        "store": prepared.store.url,
        "num_jobs": experience.num_jobs,
        "start_seconds": round(start_seconds, 3),
        "offers": [
            {
                "instance_type": one.offer.instance_type,
                "zone": one.offer.zone,
                "market": one.offer.market.value,
                "price_per_hour": one.offer.price_per_hour,
                "on_demand_price_per_hour": one.offer.on_demand_price_per_hour,
                "price_share": one.price_share,
                "currency": one.offer.currency,
                "transfer_price_per_gib": one.offer.transfer_price_per_gib,
                "losses_per_day": round(one.losses_per_day, 4),
                "hours_until_loss": round(one.hours_until_loss, 4),  # null for on-demand offers
                "effective_price_per_hour": round(one.effective_price, 6),
                "watched_hours": round(one.watched_hours, 4),
                "num_losses": round(one.num_losses, 4),
            }
            for one in expected
        ],
    }
