"""Detect failed nodes, and decide on the next generation (P3); no I/O.

The protocol has no leader. Each agent looks at the same records and heartbeats and reaches its own verdict.
Only one agent can create the generation record, which makes its verdict valid for all.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from cloudspot.jobstore.layout.records import (
    CheckpointId,
    Exit,
    Generation,
    Heartbeat,
    Intent,
    JournalRecord,
    Kept,
    NodeOutcome,
    Resumed,
    Seat,
)

SUSPECT_SECONDS = 20.0
"""A peer whose counter has not changed for this long, by this reader's clock, counts as lost."""
START_SECONDS = 120.0
"""If some members do not run a generation after this long, the next generation excludes them, unless they are
still busy restoring or delivering."""
BUSY_SECONDS = 1800.0
"""Ready nodes wait this long for a node that is restoring or delivering; after that, it counts as stuck."""
LATE_SECONDS = 60.0
"""If enough nodes are ready, they wait this long for others still preparing, which can join later."""
UNCLAIMED_SECONDS = 20 * 60.0
"""Nodes do not wait for a seat that has been unclaimed for this long."""
MAX_PASS_SECONDS = 5.0
"""The most that one pass adds to a peer's silence: a reader that was suspended could not listen."""


PREPARING_STATES = frozenset({"setup", "staging"})
"""The states of a node before its first generation, whose duration is unknown."""
BUSY_STATES = frozenset({"draining", "uploading", "restoring"})
"""The states of a node that lives but is not ready for the next generation."""


class Liveness(enum.Enum):
    """The status of a peer, as far as this node knows."""

    FRESH = "fresh"
    """The peer's counter has changed since the check began, so the peer lives."""
    UNKNOWN = "unknown"
    """Nothing has been heard from the peer since the check began: wait."""
    SUSPECT = "suspect"
    """The peer has been silent for too long and counts as lost."""
    BUSY = "busy"
    """The peer lives, but must first deliver or restore: a generation would wait for it."""
    LEAVING = "leaving"
    """The peer has written its exit record or is about to, or has a notice."""


@dataclass
class _Heard:
    """The counters heard from one peer."""

    counter: object = None
    silent_seconds: float = 0.0
    first: object = None
    """The counter at the first look since the check began; an earlier beat proves nothing."""
    has_moved: bool = False
    """Whether the counter has changed since that first look."""


@dataclass
class PeerClock:
    """Measures, on this node's clock, each peer's silence while this node can listen.

    A pass in which the store failed adds no silence, so peers do not count as lost after an outage.
    """

    heard_seconds: float = 0.0
    """The total time during which this node could listen."""
    _heard: dict[Seat, _Heard] = field(default_factory=dict)
    _last: float | None = None
    _marked_at: float = -math.inf

    def hear(
        self, now: float, counters: Mapping[Seat, object] | None, *, asked_at: float | None = None
    ) -> None:
        """Process the counters of one pass, or None if the store failed.

        A counter is any value that differs from beat to beat, or None before the peer's first beat.

        ``now`` is monotonic; ``asked_at`` is when the pass began.
        """
        passed = 0.0 if self._last is None else min(now - self._last, MAX_PASS_SECONDS)
        self._last = now
        if counters is None:
            return
        self.heard_seconds += passed
        for seat, counter in counters.items():
            heard = self._heard.setdefault(seat, _Heard())
            if counter is None or counter == heard.counter:
                heard.silent_seconds += passed
            else:
                heard.counter, heard.silent_seconds = counter, 0.0
            if heard.first is not None:
                heard.has_moved = heard.has_moved or counter != heard.first
            elif (now if asked_at is None else asked_at) >= self._marked_at:
                heard.first = counter

    def mark(self, now: float) -> None:
        """Begin a new check: only a counter that changes from now on proves that its peer lives.

        The last beat of a node that has just died may still be unread, so the next look only sets each
        counter's first value.
        """
        self._marked_at = now
        for heard in self._heard.values():
            heard.first, heard.has_moved = None, False

    def liveness(self, seat: Seat) -> Liveness:
        """Return a peer's liveness, judged by its silence alone."""
        heard = self._heard.get(seat)
        if heard is None:
            return Liveness.UNKNOWN
        if heard.silent_seconds >= SUSPECT_SECONDS:
            return Liveness.SUSPECT
        return Liveness.FRESH if heard.has_moved else Liveness.UNKNOWN

    def suspects(self, seats: Iterable[Seat]) -> frozenset[Seat]:
        """Return the nodes that count as lost."""
        return frozenset(seat for seat in seats if self.liveness(seat) is Liveness.SUSPECT)


