"""Agrees with the other nodes of the launch on the generation that this node runs next (P3)."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from datetime import datetime, timezone

from cloudspot.agent.delivery.checkpoint_restore import (
    Restored,
    newest_candidate,
    restore_newest,
    restore_this,
)
from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.membership import peers
from cloudspot.agent.membership.drain_commit import await_commit
from cloudspot.agent.membership.failure_votes import FailureVotes, not_reached
from cloudspot.agent.membership.master_address import master_address
from cloudspot.agent.membership.peer_heartbeats import PeerHeartbeats
from cloudspot.agent.membership.peers import (
    Adopt,
    Leave,
    Propose,
    Standing,
    View,
    Wait,
    absent,
    left_behind,
    verdict,
)
from cloudspot.agent.membership.reachability import free_port
from cloudspot.agent.node_context import NodeContext
from cloudspot.jobstore import launches
from cloudspot.jobstore.lineage import newest_generation
from cloudspot.jobstore.records import Generation, JournalRecord, Member, new_nonce

_log = logging.getLogger(__name__)

WARN_SECONDS = 60.0
"""A node that waits this long for the others says whom it waits for."""
STILL_WELL_SECONDS = 2.0
"""How long it holds what was found out about the others; nobody is asked again meanwhile."""


class Membership:
    """This node's part in the agreement on generations."""

    def __init__(self, context: NodeContext, *, gathered_at: float) -> None:
        """``gathered_at`` is when all nodes of the launch were there (monotonic)."""
        self._context = context
        self._gathered_at = gathered_at
        self._rank = context.rank
        self._peers = PeerHeartbeats(context)
        self.current: Generation | None = None
        """The generation that this node runs, or ran last."""
        self._begun_at = 0.0
        """When it began, by ``heard_seconds``."""
        self._all_ran = False
        """Whether all its members were seen to run it."""
        self._votes: FailureVotes | None = None
        self._well_at = -math.inf
        """When all the others were last found well (monotonic)."""

    def start(self) -> None:
        """Begin to listen."""
        self._peers.start()

    def stop(self) -> None:
        """Stop listening: this node leaves."""
        self._peers.stop()

    @property
    def votes(self) -> FailureVotes:
        """What the members say about the end of the generation that this node runs, or ran last."""
        assert self._votes is not None, "there are none before the first generation"
        return self._votes

    # --- while a generation runs ----------------------------------------------------------------

    def why_regroup(self) -> str | None:
        """Return why the running generation cannot go on, or None; asks no store."""
        current = self.current
        if current is None:
            return None
        newer = self._context.orders.newer_than(current)
        if newer is not None:
            return f"generation {newer.number} has been proposed"
        others = self._other_members(current)
        lost = self._peers.lost(others, generation=current.number)
        if lost:
            return f"no sign of node {', '.join(map(str, sorted(lost)))}"
        if self._all_ran:
            return None
        beats = self._peers.beats()
        missing = absent(current, beats) - {self._rank}
        missing -= self._peers.finished(current.number)
        self._all_ran = not missing
        if missing and self._had_time_to_start:
            numbers = ", ".join(map(str, sorted(missing)))
            return f"node {numbers} does not run generation {current.number}"
        return None

    def notice_deadline(self) -> float | None:
        """Return when (monotonic) the first other member that has a notice goes, or None; asks no store."""
        return (
            None if self.current is None else self._peers.notice_deadline(self._other_members(self.current))
        )

    def someone_has_to_go(self) -> bool:
        """Look at the other members now; return whether one of them has a notice."""
        if self.current is not None:
            self._peers.refresh()
        return self.notice_deadline() is not None

    # --- between two generations ----------------------------------------------------------------

    def obey(self) -> None:
        """Leave if the others have agreed to go on without this node; asks no store.

        Raises:
            LeavingError: they have agreed so.
        """
        newer = None if self.current is None else self._context.orders.newer_than(self.current)
        if newer is not None and all(member.rank != self._rank for member in newer.members):
            detail = f"generation {newer.number} goes on without this node"
            raise LeavingError(Leaving("superseded", detail))

    def others_are_well(self) -> bool:
        """Wait until it is clear how the other members stand; return whether all go on or have finished.

        Raises:
            LeavingError: this node has to go.
        """
        current = self.current
        if current is None:
            return True
        others = self._other_members(current)
        self._peers.ask()
        while True:
            self._context.obey()
            self._peers.refresh()
            standings = {rank: self._peers.standing(rank) for rank in others}
            newer = self._context.orders.newer_than(current)
            if newer is not None:
                return len(newer.members) == len(current.members)
            lost = {rank for rank in others if standings[rank] in {Standing.SUSPECT, Standing.LEAVING}}
            unsaid = {
                rank
                for rank in lost
                if standings[rank] is Standing.LEAVING
                and self._peers.exit_record(rank) is None
                and not self._peers.has_notice(rank)
            }
            if not unsaid and Standing.UNKNOWN not in standings.values():
                self._well_at = time.monotonic()
                return lost <= self._peers.finished(current.number)
            self._peers.pause()

    def finished(self) -> frozenset[int]:
        """Return which other members have finished the training."""
        return frozenset() if self.current is None else self._peers.finished(self.current.number)

    def await_commit(self, step: int) -> None:
        """Wait until the drain's checkpoint is committed, or a part of it clearly will never come."""
        if self.current is not None:
            await_commit(self._context, self._peers, self.current, step)

    def next(self, why: str) -> tuple[Generation, Restored]:
        """Agree on the next generation, with its checkpoint restored on this node.

        The proposer restores before it writes: ``restore_from`` names what was found whole.

        Raises:
            LeavingError: this node is not a member, or too few are left, or an order came.
        """
        context = self._context
        if self.current is not None and time.monotonic() - self._well_at > STILL_WELL_SECONDS:
            self._peers.ask()
        restored: Restored | None = None
        checked = -1  # how many records of the journal were known when what was restored was the best
        ready_at: float | None = None
        while True:
            context.obey()
            self._peers.refresh()
            known = context.insist(context.journal.read)
            context.obey_journal(known)
            waited = 0.0 if ready_at is None else self._peers.heard_seconds - ready_at
            found = verdict(self._view(known, patient=waited <= peers.BUSY_SECONDS))
            if isinstance(found, Leave):
                raise LeavingError(
                    Leaving(found.outcome, found.detail, found.exit_code, permanent=found.permanent)
                )
            if isinstance(found, Adopt):
                among = self._cut_off.intersection(member.rank for member in found.generation.members)
                if among:
                    raise LeavingError(Leaving("failed", not_reached(self._rank, among), exit_code=1))
                self.enter(found.generation)
                context.status.state = "restoring"
                restored = restore_this(context, found.generation.restore_from, restored)
                if restored is not None:
                    return found.generation, restored
                continue  # what it was to resume from is deleted: another has to follow it
            if restored is None or len(known) != checked:
                best = None if restored is None else newest_candidate(context, known, restored.skipped)
                if restored is None or restored.checkpoint != best:
                    context.status.state = "restoring"
                    restored = restore_newest(context)
                    continue  # that took a while: look again
                checked = len(known)
            if isinstance(found, Wait):
                if context.status.state != "ready":
                    context.status.state = "ready"
                    ready_at = self._peers.heard_seconds
                if waited > WARN_SECONDS:
                    context.status.warn("waiting", self._whom_it_waits_for())
                self._peers.pause()
                continue
            record = self._propose(found, known, restored, why)
            if record is not None:
                self.enter(record)
                return record, restored

    def _whom_it_waits_for(self) -> str | None:
        busy = {
            rank: beat.state
            for rank, beat in sorted(self._peers.beats().items())
            if beat is not None and beat.state in {"setup", *peers.BUSY_STATES}
        }
        if not busy:
            return None
        whom = ", ".join(f"node {rank} ({state})" for rank, state in busy.items())
        return f"ready, and idle until {whom} is ready too"

    def enter(self, generation: Generation) -> None:
        """Belong to this generation from now on: a new one, or one that an earlier agent here has started."""
        self._context.status.warn("waiting", None)
        self.current = generation
        self._begun_at = self._peers.heard_seconds
        self._all_ran = False
        self._votes = FailureVotes(self._context, self._peers, generation)
        status, restored = self._context.status, generation.restore_from
        status.restored_step = 0 if restored is None else restored.step
        status.generation = generation.number
        # From now on the node reports of this generation, even if it leaves before its training starts.
        status.handoff = self._context.node.handoff(generation.number)

    def _propose(
        self, found: Propose, known: Sequence[JournalRecord], restored: Restored, why: str
    ) -> Generation | None:
        """Append the generation to what was ``known``; return None if another record came first."""
        context, node = self._context, self._context.node
        slots = context.insist(lambda: launches.read_slots(context.store, node.job_id, node.launch))
        members = tuple(
            Member(
                launch=node.launch,
                rank=rank,
                instance_id=slots[rank].instance_id or "",
                address=slots[rank].address or "",
            )
            for rank in found.ranks
        )
        same = self.current is not None and len(members) == len(self.current.members)
        if self.current is None:
            why = "first" if newest_generation(known) is None else "relaunched"
        elif not same:
            why = "regrouped"
        address = members[0].address
        if self.current is None:
            address = master_address(context, members[0], gathered_at=self._gathered_at)
        record = Generation(
            number=found.number,
            members=members,
            endpoint=f"{address}:{self._port(members[0])}",
            restore_from=restored.checkpoint,
            skipped=restored.skipped,
            why=why,
            at=datetime.now(timezone.utc),
            writer=new_nonce(),
        )
        is_ours = context.insist(lambda: context.journal.append(record, len(known) + 1))
        return record if is_ours else None

    def _port(self, first: Member) -> int:
        """Return a port that was free on the first member; only that node itself can know one."""
        if first.rank == self._rank:
            return free_port()
        beat = self._context.insist(lambda: self._peers.read_beat(first.rank))
        assert beat is not None, "a member without a heartbeat is never fresh"
        return beat.port

    # --- what is known of the others ------------------------------------------------------------

    def _other_members(self, generation: Generation) -> tuple[int, ...]:
        return tuple(member.rank for member in generation.members if member.rank != self._rank)

    def _view(self, known: Sequence[JournalRecord], *, patient: bool) -> View:
        current = self.current
        others = self._peers.others if current is None else self._other_members(current)
        standings = {rank: self._standing(rank, patient=patient) for rank in others}
        exits = {rank: self._peers.exit_record(rank) for rank in others}
        return View(
            rank=self._rank,
            launch=self._context.node.launch,
            min_nodes=self._context.job.spec.nodes.min,
            current=current,
            newest=newest_generation(known),
            candidates=tuple(sorted((self._rank, *others))),
            standings=standings,
            exits={rank: record for rank, record in exits.items() if record is not None},
        )

    def _standing(self, rank: int, *, patient: bool) -> Standing:
        current = self.current
        # Before the first generation any heartbeat will do: no node can have died in one yet.
        standing = self._peers.standing(rank, has_come=current is None)
        if rank in self._cut_off:
            return Standing.LEAVING
        if standing is Standing.BUSY:
            return standing if patient else Standing.LEAVING
        if standing is Standing.FRESH and current is not None and self._had_time_to_start:
            hangs = rank in left_behind(current, self._peers.beats())
            return Standing.LEAVING if hangs else standing
        return standing

    @property
    def _cut_off(self) -> frozenset[int]:
        return frozenset() if self._votes is None else self._votes.cut_off

    @property
    def _had_time_to_start(self) -> bool:
        return self._peers.heard_seconds - self._begun_at > peers.START_SECONDS
