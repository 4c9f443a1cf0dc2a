"""Share jobs' experience of the spot market through the bucket, as advice for which no driver waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from cloudspot.errors import CloudspotError, as_cloudspot_error
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.jobs.market_records import read_market_seen, write_market_seen
from cloudspot.jobstore.journal.history import History
from cloudspot.market.knowledge import Knowledge
from cloudspot.story.market_seen import learned, market_seen, to_record


@dataclass(frozen=True)
class Experience:
    """The experience of a store's jobs with a provider's spot market."""

    knowledge: Knowledge = field(default_factory=Knowledge)
    num_jobs: int = 0
    """The number of jobs that have contributed."""
    problem: str = ""
    """A line about records that could not be read, or an empty string."""


def read_experience(store: ObjectStore, provider: str) -> Experience:
    """Return the experience of the store's newest jobs; empty if the store does not answer."""
    try:
        records = read_market_seen(store, provider)
    except CloudspotError as error:
        return Experience(problem=f"what earlier jobs saw of the spot market is not known: {error}")
    problem = ""
    if records.unreadable:
        others = f" and {len(records.unreadable) - 1} more" if len(records.unreadable) > 1 else ""
        problem = (
            f"{records.unreadable[0]}{others}: malformed, so not counted; delete objects that no job wrote"
        )
    return Experience(learned(records.found), len(records.found), problem)


def leave_experience(store: ObjectStore, history: History, provider: str, now: datetime) -> str | None:
    """Keep the job's experience of the provider's market, if it has any; return the problem or None."""
    try:
        seen = market_seen(history, now, provider=provider)
        if seen.tallies:
            write_market_seen(store, history.first_submission, provider, to_record(seen, now))
    except Exception as error:  # noqa: BLE001 - not even a bug may keep a job from being settled
        problem = as_cloudspot_error(error)
        return f"what the job saw of the spot market is not kept for later jobs: {problem}"
    return None
