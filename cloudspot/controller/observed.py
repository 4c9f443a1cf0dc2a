"""What one controller sees at one moment, apart from the bucket: the input of ``decide``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudspot.jobstore.history import History
from cloudspot.jobstore.records import Ending, VoidOutcome
from cloudspot.model import Instance, Offer


def stop_of(history: History) -> Ending:
    """Return the ending that a request to stop the job is."""
    return Ending(resumption=history.submission.resumption)


@dataclass(frozen=True)
class CreateFailure:
    """A definite refusal that this controller got when it tried to create a launch."""

    launch: int
    outcome: VoidOutcome
    detail: str


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The provider's word, and what this controller's own clock and memory add to it.

    A controller that has just started knows less, and ``decide`` then waits longer; it must never conclude
    more from less. One that makes a single pass goes on from what earlier passes have left in the store.
    """

    instances: tuple[Instance, ...] | None
    """The job's machines by the newest listing; None: the listing failed, and nothing is known."""
    created: tuple[Instance, ...] = ()
    """What ``create`` has returned to this controller for the open launch; a listing may lag."""
    absent_seconds: Mapping[str, float] = field(default_factory=dict)
    """For each known machine that the newest listing lacks: for how long it has been missing.

    A machine is known once a slot, a listing or an answer of ``create`` has named it. Counted by the
    monotonic clock, and only between listings that succeeded.
    """
    known_seconds: Mapping[str, float] = field(default_factory=dict)
    """For each known machine: how long this controller has known it, by the monotonic clock."""
    silent_seconds: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """For each (launch, rank) of the open attempt: how long its heartbeat has not changed.

    Counted by the monotonic clock, and only while this controller's own reads succeed.
    """
    ending_seconds: Mapping[Ending, float] = field(default_factory=dict)
    """For each ending that this controller knows of: for how long it has known, counted like a silence."""
    token_age_seconds: float = 0.0
    """The age of the open intent, at the most: by its own time or since first sight, whichever is longer."""
    token_seconds: float
    """The provisioner's figure."""
    absence_proves_after_seconds: float
    """The provisioner's figure."""
    offers: tuple[Offer, ...] | None = None
    """What can be bought; None: not asked for yet (``decide`` then returns FetchOffers)."""
    create_failure: CreateFailure | None = None
    """The refusal of the open launch, when this controller has seen one."""
