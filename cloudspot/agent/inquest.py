"""Why a generation has ended: what the other members say of it, and whether they can be reached."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from cloudspot.agent.failures import WEIGHT
from cloudspot.agent.hearing import Hearing
from cloudspot.agent.reach import REACH_SECONDS, is_taken, unreachable
from cloudspot.jobstore.records import Failed, Generation

if TYPE_CHECKING:
    from cloudspot.agent.life import Life


def not_reached(rank: int, cut_off: Collection[int]) -> str:
    """Return how a node says that it leaves for want of a network."""
    numbers = ", ".join(map(str, sorted(cut_off)))
    return f"node {rank} does not reach node {numbers}: the network between the machines is cut"


class Inquest:
    """The inquest of one generation, as this node holds it."""

    def __init__(self, life: Life, hearing: Hearing, generation: Generation) -> None:
        self._life = life
        self._hearing = hearing
        self._generation = generation
        self._rank = life.job.identity.rank
        self._others = tuple(member.rank for member in generation.members if member.rank != self._rank)
        self.cut_off: frozenset[int] = frozenset()
        """The members whose machines did not answer this one."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return all members, this node among them."""
        return tuple(member.rank for member in self._generation.members)

    def failed_elsewhere(self) -> Failed | None:
        """Return another member's word that the running generation has failed there, or None; asks no store.

        Of several it is the one that weighs most.
        """
        return max(self._failures().values(), key=lambda failed: WEIGHT.get(failed.why, 0), default=None)

    def _failures(self) -> dict[int, Failed]:
        beats = self._hearing.beats()
        return {
            rank: beat.failed
            for rank in self._others
            if (beat := beats.get(rank)) is not None
            and beat.failed is not None
            and beat.failed.generation == self._generation.number
        }

    def is_rendezvous_to_blame(self) -> bool:
        """Say so where torchrun has ended before it started a rank; else it cannot be run here.

        On the first member that is where something else listens at the endpoint's port by now; the others
        have met with nobody there.
        """
        generation = self._generation
        if generation.members[0].rank != self._rank:
            return True
        return is_taken(int(generation.endpoint.rpartition(":")[2]))

    def expect_end(self) -> None:
        """Begin to listen closely: the training here is about to end by an error."""
        if not self._life.status.is_regrouping:
            self._hearing.ask()

    def try_to_reach(self) -> frozenset[int]:
        """Return the members whose machines do not answer this one; ``others_are_well`` comes before.

        They live, as the store says, so the network between the machines is cut. The next generation is
        without them.
        """
        generation, status = self._generation, self._life.status
        beats, finished = self._hearing.beats(), self._hearing.finished(generation.number)
        endpoints = {
            member.rank: (member.address, beat.port)
            for member in generation.members
            if member.rank not in finished and member.address and (beat := beats.get(member.rank)) is not None
        }
        self.cut_off = unreachable(endpoints)
        if status.failed is not None:
            status.failed = msgspec.structs.replace(status.failed, unreachable=tuple(sorted(self.cut_off)))
        return self.cut_off

    def others_reach_all(self) -> bool:
        """Wait for what the other members that live have found of each other; say whether all answer all."""
        until = time.monotonic() + 2 * REACH_SECONDS
        waited_for = set(self._others) - self._hearing.finished(self._generation.number)
        while True:
            told = {rank: failed.unreachable for rank, failed in self._failures().items()}
            gone = {rank for rank in waited_for if self._hearing.is_gone(rank)}
            words = [self._hearing.last_word(rank) for rank in gone]
            # Its last heartbeat may not have been read; but it has said that another machine may do better.
            if any(told.values()) or any(w and w.outcome == "failed" and not w.permanent for w in words):
                return False
            waited_for -= gone | {rank for rank in waited_for if told.get(rank) is not None}
            if not waited_for or time.monotonic() >= until:
                return True
            self._life.obey()
            self._hearing.pause()
