"""The expected cost of a job, shown before anything is bought, and the refusal of hopeless jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar

import click

from cloudspot.cli.preparing.preparedjob import PreparedJob, saves_nothing
from cloudspot.cli.screen import output
from cloudspot.controller.assess.measured import DEFAULT_START_SECONDS
from cloudspot.controller.prospects.earlier_jobs import EarlierJob, find_earlier
from cloudspot.controller.prospects.forecast import Forecast, forecast
from cloudspot.controller.prospects.hopeless import never_saved, past_deadline, past_max_cost
from cloudspot.controller.supply.experience import Experience, read_experience
from cloudspot.errors import SpecError
from cloudspot.jobfile.amounts import money_text
from cloudspot.jobfile.spec import JobSpec
from cloudspot.model import Offer
from cloudspot.plugin.setupimages import image_of

_Command = TypeVar("_Command", bound=Callable[..., Any])


def anyway_option(command: _Command) -> _Command:
    """Add ``--anyway``."""
    option = click.option(
        "--anyway",
        is_flag=True,
        help="Submit the job even if, by the estimates, it cannot keep its deadline, its limits or its work.",
    )
    return option(command)


@dataclass(frozen=True, kw_only=True)
class Prospects:
    """The estimates for a job before its submission."""

    experience: Experience
    earlier: EarlierJob | None
    length_seconds: float | None
    """The duration of the job's training; None if unknown."""
    start_seconds: float
    forecast: Forecast | None
    why_none: str
    """Why there is no forecast."""


def find_prospects(prepared: PreparedJob, offers: Sequence[Offer], *, anyway: bool) -> Prospects:
    """Return the estimates for a new job; ``offers`` are those that its policy allows.

    Raises:
        SpecError: according to the estimates the job cannot succeed, and ``anyway`` is not given.
    """
    spec, store, provider = prepared.spec, prepared.store, prepared.provider.name
    experience = read_experience(store, provider)
    if experience.problem:
        output.warn(experience.problem)
    earlier = find_earlier(store, spec, provider, datetime.now(timezone.utc))
    start = DEFAULT_START_SECONDS if earlier is None else earlier.start_seconds
    length = spec.spot.length or (None if earlier is None else earlier.length_seconds)
    # Another run with that name may differ in length, which is good enough for a forecast, but not for a
    # refusal.
    certain = spec.spot.length or (length if earlier is not None and earlier.is_same_run else None)
    refuse(
        [
            *hopeless(spec, offers, length_seconds=certain, start_seconds=start),
            _never_saved(prepared, offers, experience, earlier, certain, start),
        ],
        anyway=anyway,
    )
    expected, why_none = None, ""
    if length is None:
        why_none = f"no job {spec.name!r} has trained on such machines yet; for an estimate, set spot.length"
    elif spec.spot.policy != "on-demand" and saves_nothing(prepared):
        why_none = "nothing of the work outlives its machine"
    else:
        expected = forecast(spec, offers, experience.knowledge, length_seconds=length, start_seconds=start)
    return Prospects(
        experience=experience,
        earlier=earlier,
        length_seconds=length,
        start_seconds=start,
        forecast=expected,
        why_none=why_none,
    )


def hopeless(
    spec: JobSpec,
    offers: Sequence[Offer],
    *,
    length_seconds: float | None,
    start_seconds: float,
    spent: float = 0.0,
) -> list[str | None]:
    """Return why the job cannot meet its deadline or its limit, as far as its length is known."""
    if length_seconds is None:
        return []
    return [
        past_deadline(spec, length_seconds=length_seconds, start_seconds=start_seconds),
        past_max_cost(spec, offers, length_seconds=length_seconds, spent=spent),
    ]


def refuse(reasons: Sequence[str | None], *, anyway: bool) -> None:
    """Raise SpecError with the first of the reasons; if ``anyway``, only warn of all of them."""
    for reason in filter(None, reasons):
        if not anyway:
            raise SpecError(f"{reason}; --anyway submits it regardless")
        output.warn(reason)


def _never_saved(
    prepared: PreparedJob,
    offers: Sequence[Offer],
    experience: Experience,
    earlier: EarlierJob | None,
    length: float | None,
    start: float,
) -> str | None:
    checkpoint = prepared.spec.checkpoint
    unsaved: float | None = None
    if saves_nothing(prepared):
        unsaved = length
    elif checkpoint.directory is not None and checkpoint.on_notice is None:
        unsaved = checkpoint.interval or (None if earlier is None else earlier.commit_seconds)
    if unsaved is None:
        return None
    return never_saved(
        prepared.spec, offers, experience.knowledge, unsaved_seconds=unsaved, start_seconds=start
    )


