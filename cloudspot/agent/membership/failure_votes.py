"""Why a generation has ended: what each member says of it, and whether the members reach each other."""

from __future__ import annotations

import time
from collections.abc import Collection

import msgspec

from cloudspot.agent.ending.restart_policy import WEIGHT
from cloudspot.agent.membership.peer_heartbeats import PeerHeartbeats
from cloudspot.agent.membership.reachability import REACH_SECONDS, is_taken, unreachable
from cloudspot.agent.node_context import NodeContext
from cloudspot.jobstore.records import Failed, Generation


def not_reached(rank: int, cut_off: Collection[int]) -> str:
    """Return how a node says that it leaves because the network to other nodes is cut."""
    numbers = ", ".join(map(str, sorted(cut_off)))
    return f"node {rank} does not reach node {numbers}: the network between the machines is cut"


class FailureVotes:
    """What the members of one generation say of its end, as this node hears it."""

    def __init__(self, context: NodeContext, peers: PeerHeartbeats, generation: Generation) -> None:
        self._context = context
        self._peers = peers
        self._generation = generation
        self._others = tuple(member.rank for member in generation.members if member.rank != context.rank)
        self.cut_off: frozenset[int] = frozenset()
        """The members whose machines did not answer this one."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return all members, this node among them."""
        return tuple(member.rank for member in self._generation.members)

    def failed_elsewhere(self) -> Failed | None:
        """Return another member's word that the running generation has failed there, or None; asks no store.

        If several say so, the gravest counts.
        """
        return max(self._failures().values(), key=lambda failed: WEIGHT.get(failed.why, 0), default=None)

    def _failures(self) -> dict[int, Failed]:
        beats = self._peers.beats()
        return {
            rank: beat.failed
            for rank in self._others
            if (beat := beats.get(rank)) is not None
            and beat.failed is not None
            and beat.failed.generation == self._generation.number
        }

    def is_rendezvous_to_blame(self) -> bool:
        """Return whether a torchrun that started no rank has not met its peers; else it cannot run here.

        On the first member that is so when something else listens on the endpoint's port by now; the other
        members have met nobody there.
        """
        generation = self._generation
        if generation.members[0].rank != self._context.rank:
            return True
        return is_taken(int(generation.endpoint.rpartition(":")[2]))

    def expect_end(self) -> None:
        """Begin to listen closely: the training here is about to end by an error."""
        if not self._context.status.is_regrouping:
            self._peers.ask()

    def try_to_reach(self) -> frozenset[int]:
        """Return the members whose machines do not answer this one; call it when all members live.

        As the store shows that they live, the network between the machines is cut. The next generation is
        without them.
        """
        generation, status = self._generation, self._context.status
        beats, finished = self._peers.beats(), self._peers.finished(generation.number)
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
        """Wait for what the other live members found out about each other; return whether all answer all."""
        until = time.monotonic() + 2 * REACH_SECONDS
        waited_for = set(self._others) - self._peers.finished(self._generation.number)
        while True:
            self._peers.refresh()
            told = {rank: failed.unreachable for rank, failed in self._failures().items()}
            gone = {rank for rank in waited_for if self._peers.is_gone(rank)}
            exits = [self._peers.exit_record(rank) for rank in gone]
            # Its last heartbeat may not have been read; but it has said that another machine may do better.
            if any(told.values()) or any(e and e.outcome == "failed" and not e.permanent for e in exits):
                return False
            waited_for -= gone | {rank for rank in waited_for if told.get(rank) is not None}
            if not waited_for or time.monotonic() >= until:
                return True
            self._context.obey()
            self._peers.pause()
