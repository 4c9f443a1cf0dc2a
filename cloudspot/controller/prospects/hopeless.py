"""Find, before anything is bought, limits that a job will miss, and work that it will never save; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from cloudspot.controller.supply.expected_losses import expected_offers
from cloudspot.jobfile.amounts import money_text
from cloudspot.jobfile.spec import JobSpec
from cloudspot.market.hazards import changes_within
from cloudspot.market.knowledge import Knowledge, pool
from cloudspot.model import Market, Offer

MAX_TRIES: Final = 20.0
"""A job is hopeless if more machines than this must be started until one lasts long enough."""


def past_deadline(spec: JobSpec, *, length_seconds: float, start_seconds: float) -> str | None:
    """Return a message if the job misses its deadline even without any loss, otherwise None."""
    deadline = spec.spot.deadline
    if deadline is None or length_seconds + start_seconds <= deadline:
        return None
    return (
        f"spot.deadline: {_hours(length_seconds)} of training and {_hours(start_seconds)} for the start are "
        f"{_hours(length_seconds + start_seconds)}, on demand too; the deadline is {_hours(deadline)}"
    )


def past_max_cost(
    spec: JobSpec, offers: Sequence[Offer], *, length_seconds: float, spent: float = 0.0
) -> str | None:
    """Return a message if the job exceeds ``limits.max_cost`` even without any loss, otherwise None.

    ``offers`` are the offers that the job's policy allows, in the currency of the limit.
    """
    limit = spec.limits.max_cost
    cheapest = min(offers, key=lambda one: one.price_per_hour)
    least = length_seconds / 3600 * spec.nodes.max * cheapest.price_per_hour
    if limit is None or spent + least <= limit:
        return None
    currency = cheapest.currency
    before = f", and {money_text(spent, currency)} is spent" if spent else ""
    return (
        f"limits.max_cost: {_hours(length_seconds)} x {spec.nodes.max} x "
        f"{money_text(cheapest.price_per_hour, currency)} an hour is {money_text(least, currency)} at least"
        f"{before}; the limit is {money_text(limit, currency)}"
    )


def never_saved(
    spec: JobSpec,
    offers: Sequence[Offer],
    knowledge: Knowledge,
    *,
    unsaved_seconds: float,
    start_seconds: float,
) -> str | None:
    """Return a message if hardly any spot machine lasts until its work is saved, otherwise None.

    ``unsaved_seconds`` is the training time until the first work is saved outside the machine. The result is
    None for a job that may buy on-demand machines.
    """
    expected = expected_offers(offers, knowledge, start_seconds)
    if spec.spot.policy != "spot" or not expected:
        return None
    best = max(expected, key=lambda one: one.hours_until_loss)
    if best.offer.market is not Market.SPOT:
        return None
    stretch = unsaved_seconds + start_seconds
    factor = knowledge.loss_factor(pool(best.offer.zone, best.offer.instance_type))
    losses = factor * changes_within(knowledge.usual.loss, stretch / 3600)
    if losses <= math.log(MAX_TRIES):
        return None
    tries = f"one in {math.exp(losses):,.0f}" if losses < 14 else "none in a million"
    lasts = _hours(3600 * best.hours_until_loss)
    return (
        f"spot.policy: a spot machine lasts {lasts} in the mean, and its first work is saved after "
        f"{_hours(stretch)}; {tries} lasts so long"
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
