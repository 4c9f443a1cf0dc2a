"""What ``decide`` can ask for. The loop carries it out; every action is safe to repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.layout.records import JobOutcome, Seat, StopReason, VoidOutcome
from cloudspot.model import EndReason, Instance, Offer


@dataclass(frozen=True)
class FetchOffers:
    """Ask the provisioner for offers, then decide again."""


@dataclass(frozen=True, kw_only=True)
class OpenLaunch:
    """Append the intent of the next launch at journal record ``number``."""

    number: int
    launch: int
    offer: Offer
    num_nodes: int
    min_nodes: int
    """With fewer machines than this the launch is of no use, and the provider ends them."""
    stands_in_for: tuple[Seat | None, ...] = ()
    """See ``records.Intent``."""
    why: str
    detail: str = ""


@dataclass(frozen=True)
class Create:
    """Send an intent's own bytes to the provider, with its token."""

    launch: int


@dataclass(frozen=True)
class Announce:
    """Tag the machines of the newest generation with its endpoint and size; nothing depends on it."""

    instances: tuple[Instance, ...]
    """In rank order."""
    facts: Mapping[str, str]
    """The same for all of them; the names are those in ``model.ANNOUNCED``."""


@dataclass(frozen=True)
class VoidSeat:
    """Make a seat void unless a machine has claimed it."""

    seat: Seat
    outcome: VoidOutcome
    detail: str
    machines: tuple[str, ...] = ()
    """Those that are there for it."""
    cause: str = ""
    """See ``records.Slot``."""


@dataclass(frozen=True, kw_only=True)
class Certify:
    """Write down that a machine has provably ended: see ``records.Certificate``."""

    launch: int
    rank: int | None
    instance_id: str
    started_at: datetime
    ended_at: datetime
    end_reason: EndReason
    detail: str = ""


@dataclass(frozen=True)
class Finish:
    """Append the end of the job at journal record ``number``."""

    number: int
    outcome: JobOutcome
    detail: str
    exit_code: int


@dataclass(frozen=True)
class Suspend:
    """Append the suspension of the job at journal record ``number``."""

    number: int
    detail: str


@dataclass(frozen=True)
class Reprice:
    """Append the new price of a launch's nodes at journal record ``number``."""

    number: int
    launch: int
    price_per_hour: float


@dataclass(frozen=True)
class Terminate:
    """End machines."""

    instance_ids: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class RequestStop:
    """Ask the nodes to checkpoint and end, since the job has reached a limit."""

    reason: StopReason
    detail: str = ""
    """The figures, for people."""


@dataclass(frozen=True)
class CleanUp:
    """The job is over: delete its secrets."""


@dataclass(frozen=True)
class Release:
    """The job is over and its machines have ended: let the provider remove what it made for them."""


@dataclass(frozen=True)
class Wait:
    """Nothing to do for the next launch until ``seconds`` have passed."""

    seconds: float
    why: str
    suspends: str | None = None
    """Why the job is suspended meanwhile; None: it is not."""


Action = (
    FetchOffers
    | OpenLaunch
    | Create
    | Announce
    | VoidSeat
    | Certify
    | Finish
    | Reprice
    | Terminate
    | RequestStop
    | Suspend
    | CleanUp
    | Release
    | Wait
)