@dataclass(frozen=True)
class Roster:
    """The nodes that may be in the next generation, by the journal."""

    newest: Generation | None
    """The newest generation, of any run of the job."""
    members: tuple[Seat, ...]
    """The generation's nodes in rank order; none if the job was resumed since then."""
    ever: frozenset[Seat]
    """The nodes of all generations."""
    seats: frozenset[Seat]
    """The seats of all launches since the job was last resumed."""
    principals: Mapping[Seat, Seat]
    """Maps each stand-in to the node that it replaces."""
    kept: Kept | None = None
    """The node that is kept for inspection after its failure, if any since the job was last resumed."""

    @cached_property
    def candidates(self) -> frozenset[Seat]:
        """The possible members and newcomers; a node that was left out never returns."""
        return (self.seats - self.ever).union(self.members)


def roster_of(journal: Sequence[JournalRecord]) -> Roster:
    """Return the nodes that may be in the next generation, by the journal."""
    newest: Generation | None = None
    ever: set[Seat] = set()
    seats: set[Seat] = set()
    principals: dict[Seat, Seat] = {}
    kept: Kept | None = None
    for record in journal:
        if isinstance(record, Resumed):
            seats.clear()
            kept = None
        elif isinstance(record, Kept):
            kept = record
        elif isinstance(record, Intent):
            seats.update(Seat(record.launch, rank) for rank in range(record.num_nodes))
            principals.update(record.principals)
        elif isinstance(record, Generation):
            newest = record
            ever.update(record.seats)
    members = () if newest is None else tuple(seat for seat in newest.seats if seat in seats)
    return Roster(newest, members, frozenset(ever), frozenset(seats), principals, kept)


@dataclass(frozen=True)
class View:
    """The input of one node's verdict."""

    seat: Seat
    """This node."""
    roster: Roster
    min_nodes: int
    max_nodes: int
    current: Generation | None
    """The generation that this node last ran, tried to run or holds; None for a newcomer."""
    liveness: Mapping[Seat, Liveness]
    """The liveness of the other members, and of the other newcomers that have claimed their seats."""
    gone: frozenset[Seat]
    """The nodes in ``liveness`` that are silent or have written an exit record; a notice does not count."""
    exits: Mapping[Seat, Exit]
    """Their exit records."""
    unclaimed: Mapping[Seat, float] = field(default_factory=dict)
    """The seats that are neither claimed nor void, each with the seconds since it was first seen."""
    late_seconds: float = 0.0
    """How long enough ready nodes have waited for others that are still preparing: see ``Patience``."""
    held_seconds: float = 0.0
    """How long, since the newest commit, there were too few nodes and none was preparing."""
    hold_seconds: float = math.inf
    """``nodes.hold``: the limit of ``held_seconds``."""

    @cached_property
    def is_member(self) -> bool:
        """Whether this node is in the newest generation."""
        return self.seat in self.roster.members

    @cached_property
    def ready_newcomers(self) -> tuple[Seat, ...]:
        """The newcomers that a generation would take in, in the order of their seats."""
        ready = {seat for seat, standing in self.liveness.items() if standing is Liveness.FRESH}
        if not self.is_member:
            ready.add(self.seat)
        return tuple(sorted(ready.difference(self.roster.members)))

    @property
    def coming(self) -> frozenset[Seat]:
        """The newcomers that have claimed their seats but are not ready yet."""
        unready = {Liveness.UNKNOWN, Liveness.BUSY}
        newcomers = self.liveness.keys() - set(self.roster.members)
        return frozenset(seat for seat in newcomers if self.liveness[seat] in unready)

    @property
    def young(self) -> frozenset[Seat]:
        """The unclaimed seats that a machine may soon claim."""
        return frozenset(seat for seat, age in self.unclaimed.items() if age <= UNCLAIMED_SECONDS)


