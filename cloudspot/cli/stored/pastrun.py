"""Facts from a job's earlier run for the next one: its training time, its start, and prices."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cloudspot.cli.jobs import Job, open_job, open_named_store
from cloudspot.controller.assess.measured import restart_seconds, start_seconds
from cloudspot.controller.prospects.earlier_jobs import jobs_of_name, length_seconds
from cloudspot.errors import JobNotFound, SpecError
from cloudspot.jobfile.spec import load_job
from cloudspot.model import Market


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """An earlier run; durations are in seconds."""

    job_id: str
    length: float
    """The training time on machines that are never reclaimed."""
    overhead: float
    """The median time from the request for a machine until the machine trains."""
    spot_price: float | None
    """The price as a share of the on-demand price; None if it had no spot machine with a known price."""
    on_demand_price: float
    """The on-demand price per hour of all its machines."""
    currency: str
    deadline: float | None


def find_past_run(store_url: str | None, job_or_path: str, now: datetime) -> PastRun:
    """Return the facts from the job with this id, or from the newest job with this name in its job file.

    Raises:
        SpecError: the job's records do not show how long it trains.
        JobNotFound: there is no such job, or the newest jobs with that name do not show how long they train.
    """
    if not job_or_path.endswith(".toml"):
        return _read(open_job(store_url, job_or_path), now)
    spec = load_job(Path(job_or_path))
    store = open_named_store(store_url or spec.store)
    for job_id in jobs_of_name(store, spec.name):
        with suppress(SpecError):
            return _read(Job(store, job_id), now)
    raise JobNotFound(
        f"no job {spec.name!r} in {store.url} shows how long it trains; give --length instead of a job file"
    )


def _read(job: Job, now: datetime) -> PastRun:
    history = job.first_history
    offers = [launch.intent.offer for launch in reversed(history.launches) if launch.claimed]
    newest = next((one for one in offers if one.market is Market.SPOT), offers[0] if offers else None)
    length = length_seconds(history, now)
    if newest is None or length is None:
        raise SpecError(
            f"the records of job {job.id} do not show how long it trains; give --length instead of a job"
        )
    price, on_demand = newest.price_per_hour, newest.on_demand_price_per_hour
    return PastRun(
        job_id=job.id,
        length=length,
        overhead=start_seconds(history) + restart_seconds(history),
        spot_price=price / on_demand if newest.market is Market.SPOT and 0 < price <= on_demand else None,
        on_demand_price=on_demand * job.spec.nodes.max,
        currency=newest.currency,
        deadline=job.spec.spot.deadline,
    )
