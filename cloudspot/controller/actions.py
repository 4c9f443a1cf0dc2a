"""What ``decide`` can ask for. The loop carries it out; every action is safe to repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cloudspot.jobstore.records import JobOutcome, LaunchOutcome, Machine, StopReason, VoidOutcome
from cloudspot.model import Instance, Offer


@dataclass(frozen=True)
class FetchOffers:
    """Ask the provisioner for offers, then decide again."""


@dataclass(frozen=True)
class OpenLaunch:
    """Append the intent of the next launch at journal record ``number``."""

    number: int
    launch: int
    offer: Offer
    why: str


@dataclass(frozen=True)
class Create:
    """Send the open intent's own bytes to the provider, with its token."""

    launch: int


@dataclass(frozen=True)
class Announce:
    """Tell the machines of the open launch about each other; nothing depends on it."""

    launch: int
    instances: tuple[Instance, ...]
    """By rank."""
    facts: Mapping[str, str]
    """The same for all of them; the names are those in ``model.ANNOUNCED``."""


@dataclass(frozen=True)
class VoidSlot:
    """Make a slot void unless a machine has claimed it: a launch with a void slot can never train."""

    launch: int
    rank: int
    outcome: VoidOutcome
    """The outcome with which the launch is closed once the void stands."""
    detail: str


@dataclass(frozen=True)
class CloseLaunch:
    """Append the end of the open launch at journal record ``number``."""

    number: int
    launch: int
    outcome: LaunchOutcome
    detail: str
    machines: tuple[Machine, ...]


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
class Terminate:
    """End machines."""

    instance_ids: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class RequestStop:
    """Ask the nodes to checkpoint and end, since the job has reached a limit."""

    reason: StopReason


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
    | VoidSlot
    | CloseLaunch
    | Finish
    | Terminate
    | RequestStop
    | Suspend
    | CleanUp
    | Release
    | Wait
)
