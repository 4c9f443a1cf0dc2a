"""Agree with the other members and the newcomers on the generation that this node runs next (P3)."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Sequence

from cloudspot.agent.delivery.checkpoint_restore import (
    Restored,
    newest_candidate,
    restore_newest,
    restore_this,
)
from cloudspot.agent.delivery.early_restore import EarlyRestore
from cloudspot.agent.ending.restart_policy import WEIGHT
from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.membership import peers
from cloudspot.agent.membership.drain_commit import await_commit, await_uploads
from cloudspot.agent.membership.failure_votes import FailureVotes, leaving_cut_off
from cloudspot.agent.membership.peer_heartbeats import PeerHeartbeats
from cloudspot.agent.membership.peers import (
    Adopt,
    Hold,
    Leave,
    Liveness,
    Patience,
    Propose,
    Roster,
    View,
    Wait,
    absent,
    left_behind,
    named,
    roster_of,
    verdict,
)
from cloudspot.agent.membership.reachability import free_port
from cloudspot.agent.membership.rescue_votes import RescueVotes
from cloudspot.agent.node_context import NodeContext
from cloudspot.jobstore.checkpoints import manifests
from cloudspot.jobstore.journal.lineage import head
from cloudspot.jobstore.layout.records import (
    Commit,
    Generation,
    Heartbeat,
    Intent,
    JournalRecord,
    Member,
    Seat,
    new_nonce,
)

_log = logging.getLogger(__name__)

WARN_SECONDS = 60.0
"""A node that has waited for others this long warns which nodes it waits for."""
STILL_WELL_SECONDS = 2.0
"""How long the finding that the others are well is used again without new requests."""


PROOF_SECONDS = peers.SUSPECT_SECONDS + 10.0
"""When a generation is written, the last check of which nodes live may be at most this old."""
MIN_HOLD_SECONDS = 60.0
MAX_HOLD_SECONDS = 1800.0
"""The bounds of ``nodes.hold`` if it is derived from the time that a start takes."""


class Membership:
    """This node's part in the agreement on generations."""

    def __init__(self, context: NodeContext, early: EarlyRestore | None = None) -> None:
        """Create it; ``early`` restores the checkpoint that was newest when this node began to prepare."""
        self._context = context
        self._early = early
        self._seat = context.seat
        self._peers = PeerHeartbeats(context)
        self.current: Generation | None = None
        """The generation that this node runs, holds or last ran."""
        self.entered_at = 0.0
        """When this node joined the current generation (monotonic)."""
        self._begun_at = 0.0
        """When this node joined the current generation, in ``heard_seconds``."""
        self._all_ran = False
        """Whether all members of the current generation were seen running it."""
        self._votes: FailureVotes | None = None
        self._rescue_votes: RescueVotes | None = None
        self._well_at = -math.inf
        """When all others were last found to be well (monotonic)."""
        self._patience = Patience()

    def start(self) -> None:
        """Begin to listen."""
        self._peers.start()

    def stop(self) -> None:
        """Stop listening, because this node leaves."""
        self._peers.stop()

    @property
    def votes(self) -> FailureVotes:
        """The members' votes on the end of the generation that this node runs or last ran."""
        assert self._votes is not None, "there are none before the first generation"
        return self._votes

    @property
    def rescue_votes(self) -> RescueVotes:
        """The reports on the state that the running generation's members hold after a loss."""
        assert self._rescue_votes is not None, "there are none before the first generation"
        return self._rescue_votes

    # --- while a generation runs ----------------------------------------------------------------

    def why_regroup(self) -> str | None:
        """Return why the running generation cannot go on, or None; make no request."""
        current = self.current
        if current is None:
            return None
        newer = self._context.orders.newer_than(current)
        if newer is not None:
            return f"generation {newer.number} has been proposed"
        others = self._other_members(current)
        lost = self._peers.lost(others, generation=current.number)
        if lost:
            return f"no sign of {named(lost)}"
        if self._all_ran:
            return None
        beats = self._peers.beats()
        missing = absent(current, beats) - {self._seat}
        missing -= self._peers.finished(current.number)
        self._all_ran = not missing
        if missing and self._had_time_to_start:
            return f"{named(missing)} does not run generation {current.number}"
        return None

    def has_lost(self) -> bool:
        """Return whether another member of the running generation is lost; make no request."""
        current = self.current
        return current is not None and bool(
            self._peers.lost(self._other_members(current), generation=current.number)
        )

    def notice_deadline(self) -> float | None:
        """Return the earliest deadline (monotonic) of members with a notice, or None; make no request."""
        return (
            None if self.current is None else self._peers.notice_deadline(self._other_members(self.current))
        )

    def someone_leaves(self) -> bool:
        """Look at the other members now; return whether any of them has a notice or has drained."""
        if self.current is not None:
            self._peers.refresh()
        return self.notice_deadline() is not None or self.someone_drains()

    def someone_drains(self) -> bool:
        """Return whether another member drains or has drained the running generation; make no request."""
        current = self.current
        if current is None:
            return False
        beats = self._peers.beats()
        drains = ("draining", current.number)
        heartbeats = (beat for seat in self._other_members(current) if (beat := beats.get(seat)) is not None)
        return any((phase.state, phase.generation) == drains for beat in heartbeats for phase in beat.phases)

    def others_are_idle(self) -> bool:
        """Return whether all other members of the generation are idle or finished; make no request."""
        current = self.current
        if current is None:
            return False
        unread, beats = self._peers.unread, self._peers.beats()
        busy = set(self._other_members(current)) - self._peers.finished(current.number)
        return unread.isdisjoint(busy) and all(
            (beat := beats.get(seat)) is not None
            and beat.idle is not None
            and beat.generation == current.number
            for seat in busy
        )

    def newcomers_wait(self) -> bool:
        """Return whether newcomers are ready and the running generation has a commit; make no request."""
        known = self._context.journal.known
        newest = next((one for one in reversed(known) if isinstance(one, Commit | Generation)), None)
        return isinstance(newest, Commit) and bool(self._peers.ready_newcomers())

    def has_replacement(self) -> bool:
        """Return whether a ready newcomer replaces this node or no particular node; make no request."""
        principals = self._peers.roster.principals
        return any(principals.get(seat, self._seat) == self._seat for seat in self._peers.ready_newcomers())

    # --- between two generations ----------------------------------------------------------------

    def obey(self) -> None:
        """Leave if the others have agreed to continue without this node; make no request.

        Raises:
            LeavingError: the others have agreed to this.
        """
        newer = None if self.current is None else self._context.orders.newer_than(self.current)
        if newer is not None and self._seat not in newer.seats:
            detail = f"generation {newer.number} goes on without this node"
            raise LeavingError(Leaving("superseded", detail))

    def others_are_well(self) -> bool:
        """Wait until the status of all other members is known; return whether each continues or has finished.

        Raises:
            LeavingError: this node must leave.
        """
        current = self.current
        if current is None:
            return True
        others = self._other_members(current)
        self._peers.ask()
        while True:
            self._context.obey()
            self._peers.refresh()
            self._peers.look_for_certificates()
            liveness = {seat: self._peers.liveness(seat) for seat in others}
            newer = self._context.orders.newer_than(current)
            if newer is not None:
                return set(current.seats) <= set(newer.seats)
            lost = {seat for seat in others if liveness[seat] in {Liveness.SUSPECT, Liveness.LEAVING}}
            beats = self._peers.beats()
            # An ending member has not reported its outcome yet, and a draining one not whether it has a
            # notice.
            unsaid = {
                seat
                for seat in others
                if (beat := beats.get(seat)) is not None
                and beat.state in {"ending", "draining"}
                and self._peers.exit_record(seat) is None
                and not self._peers.has_notice(seat)
                and not self._peers.is_gone(seat)
            }
            if not unsaid and Liveness.UNKNOWN not in liveness.values():
                self._well_at = time.monotonic()
                return lost <= self._peers.finished(current.number)
            self._peers.pause()

    def finished(self) -> frozenset[Seat]:
        """Return the other members that have finished the training."""
        return frozenset() if self.current is None else self._peers.finished(self.current.number)

    def await_commit(self, step: int) -> None:
        """Wait until the drain's checkpoint is committed, or one of its parts can no longer appear."""
        if self.current is not None:
            await_commit(self._context, self._peers, self.current, step)

    def await_uploads(self) -> None:
        """Wait until the other nodes have delivered their scripts' checkpoints, or cannot any more."""
        spec, status = self._context.job.spec.checkpoint, self._context.status
        if self.current is not None and spec.directory is not None and not status.has_session:
            await_uploads(self._context, self._peers, self.current)

    def next(self, why: str) -> tuple[Generation, Restored]:
        """Agree on the next generation to run, and restore its checkpoint on this node.

        While there are too few nodes, wait by joining generations that do no training. The proposer restores
        before it writes the generation, so ``restore_from`` names a checkpoint that was found complete,
        unless it is fetched on demand. A newcomer restores ahead of time, and again only if the generation
        resumes from a different checkpoint.

        Raises:
            LeavingError: this node is left out, is not needed, has waited too long, or got an order.
        """
        context = self._context
        if self.current is not None and time.monotonic() - self._well_at > STILL_WELL_SECONDS:
            self._peers.ask()
        restored: Restored | None = None
        checked = -1  # the journal's length when the restored checkpoint was last found to be the best
        ready_at: float | None = None
        while True:
            context.obey()
            self._peers.refresh()
            known = context.retry_until(context.journal.read)
            context.obey_journal(known)
            roster = roster_of(known)
            self._peers.open_seats.look(roster.candidates - self._peers.heard - {self._seat})
            self._peers.look_for_certificates()
            now = self._peers.heard_seconds
            waited = 0.0 if ready_at is None else now - ready_at
            self._patience.note(now, head(known))
            view = self._view(roster, patient=waited <= peers.BUSY_SECONDS)
            found = verdict(view)
            self._patience.spend(found)
            if isinstance(found, Leave):
                raise LeavingError(
                    Leaving(
                        found.outcome,
                        found.detail,
                        found.exit_code,
                        permanent=found.permanent,
                        is_consequence=found.permanent,
                    )
                )
            if isinstance(found, Adopt | Hold):
                among = self._cut_off.intersection(found.generation.seats)
                if among:
                    raise LeavingError(leaving_cut_off(self._context, among))
                self.enter(found.generation)
                if isinstance(found, Hold):
                    _log.warning(
                        "generation %d has %d of at least %d nodes and is waiting for others",
                        found.generation.number, len(found.generation.members), view.min_nodes,
                    )  # fmt: skip
                    why = "joined"  # this node waits for others to join
                    continue
                context.status.state = "restoring"
                restored = restored or self._restored_early()
                restored = restore_this(context, found.generation.restore_from, restored)
                if restored is not None:
                    return found.generation, restored
                continue  # its checkpoint is deleted: another generation follows
            proposes = isinstance(found, Propose)
            is_old = len(known) != checked and (view.is_member or proposes)
            # Damage to a checkpoint that is fetched on demand is recorded outside the journal.
            may_be_damaged = proposes and restored is not None and restored.on_demand is not None
            if restored is None or is_old or may_be_damaged:
                restored = restored or self._restored_early()
                best = None if restored is None else newest_candidate(context, known, restored.skipped)
                if restored is None or restored.checkpoint != best:
                    context.status.state = "restoring"
                    restored = restore_newest(context)
                    continue  # look again, because the restore took time
                checked = len(known)
            if isinstance(found, Wait):
                if context.status.state != "ready":
                    context.status.state = "ready"
                    self._note_start()
                    ready_at = now
                if context.status.is_regrouping != self._peers.is_close:
                    context.status.is_regrouping = self._peers.is_close
                context.status.warn("waiting", self._awaited_text(view) if waited > WARN_SECONDS else None)
                self._peers.pause()
                continue
            if roster.members and self._peers.asked_seconds > PROOF_SECONDS:
                self._peers.ask()
                continue
            if not view.is_member and context.retry_until(
                lambda: manifests.complete(context.store, context.journal, context.job_id)
            ):
                continue  # the members had uploaded more than they committed
            record = self._propose(found, known, restored, why)
            if record is None:
                continue
            self._note_start()
            if self._seat not in record.seats:
                continue  # a stand-in is ready: this node leaves
            if len(record.members) >= view.min_nodes:
                self.enter(record)
                return record, restored

    def _restored_early(self) -> Restored | None:
        """On the first call, return the checkpoint that was restored during the setup; afterwards None."""
        early, self._early = self._early, None
        return None if early is None else early.finish()

    def _note_start(self) -> None:
        """Record, only once, the time from the launch's intent until this node was ready."""
        memory, launch = self._context.memory, self._seat.launch
        if memory.start_seconds is None:
            intents = (one for one in self._context.journal.known if isinstance(one, Intent))
            asked_at = next((one.at for one in intents if one.launch == launch), None)
            if asked_at is not None:
                memory.start_seconds = (self._context.now() - asked_at).total_seconds()
                memory.save(self._context.node)

    @property
    def _hold_seconds(self) -> float:
        asked = self._context.job.spec.nodes.hold
        own = self._context.memory.start_seconds or 0.0
        return min(max(own, MIN_HOLD_SECONDS), MAX_HOLD_SECONDS) if asked is None else asked

    def _awaited_text(self, view: View) -> str | None:
        beats, busy_states = self._peers.beats(), peers.PREPARING_STATES | peers.BUSY_STATES
        busy = {
            seat: beat.state
            for seat in sorted(view.liveness)
            if (beat := beats.get(seat)) is not None and beat.state in busy_states
        }
        if busy:
            awaited = ", ".join(f"node {seat} ({state})" for seat, state in busy.items())
            return f"ready, and idle until {awaited} is ready too"
        num_here = len(view.roster.members) if view.is_member else len(view.ready_newcomers)
        if num_here < view.min_nodes and (view.is_member or view.gone.issuperset(view.roster.members)):
            return f"ready, and idle: {num_here} of at least {view.min_nodes} nodes are here"
        return None

    def enter(self, generation: Generation) -> None:
        """Join a generation: a new one, or one that an earlier agent of this node started."""
        self._context.status.warn("waiting", None)
        self.current = generation
        self.entered_at = time.monotonic()
        self._begun_at = self._peers.heard_seconds
        self._all_ran = False
        self._patience.begin()
        self._votes = FailureVotes(self._context, self._peers, generation)
        self._rescue_votes = RescueVotes(self._context, self._peers, generation)
        status, restored = self._context.status, generation.restore_from
        status.restored_step = 0 if restored is None else restored.step
        status.generation = generation.number
        # From now on, the node reports on this generation, even if it leaves before the training starts.
        status.handoff = self._context.node.handoff(generation.number)

    def _propose(
        self, found: Propose, known: Sequence[JournalRecord], restored: Restored, why: str
    ) -> Generation | None:
        """Append the generation after the ``known`` records; return None if another record came first."""
        context = self._context
        beats = self._peers.beats()
        members = tuple(self._member(seat, beats.get(seat)) for seat in found.seats)
        record = Generation(
            number=found.number,
            members=members,
            endpoint=f"{members[0].address}:{self._port(members[0])}",
            restore_from=restored.checkpoint,
            skipped=restored.skipped,
            why=self._reason_to_start(why, roster_of(known), found.seats),
            at=context.now(),
            writer=new_nonce(),
        )
        is_ours = context.retry_until(lambda: context.journal.append(record, len(known) + 1))
        return record if is_ours else None

    def _member(self, seat: Seat, beat: Heartbeat | None) -> Member:
        identity = self._context.job.identity
        if seat == self._seat:
            instance_id, address = identity.instance_id, identity.address
        else:
            assert beat is not None, "a node without a heartbeat is never fresh"
            instance_id, address = beat.instance_id, beat.address
        return Member(launch=seat.launch, rank=seat.rank, instance_id=instance_id, address=address or "")

    def _reason_to_start(self, why: str, roster: Roster, seats: Collection[Seat]) -> str:
        """Return why a generation of these nodes starts; ``why`` is why the training ended here."""
        if roster.newest is None:
            return "first"
        left, added = set(roster.members) - set(seats), set(seats) - set(roster.members)
        if self._seat not in roster.members:
            return "relaunched"
        if left:
            replaced = {roster.principals.get(seat) for seat in added}
            went_orderly = all(seat in replaced or self._peers.has_notice(seat) for seat in left)
            return "handed-over" if added and went_orderly else "regrouped"
        # A failure still counts as a failure if nodes join.
        return "joined" if added and why not in WEIGHT else why

    def _port(self, first: Member) -> int:
        """Return a port that is free on the first member; only that node can choose it."""
        if first.seat == self._seat:
            return free_port()
        beat = self._context.retry_until(lambda: self._peers.read_beat(first.seat))
        assert beat is not None, "a member without a heartbeat is never fresh"
        return beat.port

    # --- what is known of the others ------------------------------------------------------------

    def _other_members(self, generation: Generation) -> tuple[Seat, ...]:
        return tuple(seat for seat in generation.seats if seat != self._seat)

    def _view(self, roster: Roster, *, patient: bool) -> View:
        # Use the records that were read in this pass, because another thread may have read more of the
        # journal.
        others = self._peers.others | (set(roster.members) - {self._seat})
        exits = {seat: self._peers.exit_record(seat) for seat in others}
        return View(
            seat=self._seat,
            roster=roster,
            min_nodes=self._context.job.spec.nodes.min,
            max_nodes=self._context.job.spec.nodes.max,
            current=self.current,
            liveness={seat: self._liveness(roster, seat, patient=patient) for seat in others},
            gone=frozenset(seat for seat in others if self._peers.is_gone(seat)),
            exits={seat: record for seat, record in exits.items() if record is not None},
            unclaimed=self._peers.open_seats.unclaimed(roster.candidates - others),
            late_seconds=self._patience.late_seconds,
            held_seconds=self._patience.held_seconds,
            hold_seconds=self._hold_seconds,
        )

    def _liveness(self, roster: Roster, seat: Seat, *, patient: bool) -> Liveness:
        current = self.current
        # Before the first generation, any heartbeat suffices: no node can have died in a generation yet.
        standing = self._peers.liveness(seat, has_come=not roster.members)
        if seat in self._cut_off:
            return Liveness.LEAVING
        if standing is Liveness.BUSY:
            is_stuck = seat in roster.members and not patient
            return Liveness.LEAVING if is_stuck else standing
        if standing is Liveness.FRESH and current is not None and self._had_time_to_start:
            hangs = seat in left_behind(current, self._peers.beats())
            return Liveness.LEAVING if hangs else standing
        return standing

    @property
    def _cut_off(self) -> frozenset[Seat]:
        return frozenset() if self._votes is None else self._votes.cut_off

    @property
    def _had_time_to_start(self) -> bool:
        return self._peers.heard_seconds - self._begun_at > peers.START_SECONDS