@dataclass(frozen=True)
class Wait:
    """Wait, because not enough is known yet or there are not enough nodes."""

    spends: Literal["late", "hold"] | None = None
    """Which time of the view the wait counts toward: ``View.late_seconds`` or ``View.held_seconds``."""


@dataclass(frozen=True)
class Adopt:
    """Run the newest generation."""

    generation: Generation


@dataclass(frozen=True)
class Hold:
    """Join the newest generation, which has too few nodes to train, and wait for others."""

    generation: Generation


@dataclass(frozen=True)
class Propose:
    """Try to create the next generation with these nodes, in this order."""

    number: int
    seats: tuple[Seat, ...]


@dataclass(frozen=True)
class Leave:
    """End this node: ``outcome`` as in ``records.Exit``."""

    outcome: NodeOutcome
    detail: str
    permanent: bool = False
    exit_code: int = 0


Verdict = Wait | Adopt | Hold | Propose | Leave


@dataclass
class Patience:
    """Counts the time that a node has waited, for each reason that its verdicts give."""

    late_seconds: float = 0.0
    held_seconds: float = 0.0
    _spends: Literal["late", "hold"] | None = None
    _noted_at: float = 0.0
    _commit: CheckpointId | None = None

    def note(self, now: float, commit: CheckpointId | None) -> None:
        """Count the time up to ``now`` (seconds, monotonic); ``commit`` is the newest valid one."""
        passed, self._noted_at = now - self._noted_at, now
        if self._spends == "late":
            self.late_seconds += passed
        elif self._spends == "hold":
            self.held_seconds += passed
        if commit != self._commit:
            self._commit, self.held_seconds = commit, 0.0

    def spend(self, found: Verdict) -> None:
        """Record the newest verdict, which determines how the time until the next ``note`` counts."""
        self._spends = found.spends if isinstance(found, Wait) else None

    def begin(self) -> None:
        """Begin a generation: the wait for late nodes is reset for the next one."""
        self.late_seconds, self._spends = 0.0, None


def named(seats: Iterable[Seat]) -> str:
    """Return nodes in the form that messages use: ``node 1.0, 2.1``."""
    return f"node {', '.join(map(str, sorted(seats)))}"


def appraise(heard: Liveness, beat: Heartbeat | None, *, has_to_go: bool, has_come: bool = False) -> Liveness:
    """Return a peer's liveness, judged by its silence and its newest heartbeat; no side effects.

    ``has_to_go`` is whether the peer has a notice or an exit record. With ``has_come``, any heartbeat at all
    proves that the peer lives.
    """
    if has_to_go:
        return Liveness.LEAVING
    if heard is Liveness.SUSPECT or beat is None:
        return heard
    if beat.state == "ending":
        return Liveness.LEAVING
    if beat.state in PREPARING_STATES or (heard is Liveness.UNKNOWN and not has_come):
        return Liveness.UNKNOWN  # a generation would wait for its setup, perhaps long
    return Liveness.BUSY if beat.state in BUSY_STATES else Liveness.FRESH


def verdict(view: View) -> Verdict:
    """Return the next action of a node that is not training; no side effects."""
    roster, newest = view.roster, view.roster.newest
    if newest is not None and view.is_member:
        if view.current is None or newest.number > view.current.number:
            return Adopt(newest) if len(roster.members) >= view.min_nodes else Hold(newest)
    elif newest is not None and view.seat in roster.ever:
        return Leave("superseded", f"generation {newest.number} goes on without this node")
    if roster.kept is not None:
        kept = roster.kept
        return Leave("failed", f"node {kept.seat}: {kept.detail}", True, kept.exit_code)
    for seat, answer in sorted(view.exits.items()):
        counts = seat in roster.members or not roster.members
        if counts and answer.outcome == "failed" and answer.permanent:
            return Leave("failed", f"node {seat}: {answer.detail}", True, answer.exit_code)
    return _verdict_of_member(view) if view.is_member else _verdict_of_newcomer(view)


