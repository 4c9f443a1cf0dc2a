"""Save the state that a generation's members hold after another member was lost or failed (P8)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal

from cloudspot.agent.membership import rescues
from cloudspot.agent.membership.drain_commit import commit_if_whole
from cloudspot.agent.membership.peer_heartbeats import PeerHeartbeats
from cloudspot.agent.membership.peers import Liveness
from cloudspot.agent.node_context import NodeContext
from cloudspot.jobstore.access.stored_records import create_record, find_record
from cloudspot.jobstore.checkpoints import manifests
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import (
    Generation,
    RankLikeness,
    RescueOrder,
    Seat,
    Survivors,
    new_nonce,
)

_log = logging.getLogger(__name__)

LAST_ATTEMPT = 99_999
"""A node that reports no state in this attempt reports none in any other attempt."""


class RescueVotes:
    """The reports on the state that a generation's members hold, as received by this node."""

    def __init__(self, context: NodeContext, peers: PeerHeartbeats, generation: Generation) -> None:
        self._context = context
        self._peers = peers
        self.generation = generation
        self._others = tuple(seat for seat in generation.seats if seat != context.seat)

    @property
    def others_have_begun(self) -> bool:
        """Whether another member was already asked for its ranks' state; makes no request."""
        return bool(self._reports(1))

    def _have_given_up(self, attempt: int) -> bool:
        """Return whether a rank of another member was unable to save in this attempt."""
        reports = self._reports(1).values()
        return any(each.given_up >= attempt or attempt < each.attempt < LAST_ATTEMPT for each in reports)

    @property
    def is_over(self) -> bool:
        """Whether saves of this generation no longer count, or this node must end at once."""
        orders = self._context.orders
        return orders.superseded is not None or orders.newer_than(self.generation) is not None

    def look(self) -> None:
        """Look at the other members now, and from now on listen closely."""
        if not self._context.status.is_regrouping:
            self._peers.ask()
        self._peers.refresh()
        self._peers.look_for_certificates()

    def pause(self) -> None:
        """Wait before the next ``look``; an order to leave does not end this, because a rescue continues."""
        self._peers.pause(despite_orders=True)

    def unreported(self, attempt: int) -> tuple[frozenset[Seat], frozenset[Seat]]:
        """Return the members that may still report: those known to live, and those not heard from."""
        reported = self._reports(attempt).keys() | self._peers.finished(self.generation.number)
        # A member whose training has ended no longer has ranks.
        reported |= {
            seat
            for seat, beat in self._peers.beats().items()
            if beat is not None and beat.state not in {"running", "draining"}
        }
        left = {seat for seat in self._others if seat not in reported and not self._peers.is_gone(seat)}
        alive = {seat for seat in left if self._peers.liveness(seat) is not Liveness.UNKNOWN}
        return frozenset(alive), frozenset(left - alive)

    def find_order(self, attempt: int) -> RescueOrder | None:
        """Return the decision on an attempt, or None if there is none yet."""
        context = self._context
        key = keys.rescue_order(context.job_id, self.generation.number, attempt)
        return context.retry_until(lambda: find_record(context.store, key, RescueOrder))

    def decide(self, attempt: int) -> RescueOrder | None:
        """Decide for all members by the reports, unless another node has; None if no state can be saved."""
        context, number = self._context, self.generation.number
        choice = self._choose(attempt)
        if isinstance(choice, str):
            standing = self.find_order(attempt)
            if standing is None:
                _log.info("nothing was saved after the loss: %s", choice)
            return standing
        order = RescueOrder(
            generation=number,
            attempt=attempt,
            boundary=choice.boundary,
            step=choice.step,
            ranks=choice.ranks,
            keepers=choice.keepers,
            cause=self._cause(),
            is_exact=choice.is_exact,
            at=context.now(),
            writer=new_nonce(),
        )
        key = keys.rescue_order(context.job_id, number, attempt)
        return context.retry_until(lambda: create_record(context.store, key, order))

    def hold_newer(self, order: RescueOrder) -> bool:
        """Return whether, by the reports so far, a newer boundary than the order's can be saved.

        An order may be written before all members have reported.
        """
        choice = self._choose(order.attempt)
        return not isinstance(choice, str) and choice.boundary > order.boundary

    def _choose(self, attempt: int) -> rescues.Choice | str:
        context = self._context
        reports = [*self._reports(attempt).values()]
        if (own := context.status.survivors) is not None:
            reports.append(own)
        return rescues.choose(
            (held for each in reports for held in each.held),
            [*context.status.likeness, *self._likeness()],
            world_size=context.job.spec.procs_per_node * len(self.generation.members),
        )

    def state_of(self, order: RescueOrder) -> Literal["committed", "hopeless", "open"]:
        """Commit the save if it is complete; return whether it is committed, cannot be, or still may be."""
        context = self._context
        self.look()
        # First check which nodes are gone, then the parts: a gone node uploaded its parts before, or never
        # will.
        gone = {seat for seat in self._others if self._peers.is_gone(seat)}
        is_committed = commit_if_whole(context, order.save.checkpoint)
        if is_committed is not False:
            return "committed" if is_committed else "hopeless"
        stored = context.retry_until(
            lambda: manifests.stored_ranks(context.store, context.job_id, order.save)
        )
        procs = context.job.spec.procs_per_node
        missing = {self.generation.seats[rank // procs] for rank in order.ranks if rank not in stored}
        return "hopeless" if missing & gone or self._have_given_up(order.attempt) else "open"

    def _cause(self) -> Literal["lost", "failed"]:
        return "lost" if any(map(self._peers.is_gone, self._others)) else "failed"

    def _likeness(self) -> Iterator[RankLikeness]:
        beats = self._peers.beats()
        for beat in (beats.get(seat) for seat in self._others):
            if beat is not None and beat.generation == self.generation.number:
                yield from beat.likeness

    def _reports(self, attempt: int) -> dict[Seat, Survivors]:
        beats = self._peers.beats()
        return {
            seat: beat.survivors
            for seat in self._others
            if (beat := beats.get(seat)) is not None
            and beat.survivors is not None
            and beat.survivors.generation == self.generation.number
            and beat.survivors.attempt >= attempt
        }
