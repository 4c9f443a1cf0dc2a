"""The failure detector, and what each node concludes from it for the next generation (P3); pure.

Nobody is the leader. Each agent looks at the same records and heartbeats, comes to its own verdict,
and the generation record, which only one of them can create, makes that verdict everybody's.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cloudspot.jobstore.records import Exit, Generation, Heartbeat, NodeOutcome

SUSPECT_SECONDS = 20.0
"""A peer whose counter has not moved for this long, by this reader's clock, is taken for lost."""
START_SECONDS = 120.0
"""If not all members run a generation after this long, the next one is without the absent, unless they are
still busy with what comes before."""
BUSY_SECONDS = 1800.0
"""Ready nodes wait this long for one that restores or delivers; then it is taken for stuck."""
MAX_PASS_SECONDS = 5.0
"""The most that one pass adds to a peer's silence: a reader that was stopped itself could hear nothing."""


BUSY_STATES = frozenset({"uploading", "restoring"})
"""The states of a node that lives but is not ready for the next generation."""
LEAVING_STATES = frozenset({"draining", "ending"})


class Standing(enum.Enum):
    """What this node knows of a peer."""

    FRESH = "fresh"
    """Its counter has moved since the question arose: it lives."""
    UNKNOWN = "unknown"
    """Nothing is known since then: wait."""
    SUSPECT = "suspect"
    """Silent for too long: taken for lost."""
    BUSY = "busy"
    """It lives, but has yet to deliver what it holds or to restore: a generation would wait for it."""
    LEAVING = "leaving"
    """It has written its exit record, or has to go."""


@dataclass
class _Heard:
    """What was heard from one peer."""

    counter: object = None
    silent_seconds: float = 0.0
    first: object = None
    """The counter at the first look since the question arose; an earlier beat proves nothing."""
    has_moved: bool = False
    """Whether it has, since that first look."""


@dataclass
class PeerClock:
    """Measures each peer's silence on this node's own clock, as long as this node itself can hear.

    A pass in which the store failed adds nothing, so that an outage of the store is nobody's death.
    """

    heard_seconds: float = 0.0
    """How long this node could hear, in total."""
    _heard: dict[int, _Heard] = field(default_factory=dict)
    _last: float | None = None
    _marked_at: float = -math.inf

    def hear(
        self, now: float, counters: Mapping[int, object] | None, *, asked_at: float | None = None
    ) -> None:
        """Note one pass: each peer's counter (None: it has none yet); None: the store failed.

        A counter is any value that differs from beat to beat.

        ``now`` is monotonic; ``asked_at`` is when the pass began.
        """
        passed = 0.0 if self._last is None else min(now - self._last, MAX_PASS_SECONDS)
        self._last = now
        if counters is None:
            return
        self.heard_seconds += passed
        for rank, counter in counters.items():
            heard = self._heard.setdefault(rank, _Heard())
            if counter is None or counter == heard.counter:
                heard.silent_seconds += passed
            else:
                heard.counter, heard.silent_seconds = counter, 0.0
            if heard.first is not None:
                heard.has_moved = heard.has_moved or counter != heard.first
            elif (now if asked_at is None else asked_at) >= self._marked_at:
                heard.first = counter

    def mark(self, now: float) -> None:
        """Ask anew: only a counter that moves from now on proves that a peer lives.

        The last beat of a node that died a moment ago may not have been read yet. So the first look
        from now on only shows where each counter stands.
        """
        self._marked_at = now
        for heard in self._heard.values():
            heard.first, heard.has_moved = None, False

    def standing(self, rank: int) -> Standing:
        """Return what its silence says about a peer."""
        heard = self._heard.get(rank)
        if heard is None:
            return Standing.UNKNOWN
        if heard.silent_seconds >= SUSPECT_SECONDS:
            return Standing.SUSPECT
        return Standing.FRESH if heard.has_moved else Standing.UNKNOWN

    def suspects(self, ranks: Iterable[int]) -> frozenset[int]:
        """Return those among the ranks that are taken for lost."""
        return frozenset(rank for rank in ranks if self.standing(rank) is Standing.SUSPECT)


