"""The actions that ``decide`` can return. The loop carries them out; every action is safe to repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cloudspot.jobstore.layout.records import (
    Certificate,
    Finished,
    Kept,
    Repriced,
    Seat,
    StopReason,
    Suspended,
    VoidOutcome,
)
from cloudspot.model import Instance, Offer

UNSIGNED = ""
"""The writer of a record that has not been written yet."""


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
    """The least useful number of machines; if fewer come, the provider ends them all."""
    stands_in_for: tuple[Seat | None, ...] = ()
    """See ``records.Intent``."""
    why: str
    detail: str = ""


@dataclass(frozen=True)
class Create:
    """Send the request stored in an intent to the provider, with the intent's token."""

    launch: int


@dataclass(frozen=True)
class Announce:
    """Tag the machines of the newest generation with its endpoint and size; no decision needs the tags."""

    instances: tuple[Instance, ...]
    """In rank order."""
    facts: Mapping[str, str]
    """The tags, the same for all machines, with the names in ``model.ANNOUNCED``."""


@dataclass(frozen=True)
class VoidSeat:
    """Make a seat void unless a machine has claimed it."""

    seat: Seat
    outcome: VoidOutcome
    detail: str
    machines: tuple[str, ...] = ()
    """The machines that were started for the seat."""
    cause: str = ""
    """See ``records.Slot``."""


@dataclass(frozen=True)
class Certify:
    """Record that a machine has provably ended."""

    certificate: Certificate
    """The certificate, dated and signed when it is written."""


@dataclass(frozen=True)
class Append:
    """Append a record to the journal at ``number``."""

    number: int
    record: Finished | Suspended | Repriced | Kept
    """The record, dated and signed when it is written."""


@dataclass(frozen=True)
class Terminate:
    """End machines."""

    instance_ids: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class RequestStop:
    """Ask the nodes to checkpoint and end, because the job has reached a limit."""

    reason: StopReason
    detail: str = ""
    """The figures behind this, for people to read."""


@dataclass(frozen=True)
class CleanUp:
    """The job is over: delete its secrets."""


@dataclass(frozen=True)
class Release:
    """The job is over and its machines have ended: let the provider remove the resources made for them."""


@dataclass(frozen=True)
class Postpone:
    """Wait until ``seconds`` have passed before the next launch."""

    seconds: float
    why: str
    suspends: str | None = None
    """Why the job is suspended in the meantime; None if it is not suspended."""


Action = (
    FetchOffers
    | OpenLaunch
    | Create
    | Announce
    | VoidSeat
    | Certify
    | Append
    | Terminate
    | RequestStop
    | CleanUp
    | Release
    | Postpone
)
