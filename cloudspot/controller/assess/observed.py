"""What one controller sees at one moment, apart from the bucket: the input of ``decide``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import Ending, Seat, VoidOutcome
from cloudspot.market.knowledge import NOTHING_KNOWN, Knowledge
from cloudspot.model import Instance, Offer


def stop_of(history: History) -> Ending:
    """Return the ending that a request to stop the job is."""
    return Ending("stop", resumption=history.submission.resumption)


def end_of(history: History) -> Ending:
    """Return the ending that the end of the job is."""
    return Ending("finished", resumption=history.submission.resumption)


@dataclass(frozen=True)
class CreateFailure:
    """A definite refusal that this controller got when it tried to create a launch."""

    launch: int
    outcome: VoidOutcome
    detail: str


@dataclass(frozen=True)
class ConsoleTail:
    """The end of a machine's console."""

    cause: str = ""
    """Why it will never run the agent; empty: it has not said so."""
    line: str = ""
    """The last line that cloudspot has written to it, or else the very last."""
    is_final: bool = False
    """Whether the machine had ended when its console was read: nothing came after it."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The provider's word, and what this controller's own clock and memory add to it.

    A controller that has just started knows less, and ``decide`` then waits longer; it must never conclude
    more from less. One that makes a single pass goes on from what earlier passes have left in the store.
    """

    instances: tuple[Instance, ...] | None
    """The job's machines by the newest listing; None: the listing failed, and nothing is known."""
    created: Mapping[int, tuple[Instance, ...]] = field(default_factory=dict)
    """By launch: what ``create`` has returned to this controller; a listing may lag."""
    vanished: tuple[Instance, ...] = ()
    """Machines that an earlier listing or an answer of ``create`` had and the newest listing lacks."""
    absent_seconds: Mapping[str, float] = field(default_factory=dict)
    """For each known machine that the newest listing lacks: for how long it has been missing.

    A machine is known once a seat, a listing or an answer of ``create`` has named it. Counted by the
    monotonic clock, and only between listings that succeeded.
    """
    known_seconds: Mapping[str, float] = field(default_factory=dict)
    """For each known machine: how long this controller has known it, by the monotonic clock."""
    silent_seconds: Mapping[Seat, float] = field(default_factory=dict)
    """For each live seat that is claimed: how long its node's heartbeat has not changed.

    Counted by the monotonic clock, and only while this controller's own reads succeed.
    """
    ending_seconds: Mapping[Ending, float] = field(default_factory=dict)
    """For each ending that this controller knows of: for how long it has known, counted like a silence."""
    intent_seconds: Mapping[int, float] = field(default_factory=dict)
    """By launch: the age of its intent, at the most: by its own time or since first sight."""
    token_seconds: float
    """The provisioner's figure."""
    absence_proves_after_seconds: float
    """The provisioner's figure."""
    offers: tuple[Offer, ...] | None = None
    """What can be bought; None: not asked for yet (``decide`` then returns FetchOffers)."""
    offers_seconds: float = math.inf
    """How long ago this controller last asked what can be bought."""
    knowledge: Knowledge = NOTHING_KNOWN
    """What is known of the spot market."""
    prices: Mapping[int, float] = field(default_factory=dict)
    """By launch: what one of its nodes costs an hour now, where the provider was asked and has told."""
    create_failures: Mapping[int, CreateFailure] = field(default_factory=dict)
    """By launch: the refusals that this controller has seen."""
    console_tails: Mapping[str, ConsoleTail] = field(default_factory=dict)
    """By machine: what its console said when this controller read it."""

    def why_ended(self, instance: Instance) -> str:
        """Return why the machine ended, as far as its provider and its console tell; empty: they do not."""
        tail = self.console_tails.get(instance.id, ConsoleTail())
        said = tail.cause or (tail.line if tail.is_final else "")
        return "; ".join(filter(None, (instance.detail, said and f"its console ends with: {said}")))

    def machines_of(self, launch: LaunchHistory) -> tuple[Instance, ...]:
        """Return the launch's machines that are listed, or that our own ``create`` has returned."""
        listed = [one for one in self.instances or () if one.launch == launch.number]
        ids = {one.id for one in listed}
        return (*listed, *(one for one in self.created.get(launch.number, ()) if one.id not in ids))