@dataclass(frozen=True)
class View:
    """Everything that one node's verdict rests on."""

    rank: int
    """This node's, within the launch."""
    launch: int
    min_nodes: int
    current: Generation | None
    """The generation this node last ran or tried to run; None before its first of this launch."""
    newest: Generation | None
    """The newest one recorded, of any launch."""
    candidates: tuple[int, ...]
    """The ranks that may be in the next: those of the current, or all slots of the launch."""
    standings: Mapping[int, Standing]
    """Of the other candidates."""
    exits: Mapping[int, Exit]
    """Exit records of the other candidates."""


@dataclass(frozen=True)
class Wait:
    """Not enough is known yet."""


@dataclass(frozen=True)
class Adopt:
    """Run the generation that stands."""

    generation: Generation


@dataclass(frozen=True)
class Propose:
    """Try to create the next generation with these ranks, in this order."""

    number: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Leave:
    """End this node: ``outcome`` as in ``records.Exit``."""

    outcome: NodeOutcome
    detail: str
    permanent: bool = False
    exit_code: int = 0


Verdict = Wait | Adopt | Propose | Leave


def appraise(heard: Standing, beat: Heartbeat | None, *, has_to_go: bool, has_come: bool = False) -> Standing:
    """Return how a peer stands, by its silence, its newest heartbeat, and whether it has to go; pure.

    ``has_to_go``: it has a notice or an exit record. ``has_come``: any heartbeat at all proves that it lives.
    """
    if has_to_go:
        return Standing.LEAVING
    if heard is Standing.SUSPECT or beat is None:
        return heard
    if beat.state in LEAVING_STATES:
        return Standing.LEAVING
    if beat.state == "setup" or (heard is Standing.UNKNOWN and not has_come):
        return Standing.UNKNOWN  # a generation would have to wait for its setup, however long that takes
    return Standing.BUSY if beat.state in BUSY_STATES else Standing.FRESH


def verdict(view: View) -> Verdict:
    """Return what this node does when it runs no generation; pure."""
    newest, current = view.newest, view.current
    known = 0 if current is None else current.number
    if newest is not None and newest.number > known:
        ranks = newest.ranks(view.launch)
        if view.rank in ranks:
            return Adopt(newest)
        if ranks:
            return Leave("superseded", f"generation {newest.number} goes on without this node")
        launch = min(seat.launch for seat in newest.seats)
        if launch > view.launch:
            return Leave("superseded", f"launch {launch} runs the job")
    for rank, exit_record in sorted(view.exits.items()):
        if exit_record.outcome == "failed" and exit_record.permanent:
            return Leave("failed", f"node {rank}: {exit_record.detail}", True, exit_record.exit_code)
    if not {Standing.UNKNOWN, Standing.BUSY}.isdisjoint(view.standings.values()):
        return Wait()
    alive = tuple(
        rank for rank in view.candidates if rank == view.rank or view.standings[rank] is Standing.FRESH
    )
    if len(alive) < view.min_nodes:
        gone = sorted(set(view.candidates) - set(alive))
        nodes = ", ".join(str(rank) for rank in gone)
        return Leave("left", f"{len(alive)} of at least {view.min_nodes} nodes are left; gone: node {nodes}")
    return Propose((0 if newest is None else newest.number) + 1, alive)


def left_behind(generation: Generation, beats: Mapping[int, Heartbeat | None]) -> frozenset[int]:
    """Return the members that still run an older generation.

    Once all have had the time to start, such a node hangs: it lives, and would hold up the next
    generation as it has held up this one.
    """
    return frozenset(
        member.rank
        for member in generation.members
        if (beat := beats.get(member.rank)) is not None
        and beat.generation < generation.number
        and beat.state == "running"
    )


def absent(generation: Generation, heartbeats: Mapping[int, Heartbeat | None]) -> frozenset[int]:
    """Return the members that do not run the generation, as their heartbeats say."""
    return frozenset(
        member.rank
        for member in generation.members
        if (beat := heartbeats.get(member.rank)) is None
        or beat.generation != generation.number
        or beat.state not in {"running", "draining", "uploading"}
    )
