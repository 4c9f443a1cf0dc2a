"""The other nodes of the launch, as this one sees them; and what follows for the next generation (P3).

Nobody is the leader. Each agent looks at the same records and heartbeats, comes to its own verdict,
and the generation record, which only one of them can create, makes it everybody's.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cloudspot.jobstore.records import Exit, Generation, Heartbeat

SUSPECT_SECONDS = 20.0
"""A peer whose counter has not moved for so long of this reader's clock is taken for lost."""
START_SECONDS = 120.0
"""A generation in which not all run after so long is followed by one without the absent."""
MAX_PASS_SECONDS = 5.0
"""The most that one pass adds to a peer's silence: a reader that was stopped itself has heard nothing."""


class Standing(enum.Enum):
    """What this node knows of a peer."""

    FRESH = "fresh"
    """Its counter has moved since the question arose: it lives."""
    UNKNOWN = "unknown"
    """Nothing new so far: wait."""
    SUSPECT = "suspect"
    """Silent for too long: taken for lost."""
    LEAVING = "leaving"
    """It has said its last word, or has to go."""


@dataclass
class _Heard:
    """What was heard of one peer."""

    counter: int = -1
    silent_seconds: float = 0.0
    moved_since_mark: bool = False


@dataclass
class PeerClock:
    """Measures each peer's silence on this node's own clock, while this node itself can hear.

    A pass in which the store failed adds nothing, so that an outage of the store is nobody's death.
    """

    _heard: dict[int, _Heard] = field(default_factory=dict)
    _last: float | None = None

    def hear(self, now: float, counters: Mapping[int, int | None] | None) -> None:
        """Note one pass: each peer's counter (None: it has none yet); None: the store failed.

        ``now`` is monotonic.
        """
        passed = 0.0 if self._last is None else min(now - self._last, MAX_PASS_SECONDS)
        self._last = now
        if counters is None:
            return
        for rank, counter in counters.items():
            heard = self._heard.setdefault(rank, _Heard())
            if counter is not None and counter != heard.counter:
                heard.moved_since_mark = heard.moved_since_mark or heard.counter != -1
                heard.counter, heard.silent_seconds = counter, 0.0
            else:
                heard.silent_seconds += passed

    def mark(self) -> None:
        """Ask anew: only a counter that moves from now on proves that a peer lives."""
        for heard in self._heard.values():
            heard.moved_since_mark = False

    def standing(self, rank: int) -> Standing:
        """Return what the silence says of a peer."""
        heard = self._heard.get(rank)
        if heard is None:
            return Standing.UNKNOWN
        if heard.silent_seconds >= SUSPECT_SECONDS:
            return Standing.SUSPECT
        return Standing.FRESH if heard.moved_since_mark else Standing.UNKNOWN

    def suspects(self, ranks: Iterable[int]) -> frozenset[int]:
        """Return those among the ranks that are taken for lost."""
        return frozenset(rank for rank in ranks if self.standing(rank) is Standing.SUSPECT)


@dataclass(frozen=True)
class View:
    """All that one node's verdict rests on."""

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
    """Last words of the other candidates."""


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

    outcome: str
    detail: str
    permanent: bool = False
    exit_code: int = 0


Verdict = Wait | Adopt | Propose | Leave


def verdict(view: View) -> Verdict:
    """Return what this node does when it runs no generation (any more); pure."""
    newest, current = view.newest, view.current
    known = 0 if current is None else current.number
    if newest is not None and newest.number > known:
        if newest.launch > view.launch:
            return Leave("superseded", f"launch {newest.launch} runs the job")
        if newest.launch == view.launch:
            if any(member.rank == view.rank for member in newest.members):
                return Adopt(newest)
            return Leave("superseded", f"generation {newest.number} goes on without this node")
    for rank, exit_record in sorted(view.exits.items()):
        if exit_record.outcome == "failed" and exit_record.permanent:
            return Leave("failed", f"node {rank}: {exit_record.detail}", True, exit_record.exit_code)
    if any(standing is Standing.UNKNOWN for standing in view.standings.values()):
        return Wait()
    alive = tuple(
        rank for rank in view.candidates if rank == view.rank or view.standings[rank] is Standing.FRESH
    )
    if len(alive) < view.min_nodes:
        gone = sorted(set(view.candidates) - set(alive))
        nodes = ", ".join(str(rank) for rank in gone)
        return Leave("left", f"{len(alive)} of at least {view.min_nodes} nodes are left; gone: node {nodes}")
    return Propose((0 if newest is None else newest.number) + 1, alive)


def absent(generation: Generation, heartbeats: Mapping[int, Heartbeat | None]) -> frozenset[int]:
    """Return the members that do not run the generation, as their heartbeats say."""
    return frozenset(
        member.rank
        for member in generation.members
        if (beat := heartbeats.get(member.rank)) is None
        or beat.generation != generation.number
        or beat.state in {"restoring", "ending"}
    )
