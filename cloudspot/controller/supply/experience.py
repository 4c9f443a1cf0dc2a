"""What jobs learn of the spot market from one another, through the bucket: advice that nothing waits for."""

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
    """What the store's jobs have seen of a provider's spot market."""

    knowledge: Knowledge = field(default_factory=Knowledge)
    num_jobs: int = 0
    """From how many jobs it comes."""
    problem: str = ""
    """What could not be read, in a line."""


def read_experience(store: ObjectStore, provider: str) -> Experience:
    """Return what the newest jobs of the store have seen; a store that does not answer has seen nothing."""
    try:
        records = read_market_seen(store, provider)
    except CloudspotError as error:
        return Experience(problem=f"what earlier jobs saw of the spot market is not known: {error}")
    problem = ""
    if records.unreadable:
        others = f" and {len(records.unreadable) - 1} more" if len(records.unreadable) > 1 else ""
        problem = f"{records.unreadable[0]}{others}: malformed, and not counted; delete what no job wrote"
    return Experience(learned(records.found), len(records.found), problem)


def leave_experience(store: ObjectStore, history: History, provider: str, now: datetime) -> str | None:
    """Keep what the job has seen of the provider's market, if anything; return what went wrong."""
    try:
        seen = market_seen(history, now, provider=provider)
        if seen.tallies:
            write_market_seen(store, history.first_submission, provider, to_record(seen, now))
    except Exception as error:  # noqa: BLE001 - not even a bug may keep a job from being settled
        problem = as_cloudspot_error(error)
        return f"what the job saw of the spot market is not kept for later jobs: {problem}"
    return None
