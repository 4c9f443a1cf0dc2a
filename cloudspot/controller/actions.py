"""What ``decide`` can ask for; the loop carries it out, and any of it may be repeated safely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cloudspot.jobstore.records import Machine
from cloudspot.model import Instance, Offer


@dataclass(frozen=True)
class FetchOffers:
    """Ask the provisioner for offers and decide again."""


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
    """Tell the machines of the open launch of each other; nothing depends on it."""

    launch: int
    instances: tuple[Instance, ...]
    """By rank."""
    facts: Mapping[str, str]
    """The same for all of them; names of ``model.ANNOUNCED``."""


@dataclass(frozen=True)
class VoidSlot:
    """Put void into a slot if no machine has claimed it: a void launch can never train."""

    launch: int
    rank: int
    outcome: str
    """What the launch is closed with once the void stands."""
    detail: str


@dataclass(frozen=True)
class CloseLaunch:
    """Append the open launch's end at journal record ``number``."""

    number: int
    launch: int
    outcome: str
    detail: str
    machines: tuple[Machine, ...]


@dataclass(frozen=True)
class Finish:
    """Append the job's end at journal record ``number``."""

    number: int
    outcome: str
    detail: str
    exit_code: int


@dataclass(frozen=True)
class Terminate:
    """End machines."""

    instance_ids: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class RequestStop:
    """Ask the nodes to checkpoint and end, on behalf of a limit."""

    reason: str
    """``max_cost`` or ``max_runtime``."""


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
    | CleanUp
    | Release
    | Wait
)
