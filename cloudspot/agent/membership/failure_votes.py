"""Find out why a generation ended, from the members' reports and from whether they can reach each other."""

from __future__ import annotations

import time
from collections.abc import Collection

import msgspec

from cloudspot.agent.ending.restart_policy import WEIGHT
from cloudspot.agent.leaving import Leaving
from cloudspot.agent.membership.peer_heartbeats import PeerHeartbeats
from cloudspot.agent.membership.peers import named
from cloudspot.agent.membership.reachability import REACH_SECONDS, is_taken, unreachable
from cloudspot.agent.node_context import NodeContext
from cloudspot.jobstore.layout.records import Failed, Generation, Seat


def not_reached(context: NodeContext, cut_off: Collection[Seat]) -> str:
    """Return the message that the network to other nodes is cut, with the provider's advice."""
    text = f"node {context.seat} does not reach {named(cut_off)}: the network between the machines is cut"
    return f"{text}; {why}" if (why := context.provider.cut_network_advice) else text


def leaving_cut_off(context: NodeContext, cut_off: Collection[Seat]) -> Leaving:
    """Return the outcome of a node that leaves because the network to other nodes is cut."""
    return Leaving("failed", not_reached(context, cut_off), exit_code=1, is_cut_off=True)


class FailureVotes:
    """The reports of a generation's end that this node has received from its members."""

    def __init__(self, context: NodeContext, peers: PeerHeartbeats, generation: Generation) -> None:
        self._context = context
        self._peers = peers
        self._generation = generation
        self._others = tuple(seat for seat in generation.seats if seat != context.seat)
        self.cut_off: frozenset[Seat] = frozenset()
        """The members whose machines did not answer this machine."""

    def failed_elsewhere(self) -> Failed | None:
        """Return another member's report that the generation has failed, or None; make no request.

        If there are several reports, the one with the greatest weight is used.
        """
        return max(self._failures().values(), key=lambda failed: WEIGHT.get(failed.why, 0), default=None)

    def _failures(self) -> dict[Seat, Failed]:
        beats = self._peers.beats()
        return {
            seat: beat.failed
            for seat in self._others
            if (beat := beats.get(seat)) is not None
            and beat.failed is not None
            and beat.failed.generation == self._generation.number
        }

    def is_rendezvous_to_blame(self) -> bool:
        """Return whether torchrun started no rank because its rendezvous failed.

        The first member checks whether another program now listens on the endpoint's port; the other members
        know that the endpoint did not answer.
        """
        generation = self._generation
        if generation.seats[0] != self._context.seat:
            return True
        return is_taken(int(generation.endpoint.rpartition(":")[2]))

    def expect_end(self) -> None:
        """Begin to listen closely, because the training on this node is about to end with an error."""
        if not self._context.status.is_regrouping:
            self._peers.ask()

    def try_to_reach(self) -> frozenset[Seat]:
        """Return the members whose machines do not answer this one; call it when all members live.

        The store shows that they are alive, so the network between the machines is cut, and the next
        generation excludes these members.
        """
        generation, status = self._generation, self._context.status
        beats, finished = self._peers.beats(), self._peers.finished(generation.number)
        endpoints = {
            member.seat: (member.address, beat.port)
            for member in generation.members
            if member.seat not in finished and member.address and (beat := beats.get(member.seat)) is not None
        }
        self.cut_off = unreachable(endpoints)
        if status.failed is not None:
            status.failed = msgspec.structs.replace(status.failed, unreachable=tuple(sorted(self.cut_off)))
        return self.cut_off

    def others_reach_all(self) -> bool:
        """Wait for the findings of the other live members; return whether all members answer each other."""
        until = time.monotonic() + 2 * REACH_SECONDS
        waited_for = set(self._others) - self._peers.finished(self._generation.number)
        while True:
            self._peers.refresh()
            reported = {seat: failed.unreachable for seat, failed in self._failures().items()}
            gone = {seat for seat in waited_for if self._peers.is_gone(seat)}
            exits = [self._peers.exit_record(seat) for seat in gone]
            # The last heartbeat may be unread, but the exit record shows that other machines may succeed.
            if any(reported.values()) or any(e and e.outcome == "failed" and not e.permanent for e in exits):
                return False
            waited_for -= gone | {seat for seat in waited_for if reported.get(seat) is not None}
            if not waited_for or time.monotonic() >= until:
                return True
            self._context.obey()
            self._peers.pause()
