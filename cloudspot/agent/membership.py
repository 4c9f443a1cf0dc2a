"""Finds, together with the other nodes of the launch, the generation that this node runs next (P3)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from cloudspot.agent.heartbeat import free_port
from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.peers import (
    START_SECONDS,
    Adopt,
    Leave,
    PeerClock,
    Propose,
    Standing,
    View,
    Wait,
    absent,
    verdict,
)
from cloudspot.agent.restore import Restored, newest_candidate, restore_newest, restore_this
from cloudspot.errors import CloudspotError, ObjectMissing
from cloudspot.jobstore import codec, generations, keys, launches, manifests
from cloudspot.jobstore.records import CheckpointId, Exit, Generation, Heartbeat, Member, Notice, new_nonce

if TYPE_CHECKING:
    from cloudspot.agent.life import Life

_log = logging.getLogger(__name__)

LISTEN_SECONDS = 1.0
"""How often the others' heartbeats are read while the training runs."""
REGROUP_SECONDS = 0.25
"""The same while the next generation is being agreed on."""
COMMIT_SECONDS = 60.0
"""How long the survivors of a drain wait for its commit, where no deadline is nearer."""


class Membership:
    """This node's ear for the others, and its part in the agreement on generations."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._rank = life.job.identity.rank
        self._others = tuple(rank for rank in range(life.job.spec.nodes.max) if rank != self._rank)
        self._clock = PeerClock()
        self._beats: dict[int, Heartbeat | None] = {}
        self._lock = threading.Lock()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="peers", daemon=True)
        self.current: Generation | None = None
        """The generation that this node runs, or ran last."""
        self._adopted_at = 0.0

    def start(self) -> None:
        """Begin to listen; a job of one node has nobody to listen to."""
        if self._others:
            self._thread.start()

    def resume(self, generation: Generation) -> None:
        """Go on with the generation that an earlier agent of this machine has started."""
        self.current = generation
        self._adopted_at = time.monotonic()

    # --- while a generation runs ----------------------------------------------------------------

    def why_regroup(self) -> str | None:
        """Say why the running generation cannot go on, or None."""
        current, orders = self.current, self._life.orders
        if current is None:
            return None
        newer = orders.newer
        if newer is not None and newer.number > current.number:
            return f"generation {newer.number} has been proposed"
        others = [member.rank for member in current.members if member.rank != self._rank]
        with self._lock:
            lost = sorted(self._clock.suspects(others))
            missing: Sequence[int] = ()
            if time.monotonic() - self._adopted_at > START_SECONDS:
                beats = {rank: self._beats.get(rank) for rank in others}
                missing = sorted(absent(current, beats) - {self._rank})
        if lost:
            return f"no sign of node {', '.join(map(str, lost))}"
        if missing:
            return f"node {', '.join(map(str, missing))} does not run generation {current.number}"
        return None

    # --- between two generations ----------------------------------------------------------------

    def others_are_well(self) -> bool:
        """Wait until it is clear how the other members stand; say whether all of them go on.

        Raises:
            LeavingError: this node has to go meanwhile.
        """
        if self.current is None:
            return True
        others = [member.rank for member in self.current.members if member.rank != self._rank]
        self._mark()
        while True:
            self._life.obey()
            standings = self._standings(others)
            newer = self._life.orders.newer
            if newer is not None and newer.number > self.current.number:
                return len(newer.members) == len(self.current.members)
            if Standing.UNKNOWN not in standings.values():
                return all(standing is Standing.FRESH for standing in standings.values())
            self._pause()

    def await_commit(self, step: int) -> None:
        """Wait until the drain's checkpoint is committed, by whoever sees its last part, or cannot be."""
        life, current = self._life, self.current
        if current is None or not self._others:
            return
        checkpoint = CheckpointId(current.number, step)
        others = [member.rank for member in current.members if member.rank != self._rank]
        end = time.monotonic() + COMMIT_SECONDS
        while time.monotonic() < end and not life.orders.pending:
            if checkpoint in life.insist(lambda: manifests.read_commits(life.store, life.node.job_id)):
                return
            gone = {Standing.SUSPECT}
            standings = self._standings(others)
            done = [rank for rank in others if standings[rank] in gone or self._exit(rank) is not None]
            if len(done) == len(others):
                return  # whoever could have committed it has had its time
            self._pause()

    def next(self, why: str) -> tuple[Generation, Restored]:
        """Agree on the next generation, with its checkpoint restored on this node.

        The proposer restores before it writes: ``restore_from`` names what was found whole.

        Raises:
            LeavingError: this node is not in it, or too few are left, or an order came.
        """
        life, node = self._life, self._life.node
        if self.current is not None:
            self._mark()
        restored: Restored | None = None
        while True:
            life.obey()
            known = life.insist(lambda: generations.read_generations(life.store, node.job_id))
            found = verdict(self._view(known))
            if isinstance(found, Leave):
                raise LeavingError(
                    Leaving(found.outcome, found.detail, found.exit_code, permanent=found.permanent)
                )
            if isinstance(found, Adopt):
                self._run(found.generation)
                return found.generation, restore_this(life, found.generation.restore_from, restored)
            if restored is None or restored.checkpoint != newest_candidate(life, known, restored.skipped):
                restored = restore_newest(life, known)
                continue  # that took its time: look again
            if isinstance(found, Wait):
                self._pause()
                continue
            record = self._propose(found, known, restored, why)
            if record is not None:
                self._run(record)
                return record, restored

    def _run(self, generation: Generation) -> None:
        self.current = generation
        self._adopted_at = time.monotonic()
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
        record = Generation(
            number=found.number,
            launch=node.launch,
            members=members,
            endpoint=f"{members[0].address}:{self._port(members[0])}",
            restore_from=restored.checkpoint,
            skipped=restored.skipped,
            why=why,
            at=datetime.now(timezone.utc),
            writer=new_nonce(),
        )
        winner = life.insist(lambda: generations.propose(life.store, node.job_id, record))
        return record if winner == record else None

    def _port(self, first: Member) -> int:
        """Return a port that was free on the first member: only its own heartbeat can know one."""
        if first.rank == self._rank:
            return free_port(first.address)
        with self._lock:
            beat = self._beats.get(first.rank)
        assert beat is not None, "a member without a heartbeat is never fresh"
        return beat.port

    # --- what is known of the others ------------------------------------------------------------

    def _view(self, known: Sequence[Generation]) -> View:
        current = self.current
        if current is None:
            candidates = tuple(sorted((self._rank, *self._others)))
        else:
            candidates = tuple(member.rank for member in current.members)
        others = [rank for rank in candidates if rank != self._rank]
        exits = {rank: word for rank in others if (word := self._exit(rank)) is not None}
        return View(
            rank=self._rank,
            launch=self._life.node.launch,
            min_nodes=self._life.job.spec.nodes.min,
            current=current,
            newest=known[-1] if known else None,
            candidates=candidates,
            standings=self._standings(others),
            exits=exits,
        )

    def _standings(self, others: Sequence[int]) -> Mapping[int, Standing]:
        found = {}
        for rank in others:
            with self._lock:
                standing = self._clock.standing(rank)
                beat = self._beats.get(rank)
            if self._exit(rank) is not None or self._has_notice(rank):
                standing = Standing.LEAVING
            elif standing is not Standing.SUSPECT and beat is not None:
                if beat.state == "ending":
                    standing = Standing.LEAVING
                elif beat.state == "setup":
                    standing = Standing.UNKNOWN  # it lives, and is not ready: a generation would wait for it
                elif self.current is None:
                    standing = Standing.FRESH  # it came with us: there is nothing yet to have died in
            found[rank] = standing
        return found

    def _exit(self, rank: int) -> Exit | None:
        key = keys.exit_record(self._life.node.job_id, self._life.node.launch, rank)
        data = self._read(key)
        return None if data is None else codec.decode(data, Exit, key=key)

    def _has_notice(self, rank: int) -> bool:
        key = keys.notice(self._life.node.job_id, self._life.node.launch, rank)
        data = self._read(key)
        return data is not None and codec.decode(data, Notice, key=key).rank == rank

    def _read(self, key: str) -> bytes | None:
        def get() -> bytes | None:
            try:
                return self._life.store.get(key)
            except ObjectMissing:
                return None

        return self._life.insist(get)

    def _mark(self) -> None:
        """Ask anew who lives; the heartbeats come faster until that is settled."""
        with self._lock:
            self._clock.mark()
        self._life.status.is_regrouping = True

    def _pause(self) -> None:
        self._listening.set()
        self._life.orders.wait(REGROUP_SECONDS)

    # --- the thread -----------------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            self._hear()
            regrouping = self._life.status.is_regrouping
            self._listening.wait(REGROUP_SECONDS if regrouping else LISTEN_SECONDS)
            self._listening.clear()

    def _hear(self) -> None:
        """Read the others' heartbeats once."""
        node = self._life.node
        beats: dict[int, Heartbeat | None] = {}
        try:
            for rank in self._others:
                key = keys.heartbeat(node.job_id, node.launch, rank)
                try:
                    beats[rank] = codec.decode(self._life.store.get(key), Heartbeat, key=key)
                except ObjectMissing:
                    beats[rank] = None
        except CloudspotError as error:
            _log.warning("the other nodes are not heard: %s", error)
            with self._lock:
                self._clock.hear(time.monotonic(), None)
            return
        counters = {rank: None if beat is None else beat.counter for rank, beat in beats.items()}
        with self._lock:
            self._beats.update(beats)
            self._clock.hear(time.monotonic(), counters)
