"""Finds, together with the other nodes of the launch, the generation that this node runs next (P3)."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from cloudspot.agent import peers
from cloudspot.agent.announcement import first_address
from cloudspot.agent.drainedcommit import await_commit
from cloudspot.agent.hearing import Hearing
from cloudspot.agent.inquest import Inquest, not_reached
from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.peers import Adopt, Leave, Propose, Standing, View, Wait, absent, left_behind, verdict
from cloudspot.agent.reach import free_port
from cloudspot.agent.restore import Restored, newest_candidate, restore_newest, restore_this
from cloudspot.jobstore import generations, launches
from cloudspot.jobstore.records import Generation, Member, new_nonce

if TYPE_CHECKING:
    from cloudspot.agent.life import Life

_log = logging.getLogger(__name__)

WARN_SECONDS = 60.0
"""Who waits so long for the others says whom it waits for."""
STILL_WELL_SECONDS = 2.0
"""For so long what was found of the others holds, and nobody is asked again."""


class Membership:
    """This node's part in the agreement on generations."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._rank = life.job.identity.rank
        self._hearing = Hearing(life)
        self.current: Generation | None = None
        """The generation that this node runs, or ran last."""
        self._begun_at = 0.0
        """When it began, in the seconds that this node could hear."""
        self._all_ran = False
        """All its members were seen to run it."""
        self._inquest: Inquest | None = None
        self._well_at = -math.inf
        """When all the others were last found to go on; monotonic."""

    def start(self) -> None:
        """Begin to listen."""
        self._hearing.start()

    def stop(self) -> None:
        """Listen no more: this node leaves."""
        self._hearing.stop()

    def resume(self, generation: Generation) -> None:
        """Stand where an earlier agent of this machine stood: it has started this generation."""
        self._enter(generation)

    @property
    def inquest(self) -> Inquest:
        """What is known of the end of the generation that this node runs, or ran last."""
        assert self._inquest is not None, "there is none before the first generation"
        return self._inquest

    # --- while a generation runs ----------------------------------------------------------------

    def why_regroup(self) -> str | None:
        """Say why the running generation cannot go on, or None; asks no store."""
        current = self.current
        if current is None:
            return None
        newer = self._life.orders.newer_than(current)
        if newer is not None:
            return f"generation {newer.number} has been proposed"
        others = self._other_members(current)
        lost = self._hearing.lost(others, generation=current.number)
        if lost:
            return f"no sign of node {', '.join(map(str, sorted(lost)))}"
        if self._all_ran:
            return None
        beats = self._hearing.beats()
        missing = absent(current, beats) - {self._rank}
        missing -= self._hearing.finished(current.number)
        self._all_ran = not missing
        if missing and self._had_time_to_start:
            numbers = ", ".join(map(str, sorted(missing)))
            return f"node {numbers} does not run generation {current.number}"
        return None

    # --- between two generations ----------------------------------------------------------------

    def obey(self) -> None:
        """Leave where the others have agreed to go on without this node; asks no store.

        Raises:
            LeavingError: they have.
        """
        newer = None if self.current is None else self._life.orders.newer_than(self.current)
        if newer is not None and all(member.rank != self._rank for member in newer.members):
            detail = f"generation {newer.number} goes on without this node"
            raise LeavingError(Leaving("superseded", detail))

    def others_are_well(self) -> bool:
        """Wait until it is clear how the other members stand; say whether all go on or have finished.

        Raises:
            LeavingError: this node has to go meanwhile.
        """
        current = self.current
        if current is None:
            return True
        others = self._other_members(current)
        self._hearing.ask()
        while True:
            self._life.obey()
            standings = {rank: self._hearing.standing(rank) for rank in others}
            newer = self._life.orders.newer_than(current)
            if newer is not None:
                return len(newer.members) == len(current.members)
            lost = {rank for rank in others if standings[rank] in {Standing.SUSPECT, Standing.LEAVING}}
            unsaid = {
                rank
                for rank in lost
                if standings[rank] is Standing.LEAVING
                and self._hearing.last_word(rank) is None
                and not self._hearing.has_notice(rank)
            }
            if not unsaid and Standing.UNKNOWN not in standings.values():
                self._well_at = time.monotonic()
                return lost <= self._hearing.finished(current.number)
            self._hearing.pause()

    def finished(self) -> frozenset[int]:
        """Return which other members have finished the training."""
        return frozenset() if self.current is None else self._hearing.finished(self.current.number)

    def await_commit(self, step: int) -> None:
        """Wait until the drain's checkpoint is committed, or a part of it will never come."""
        if self.current is not None:
            await_commit(self._life, self._hearing, self.current, step)

    def next(self, why: str) -> tuple[Generation, Restored]:
        """Agree on the next generation, with its checkpoint restored on this node.

        The proposer restores before it writes: ``restore_from`` names what was found whole.

        Raises:
            LeavingError: this node is not in it, or too few are left, or an order came.
        """
        life, node = self._life, self._life.node
        if self.current is not None and time.monotonic() - self._well_at > STILL_WELL_SECONDS:
            self._hearing.ask()
        restored: Restored | None = None
        ready_at: float | None = None
        while True:
            life.obey()
            known = life.insist(lambda: generations.read_generations(life.store, node.job_id))
            waited = 0.0 if ready_at is None else self._hearing.heard_seconds - ready_at
            found = verdict(self._view(known, patient=waited <= peers.BUSY_SECONDS))
            if isinstance(found, Leave):
                raise LeavingError(
                    Leaving(found.outcome, found.detail, found.exit_code, permanent=found.permanent)
                )
            if isinstance(found, Adopt):
                among = self._cut_off.intersection(member.rank for member in found.generation.members)
                if among:
                    raise LeavingError(Leaving("failed", not_reached(self._rank, among), exit_code=1))
                self._enter(found.generation)
                life.status.state = "restoring"
                restored = restore_this(life, found.generation.restore_from, restored)
                if restored is not None:
                    return found.generation, restored
                continue  # what it was to resume from is deleted: another has to follow it
            if restored is None or restored.checkpoint != newest_candidate(life, known, restored.skipped):
                life.status.state = "restoring"
                restored = restore_newest(life, known)
                continue  # that took its time: look again
            if isinstance(found, Wait):
                if life.status.state != "ready":
                    life.status.state = "ready"
                    ready_at = self._hearing.heard_seconds
                if waited > WARN_SECONDS:
                    life.status.warn("waiting", self._whom_it_waits_for())
                self._hearing.pause()
                continue
            record = self._propose(found, known, restored, why)
            if record is not None:
                self._enter(record)
                return record, restored

    def _whom_it_waits_for(self) -> str | None:
        busy = {
            rank: beat.state
            for rank, beat in sorted(self._hearing.beats().items())
            if beat is not None and beat.state in {"setup", *peers.BUSY_STATES}
        }
        if not busy:
            return None
        whom = ", ".join(f"node {rank} ({state})" for rank, state in busy.items())
        return f"ready, and idle until {whom} is ready too"

    def _enter(self, generation: Generation) -> None:
        self._life.status.warn("waiting", None)
        self.current = generation
        self._begun_at = self._hearing.heard_seconds
        self._all_ran = False
        self._inquest = Inquest(self._life, self._hearing, generation)
        self._life.status.generation = generation.number

    def _propose(
        self, found: Propose, known: Sequence[Generation], restored: Restored, why: str
    ) -> Generation | None:
        """Try to create the generation; None: somebody else was faster, and the next look shows it."""
        life, node = self._life, self._life.node
        slots = life.insist(lambda: launches.read_slots(life.store, node.job_id, node.launch))
        members = tuple(
            Member(
                rank=rank,
                instance_id=slots[rank].instance_id or "",
                address=slots[rank].address or "",
            )
            for rank in found.ranks
        )
        same = self.current is not None and len(members) == len(self.current.members)
        if self.current is None:
            why = "relaunched" if known else "first"
        elif not same:
            why = "regrouped"
        address = first_address(life, members[0]) if self.current is None else members[0].address
        record = Generation(
            number=found.number,
            launch=node.launch,
            members=members,
            endpoint=f"{address}:{self._port(members[0])}",
            restore_from=restored.checkpoint,
            sealed_at=restored.sealed_at,
            committed_at=restored.committed_at,
            reached_step=self._reached_step(),
            skipped=restored.skipped,
            why=why,
            at=datetime.now(timezone.utc),
            writer=new_nonce(),
        )
        winner = life.insist(lambda: generations.propose(life.store, node.job_id, record))
        return record if winner == record else None

    def _reached_step(self) -> int | None:
        status = self._life.status
        return status.progress()[0] if self.current is not None and status.has_session else None

    def _port(self, first: Member) -> int:
        """Return a port that was free on the first member: only its own heartbeat can know one."""
        if first.rank == self._rank:
            return free_port()
        beat = self._hearing.beats().get(first.rank)
        assert beat is not None, "a member without a heartbeat is never fresh"
        return beat.port

    # --- what is known of the others ------------------------------------------------------------

    def _other_members(self, generation: Generation) -> tuple[int, ...]:
        return tuple(member.rank for member in generation.members if member.rank != self._rank)

    def _view(self, known: Sequence[Generation], *, patient: bool) -> View:
        current = self.current
        others = self._hearing.others if current is None else self._other_members(current)
        standings = {rank: self._standing(rank, patient=patient) for rank in others}
        words = {rank: self._hearing.last_word(rank) for rank in others}
        return View(
            rank=self._rank,
            launch=self._life.node.launch,
            min_nodes=self._life.job.spec.nodes.min,
            current=current,
            newest=known[-1] if known else None,
            candidates=tuple(sorted((self._rank, *others))),
            standings=standings,
            exits={rank: word for rank, word in words.items() if word is not None},
        )

    def _standing(self, rank: int, *, patient: bool) -> Standing:
        current = self.current
        # Before the first generation there is nothing yet that another node could have died in.
        standing = self._hearing.standing(rank, has_come=current is None)
        if rank in self._cut_off:
            return Standing.LEAVING
        if standing is Standing.BUSY:
            return standing if patient else Standing.LEAVING
        if standing is Standing.FRESH and current is not None and self._had_time_to_start:
            hangs = rank in left_behind(current, self._hearing.beats())
            return Standing.LEAVING if hangs else standing
        return standing

    @property
    def _cut_off(self) -> frozenset[int]:
        return frozenset() if self._inquest is None else self._inquest.cut_off

    @property
    def _had_time_to_start(self) -> bool:
        return self._hearing.heard_seconds - self._begun_at > peers.START_SECONDS