def outlook(prospects: Prospects, spec: JobSpec, offers: Sequence[Offer]) -> Iterator[str]:
    """Yield lines about the cost of a new job; ``offers`` are as for ``find_prospects``."""
    first, num = offers[0], spec.nodes.max
    price = money_text(num * first.price_per_hour, first.currency)
    yield f"buys {num} x {first.instance_type} in {first.zone} ({first.market.value}), {price} an hour in all"
    yield prospects_text(prospects, spec)
    limits = spec.limits
    ends = []
    if limits.max_cost is not None:
        ends.append(f"{money_text(limits.max_cost, limits.currency or first.currency)} (limits.max_cost)")
    if limits.max_runtime is not None:
        ends.append(f"{output.duration_text(limits.max_runtime)} of machines (limits.max_runtime)")
    yield f"stops at {' or '.join(ends)}" if ends else "no limit; set one with limits.max_cost"


def prospects_text(prospects: Prospects, spec: JobSpec) -> str:
    """Return one line with the estimates and their basis."""
    expected, earlier = prospects.forecast, prospects.earlier
    if expected is None:
        return f"expected: unknown, because {prospects.why_none}"
    low, high = expected.cost
    digits = 0 if min(expected.on_demand_cost, high) >= 20 else 2

    def amount(value: float) -> str:
        return f"{value:,.{digits}f}"

    phrases = [f"expected: {_range_text(low, high, amount)} {expected.currency}"]
    phrases[0] += f" (on demand: {amount(expected.on_demand_cost)})"
    low_end, high_end = (3600 * one for one in expected.end_hours)
    phrases.append(f"ends in {_range_text(low_end, high_end, output.duration_text)}")
    if expected.on_demand_hours >= 1 / 60:
        phrases.append(f"on demand for {output.duration_text(3600 * expected.on_demand_hours)}")
    if expected.late_share > 0:
        phrases.append(f"late in {max(1, round(100 * expected.late_share))}% of cases")
    assert prospects.length_seconds is not None, "there is a forecast"
    length = output.duration_text(prospects.length_seconds)
    source = "spot.length" if spec.spot.length or earlier is None else f"job {earlier.job_id}"
    num = prospects.experience.num_jobs
    market = "a usual market" if not num else f"the market of {num} job" + ("" if num == 1 else "s")
    return f"{', '.join(phrases)}; by {length} of training ({source}) and {market}"


def _range_text(low: float, high: float, text: Callable[[float], str]) -> str:
    if math.isinf(low):
        return "unknown"
    if math.isinf(high):
        return f"{text(low)} or more"
    return text(low) if text(low) == text(high) else f"{text(low)} to {text(high)}"


def prospects_json(prospects: Prospects) -> dict[str, Any] | None:
    """Return the forecast for ``--json``, or None; non-finite numbers become null."""
    expected = prospects.forecast
    if expected is None or prospects.length_seconds is None:
        return None
    return {
        "cost_low": round(expected.cost[0], 6),
        "cost_high": round(expected.cost[1], 6),
        "on_demand_cost": round(expected.on_demand_cost, 6),
        "currency": expected.currency,
        "end_seconds_low": round(3600 * expected.end_hours[0], 3),
        "end_seconds_high": round(3600 * expected.end_hours[1], 3),
        "on_demand_seconds": round(3600 * expected.on_demand_hours, 3),
        "num_losses": round(expected.num_losses, 3),
        "late_share": round(expected.late_share, 4),
        "length_seconds": round(prospects.length_seconds, 3),
        "start_seconds": round(prospects.start_seconds, 3),
        "earlier_job": None if prospects.earlier is None else prospects.earlier.job_id,
        "num_jobs": prospects.experience.num_jobs,
    }


def setup_text(offers: Sequence[Offer]) -> Iterator[str]:
    """Yield a line if machines of the offers start from images on which the setup has run."""
    images = [image_of(one) for one in offers]
    found = sorted({one for one in images if one is not None})
    if found:
        some = "" if None not in images else ", for some of the offers"
        yield f"machines start from {', '.join(found)}{some}, with the setup done"