def _verdict_of_member(view: View) -> Verdict:
    members, liveness = view.roster.members, view.liveness
    others = [seat for seat in members if seat != view.seat]
    if any(liveness[seat] in {Liveness.UNKNOWN, Liveness.BUSY} for seat in others):
        return Wait()
    come = view.ready_newcomers
    stay = [seat for seat in members if seat == view.seat or liveness[seat] is Liveness.FRESH]
    relieved = _relieved(view)
    stay = [seat for seat in stay if seat not in relieved]
    seats = (*stay, *come)
    if len(seats) >= view.min_nodes:
        return _wait_for_late(view, seats, view.coming) or _propose(view, seats)
    # With too few nodes, a changed set must still be written, to leave out the silent nodes.
    return _propose(view, seats) if set(seats) != set(members) else _hold(view, seats)


def _verdict_of_newcomer(view: View) -> Verdict:
    members = view.roster.members
    if members and all(
        (answer := view.exits.get(seat)) is not None and answer.outcome == "succeeded" for seat in members
    ):
        return Leave("superseded", "the job needs no more nodes")
    here = set(members) - view.gone
    if here:
        # The members admit this node when they can.
        return Wait() if len(here) >= view.min_nodes else _hold(view, here)
    come = view.ready_newcomers
    if len(come) < view.min_nodes:
        return _hold(view, come)
    return _wait_for_late(view, come, view.coming | view.young) or _propose(view, come)


def _relieved(view: View) -> frozenset[Seat]:
    """Return the members that ready newcomers replace; each newcomer replaces only its own principal."""
    principals = view.roster.principals
    return frozenset(principals[seat] for seat in view.ready_newcomers if seat in principals)


def _propose(view: View, seats: tuple[Seat, ...]) -> Propose:
    newest = view.roster.newest
    # Surplus newcomers wait; a newcomer that replaces a member does not make the generation larger.
    spare = [seat for seat in view.ready_newcomers if view.roster.principals.get(seat) not in _relieved(view)]
    left = spare[len(spare) - max(0, len(seats) - view.max_nodes) :]
    chosen = tuple(seat for seat in seats if seat not in left)
    return Propose((0 if newest is None else newest.number) + 1, chosen)


def _wait_for_late(view: View, seats: Collection[Seat], late: frozenset[Seat]) -> Wait | None:
    # If there are too many nodes, one of them has probably died and been replaced, but has not been silent
    # for long enough.
    is_late = bool(late) or len(seats) > view.max_nodes
    return Wait("late") if is_late and view.late_seconds < LATE_SECONDS else None


def _hold(view: View, here: Collection[Seat]) -> Verdict:
    if view.coming or view.young:
        return Wait()
    if view.held_seconds < view.hold_seconds:
        return Wait("hold")
    seconds = f"{view.hold_seconds:.0f} s"
    detail = f"{len(here)} of at least {view.min_nodes} nodes are here, and no other came within {seconds}"
    gone = set(view.roster.members) - set(here)
    return Leave("left", f"{detail}; gone: {named(gone)}" if gone else detail)


def left_behind(generation: Generation, beats: Mapping[Seat, Heartbeat | None]) -> frozenset[Seat]:
    """Return the members that still run an older generation.

    Once all members have had time to start, such a node is stuck: it is alive, but would delay the next
    generation too.
    """
    return frozenset(
        seat
        for seat in generation.seats
        if (beat := beats.get(seat)) is not None
        and beat.generation < generation.number
        and beat.state == "running"
    )


def absent(generation: Generation, heartbeats: Mapping[Seat, Heartbeat | None]) -> frozenset[Seat]:
    """Return the members that do not run the generation, by their heartbeats."""
    return frozenset(
        seat
        for seat in generation.seats
        if (beat := heartbeats.get(seat)) is None
        or beat.generation != generation.number
        or beat.state not in {"running", "draining", "uploading"}
    )
