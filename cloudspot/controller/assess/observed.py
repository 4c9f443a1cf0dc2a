"""A controller's observations outside the bucket at one moment: an input of ``decide``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import Ending, Seat, VoidOutcome
from cloudspot.market.knowledge import NOTHING_KNOWN, Knowledge
from cloudspot.model import Instance, Offer


def stop_of(history: History) -> Ending:
    """Return the ending that represents the request to stop the job."""
    return Ending("stop", resumption=history.submission.resumption)


def end_of(history: History) -> Ending:
    """Return the ending that represents the end of the job."""
    return Ending("finished", resumption=history.submission.resumption)


@dataclass(frozen=True)
class CreateFailure:
    """A definite refusal of this controller's request to create a launch."""

    launch: int
    outcome: VoidOutcome
    detail: str


@dataclass(frozen=True)
class ConsoleTail:
    """The end of a machine's console."""

    cause: str = ""
    """Why the machine will never run the agent; empty if the console does not state it."""
    line: str = ""
    """The last line that cloudspot wrote to the console or, without one, the console's last line."""
    is_final: bool = False
    """Whether the machine had ended when its console was read, so that no more output follows."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The provider's answers, together with the results of this controller's own clock and memory.

    A controller that has just started knows less, so ``decide`` waits longer; less knowledge must never lead
    to more conclusions. A controller that makes a single pass continues from the notes that earlier passes
    left.
    """

    instances: tuple[Instance, ...] | None
    """The job's machines by the newest listing; None if the listing failed, so that nothing is known."""
    created: Mapping[int, tuple[Instance, ...]] = field(default_factory=dict)
    """The machines that ``create`` returned to this controller, by launch, because a listing may lag."""
    vanished: tuple[Instance, ...] = ()
    """Machines from an earlier listing or an answer of ``create`` that the newest listing lacks."""
    absent_seconds: Mapping[str, float] = field(default_factory=dict)
    """How long each known machine that the newest listing lacks has been missing.

    A machine is known once a seat, a listing or an answer of ``create`` has named it. The time counts by the
    monotonic clock, and only between successful listings.
    """
    known_seconds: Mapping[str, float] = field(default_factory=dict)
    """How long this controller has known each known machine, by the monotonic clock."""
    silent_seconds: Mapping[Seat, float] = field(default_factory=dict)
    """How long the node's heartbeat has not changed, for each live seat that is claimed.

    The time counts by the monotonic clock, and only while this controller's own reads succeed.
    """
    ending_seconds: Mapping[Ending, float] = field(default_factory=dict)
    """How long this controller has known of each known ending, counted in the same way as a silence."""
    intent_seconds: Mapping[int, float] = field(default_factory=dict)
    """The greatest possible age of each launch's intent, by the intent's own time or since first sight."""
    token_seconds: float
    """``Provisioner.token_seconds``, as the provider states it."""
    absence_proves_after_seconds: float
    """``Provisioner.absence_proves_after_seconds``, as the provider states it."""
    offers: tuple[Offer, ...] | None = None
    """The offers that can be bought; None if not requested yet (``decide`` then returns FetchOffers)."""
    offers_seconds: float = math.inf
    """The time since this controller last asked for offers."""
    knowledge: Knowledge = NOTHING_KNOWN
    """The knowledge of the spot market."""
    prices: Mapping[int, float] = field(default_factory=dict)
    """By launch, the present price of one node per hour, where the provider has reported it."""
    create_failures: Mapping[int, CreateFailure] = field(default_factory=dict)
    """By launch, the refusals that this controller has received."""
    console_tails: Mapping[str, ConsoleTail] = field(default_factory=dict)
    """By machine, the end of its console as this controller last read it."""

    def why_ended(self, instance: Instance) -> str:
        """Return why the machine ended, by its provider and its console; empty if neither states a reason."""
        tail = self.console_tails.get(instance.id, ConsoleTail())
        reason = tail.cause or (tail.line if tail.is_final else "")
        return "; ".join(filter(None, (instance.detail, reason and f"its console ends with: {reason}")))

    def machines_of(self, launch: LaunchHistory) -> tuple[Instance, ...]:
        """Return the launch's machines from the listing and from this controller's own ``create``."""
        listed = [one for one in self.instances or () if one.launch == launch.number]
        ids = {one.id for one in listed}
        return (*listed, *(one for one in self.created.get(launch.number, ()) if one.id not in ids))
