"""Simulated nodes: they claim their seat, agree by the agents' own verdict, train, save, and end themselves.

Journal, seats and records are real and behind a store that fails. What a node hears of the others is true but
for suspicion, which may be wrong: how a real one comes to it has tests and histories of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from support.worlds.simcloud import NOTICE_SECONDS, Machine, SimCloud
from support.worlds.simulation import Violation, World

from cloudspot.agent.ending.keeping import GUARD_SECONDS, TRY_SECONDS
from cloudspot.agent.membership import peers
from cloudspot.agent.membership.peers import (
    Adopt,
    Hold,
    Leave,
    Liveness,
    Patience,
    Propose,
    View,
    roster_of,
    verdict,
)
from cloudspot.controller.supply.restarts import Buy, after_losses
from cloudspot.errors import JobNotFound, ObjectMissing, TransientError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.creation import create
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import find_meta, find_record
from cloudspot.jobstore.jobs.reader import HistoryReader, job_file_of
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import head, newest_generation, why_over
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import (
    Commit,
    Exit,
    Finished,
    Generation,
    Heartbeat,
    Intent,
    Kept,
    Member,
    Moved,
    Notice,
    Resumed,
    Seat,
    new_nonce,
)
from cloudspot.jobstore.nodes.heartbeat_size import fill_up
from cloudspot.jobstore.nodes.keeping import VERDICT_SECONDS
from cloudspot.jobstore.nodes.launches import claim_slot
from cloudspot.model import EndReason, NodeIdentity
from cloudspot.story import inspection

Result = TypeVar("Result")
Doing = Generator[float, None, Result]
Save = tuple[int, int, int]
"""Generation, step, and whether it is a drain's own."""
HOLD_SECONDS = 600.0
TO_BUY_SECONDS = 120.0
"""So long after a seat has become free, or a wait has ended, drivers have bought."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What the simulated script does, and what is wrong with the simulated nodes."""

    num_steps: int = 8
    steps_per_save: int = 3
    hang: float = 0.0
    """How likely a node falls silent at each look, some for minutes and some for ever."""
    doubt: float = 0.01
    """How likely it takes a node that lives for lost."""
    fails: float = 0.0
    """How likely the training fails for good at each step."""
    tells_restored: bool = False
    """Whether heartbeats name the step from which the training went on, so that its pace is known."""
    heeds_seats: bool = True
    """False: nodes run user code whether or not their claim held, as if protocol P2 had no seats."""


@dataclass(eq=False)
class SimTraining:
    """What the ranks of the newest generation do together; nobody sees all of it but the simulation."""

    world: World
    script: Script
    nodes: dict[Seat, SimNode] = field(default_factory=dict)
    """By seat: those that have claimed theirs."""
    reached: dict[int, int] = field(default_factory=dict)
    """By generation."""
    needed: dict[Save, frozenset[Seat]] = field(default_factory=dict)
    parts: dict[Save, set[Seat]] = field(default_factory=dict)
    last_join: tuple[int, int] = (-1, -1)
    """The generation that ended for newcomers last, and its newest commit then."""
    doubted: set[Seat] = field(default_factory=set)
    """Who was taken for lost and was not."""
    drained: dict[int, tuple[int, frozenset[Seat]]] = field(default_factory=dict)
    """By generation that was drained: at which step, and who stays of those who upload it."""

    hung_at: float = -math.inf
    """When a node was last seen to hang that may yet deliver what only it holds, so that its seat stays taken."""

    def look_for_hanging_nodes(self) -> None:
        if any(node.is_silent and not node.machine.has_ended for node in self.nodes.values()):
            self.hung_at = self.world.time

    def live(self) -> Doing[None]:
        """Be the ranks, for as long as there is a job."""
        while True:
            yield self.world.rng.uniform(2, 20)
            running = {node.generation.number: node.generation for node in self.nodes.values() if node.runs}
            for generation in running.values():
                if self._is_whole(generation):
                    self._go_on(generation)

    def _is_whole(self, generation: Generation) -> bool:
        nodes = [self.nodes.get(seat) for seat in generation.seats]
        return all(
            node is not None
            and node.runs
            and node.ended is None
            and node.is_well
            and node.number == generation.number
            for node in nodes
        )

    def _go_on(self, generation: Generation) -> None:
        nodes = [self.nodes[seat] for seat in generation.seats]
        begun = 0 if generation.restore_from is None else generation.restore_from.step
        step = self.reached.setdefault(generation.number, begun)
        doomed = frozenset(node.seat for node in nodes if node.machine.has_notice)
        if step == self.script.num_steps:
            self._save(generation, step, doomed, ends="succeeded")
        elif self.script.fails and self.world.rng.random() < self.script.fails:
            first = self.world.rng.choice(nodes)
            for node in nodes:
                node.ended, node.is_first_failed = ("broken", step), node is first
        elif doomed and self.world.rng.random() < 0.5:
            self._save(generation, step, doomed, ends="drained")
        elif nodes[0].is_joined_soon:
            self._save(generation, step, doomed, ends="drained")
            self._note_join(generation, nodes[0])
        else:
            self.reached[generation.number] = step + 1
            if (step + 1) % self.script.steps_per_save == 0:
                self._save(generation, step + 1, doomed, ends=None)

    def _note_join(self, generation: Generation, node: SimNode) -> None:
        committed = head(node.journal.known)
        found = (generation.number, 0 if committed is None else committed.step)
        if found[1] == self.last_join[1] and not any(one.machine.has_notice for one in self.nodes.values()):
            raise Violation("two restarts for newcomers with no new commit between them")
        self.last_join = found

    def _save(self, generation: Generation, step: int, doomed: frozenset[Seat], *, ends: str | None) -> None:
        """Let each node upload its part, and leave the loop if this is the end."""
        steady = frozenset(generation.seats) - doomed or frozenset(generation.seats)
        save = (generation.number, step, int(ends is not None))
        self.needed.setdefault(save, steady)
        self.parts.setdefault(save, set())
        for seat in generation.seats:
            node = self.nodes[seat]
            if seat in self.needed[save] - self.parts[save]:
                node.todo.append(save)
            if ends is not None:
                node.ended = (ends, step)
        if ends is not None:
            self.drained[generation.number] = step, steady - doomed

    def check_next(
        self, record: Generation, before: Generation | None, principals: Mapping[Seat, Seat]
    ) -> None:
        """Check a generation that was just written against what the one before has come to."""
        if before is None:
            return
        stood_in = {principals[seat] for seat in record.seats if seat in principals}
        for seat in set(before.seats) - set(record.seats) - stood_in - self.doubted:
            node = self.nodes.get(seat)
            if node is not None and node.is_well and not node.machine.has_notice and not node.was_silent:
                raise Violation("a healthy member is sent away and nobody stands in for it")
        step, steady = self.drained.get(before.number, (0, frozenset()))
        kept = 0 if record.restore_from is None else record.restore_from.step
        nodes = [self.nodes[seat] for seat in steady if seat not in self.doubted]
        if (
            kept < step
            and nodes
            and len(nodes) == len(steady)
            and all(one.is_well and not one.was_silent for one in nodes)
        ):
            raise Violation("a drain that all steady members had sealed is given up")

    def is_complete(self, save: Save) -> bool:
        """Return whether all parts of the save are uploaded."""
        return self.needed[save] <= self.parts[save]

    def complete_saves(self, generation: int) -> list[Save]:
        """Return the saves of a generation whose parts are all there."""
        return sorted(save for save in self.needed if save[0] == generation and self.is_complete(save))


class SimNode:
    """One machine's agent."""

    def __init__(
        self,
        world: World,
        cloud: SimCloud,
        store: ObjectStore,
        machine: Machine,
        training: SimTraining,
        min_nodes: int,
    ) -> None:
        self.world = world
        self.machine = machine
        self.seat = Seat(machine.launch, machine.rank)
        self.training = training
        self.script = training.script
        self._min_nodes = min_nodes
        self._cloud = cloud
        self._store = with_retries(store, sleep=world.sleep)
        self._inner = getattr(store, "inner", store)
        self._down_seconds = getattr(store, "down_seconds", lambda _since: 0.0)
        self._landed_at = getattr(store, "landed_at", lambda _key: world.time)
        self._job_id = machine.job_id
        self.journal = Journal(self._store, self._job_id)
        self.generation: Generation | None = None
        self.runs = False
        self.ended: tuple[str, int] | None = None
        """How the generation's training ended here, and at which step."""
        self.is_first_failed = False
        self.todo: list[Save] = []
        """What it has yet to upload."""
        self.state = "setup"
        self.is_silent = False
        self.was_silent = False
        self.started_at = 0.0
        self.kept_until: float | None = None
        self._beats = 0
        self._changes = 0
        self._guards: set[float] = set()
        self._told: tuple[str, int] | None = None
        self._seen: dict[Seat, float] = {}
        self._patience = Patience()
        self._deaf_seconds = 0.0
        """How long it did nothing: a node waits only while it can hear."""

    @property
    def is_well(self) -> bool:
        """Say whether it is there and can be heard."""
        return not self.machine.has_ended and not self.is_silent and self.exit_record is None

    @property
    def number(self) -> int:
        """Return the number of the generation that it runs, or ran last; 0 before the first."""
        return 0 if self.generation is None else self.generation.number

    # --- a life -----------------------------------------------------------------------------------

    def live(self) -> Doing[None]:
        """Be a node, from power-on to the end."""
        # What its launch was requested for; a real node finds it by the hash in its request.
        try:
            turns = HistoryReader(self._inner, self._job_id).read().turns
        except JobNotFound:
            return  # A stray of another store's job: it bills, and does nothing here.
        launch = self.machine.launch
        self._resumption = sum(isinstance(turn, Resumed) and before < launch for before, turn in turns)
        rng = self.world.rng
        if self.world.chance(0.03):
            return  # It hangs in its boot, and bills.
        slow = self.world.chance(0.1)
        yield rng.uniform(30, 1500) if slow else rng.uniform(3, 20)
        machine = self.machine
        identity = NodeIdentity(instance_id=machine.id, rank=machine.rank, address="10.0.0.1")
        slot = yield from self._persist(
            lambda: claim_slot(
                self._store, self._job_id, machine.launch, machine.rank, identity, now=self.world.now
            )
        )
        if slot.instance_id != machine.id and self.script.heeds_seats:
            self._cloud.end(machine, EndReason.SELF)
            return
        self._cloud.enter_user_code(machine)
        self.training.nodes[self.seat] = self
        yield from self._beat()
        until = self.world.time + (rng.uniform(1, 600) if self.world.chance(0.1) else rng.uniform(1, 30))
        while self.world.time < until:
            yield rng.uniform(5, 20)
            yield from self._fall_silent()
            yield from self._beat()
        outcome = yield from self._work()
        self._cloud.leave_user_code(machine)
        yield from self._leave(outcome)
        if not self.world.chance(0.05):  # Else its shutdown hangs.
            yield rng.uniform(0, 10)
            self._cloud.end(machine, EndReason.SELF)

    def _leave(self, outcome: str) -> Doing[None]:
        """Say the last word; after a failure, perhaps stay for inspection: what ``Keeping`` does."""
        history = HistoryReader(self._inner, self._job_id).read()
        is_asked = job_file_of(history.submission).limits.keep_failed is not None
        if outcome == "broken" and is_asked:
            with suppress(TransientError):  # then it is not kept
                yield from self._claim()
        waits = outcome == "failed" and is_asked and not self.machine.has_notice
        num_known = len(self.journal.known)
        yield from self._say(outcome, waits=waits)
        until = self.world.time + VERDICT_SECONDS
        while waits and self.kept_until is None and self.world.time < until:
            yield self.world.rng.uniform(1, 3)
            known = yield from self._persist(self.journal.read)
            kept = self._find_kept(known)
            if kept is not None and kept.instance_id == self.machine.id:
                self._keep(self.world.time + (kept.until - self.world.now()).total_seconds())
            elif kept is not None or any(isinstance(one, Intent) for one in known[num_known:]):
                return
        if self.kept_until is not None:
            yield from self._stay()

    def _claim(self) -> Doing[None]:
        over = self.world.time + TRY_SECONDS
        until = self.world.time + (0.0 if self.is_first_failed else 20.0)
        while not self.machine.has_notice:
            known = yield from self._persist(self.journal.read, until=over)
            if self._find_kept(known) is not None or why_over(known, self.seat.launch) is not None:
                return
            if self.world.time < until:
                yield 2.0
                continue
            history = yield from self._persist(HistoryReader(self._store, self._job_id).read, until=over)
            spec, now = job_file_of(history.submission), self.world.now()
            record = inspection.keep(spec, history, self.seat, detail="broken", exit_code=1, now=now)
            if record is None:
                return
            # From before the record is written, which may take long.
            kept_until = self.world.time + (record.until - record.at).total_seconds()
            number = history.num_records + 1
            self._start_guard(kept_until)
            if (yield from self._persist(lambda: self.journal.append(record, number), until=over)):  # noqa: B023
                self.kept_until = kept_until
                return
            self._guards.clear()

    def _find_kept(self, known) -> Kept | None:
        newest = next((one for one in reversed(known) if isinstance(one, Kept | Resumed)), None)
        return newest if isinstance(newest, Kept) else None

    def _keep(self, until: float) -> None:
        self.kept_until = until
        self._start_guard(until)

    def _start_guard(self, until: float) -> None:
        self._guards.add(until)
        self.world.start(self._guard(until), delay=max(0.0, until - self.world.time) + GUARD_SECONDS)

    def _guard(self, until: float) -> Doing[None]:
        """End the machine from beside an agent that hangs."""
        if until in self._guards:
            self._cloud.end(self.machine, EndReason.SELF)
        return
        yield

    def _stay(self) -> Doing[None]:
        self._set("kept")
        assert self.kept_until is not None
        while self.world.time < self.kept_until and not self.machine.has_notice:
            yield from self._fall_silent()
            yield from self._beat()
            yield min(self.world.rng.uniform(1, 8), max(0.0, self.kept_until - self.world.time))
            known = yield from self._persist(self.journal.read)
            is_over = why_over(known, self.seat.launch, is_kept=True) is not None
            if is_over or (yield from self._persist(self._is_stopped)):
                return

    def _work(self) -> Doing[str]:
        while True:
            self._set("ready")
            outcome = yield from self._agree()
            if outcome is not None:
                return outcome
            self.runs, self.ended, self.started_at = True, None, self.world.time
            self._set("running")
            yield from self._beat()
            outcome = yield from self._train()
            self.runs = False
            if outcome is not None:
                return outcome

    def _set(self, state: str) -> None:
        self.state = state

    # --- between two generations ------------------------------------------------------------------

    def _agree(self) -> Doing[str | None]:
        """Return when there is a generation to run, or how to leave."""
        self._patience.begin()
        while True:
            yield self.world.rng.uniform(1, 8)
            yield from self._fall_silent()
            while self.todo:
                yield from self._upload(self.todo[0])
            known = yield from self._persist(self.journal.read)
            if why_over(known, self.seat.launch) is not None:
                return "superseded"
            if self.machine.has_notice:
                yield from self._persist(self._write_notice)
                return "drained"
            if (yield from self._persist(self._is_stopped)):
                return "stopped"
            yield from self._beat()
            self._patience.note(self.world.time - self._deaf_seconds, head(known))
            found = self._verdict(known)
            self._patience.spend(found)
            self.training.look_for_hanging_nodes()
            if isinstance(found, Leave):
                calm_seconds = self.world.time - self.world.calm_at
                is_replaced = (
                    self._cloud.is_driven and self.world.time - self.training.hung_at > TO_BUY_SECONDS
                )
                is_due = is_replaced and calm_seconds > 2 * HOLD_SECONDS and self._had_time_to_buy()
                if found.outcome == "left" and is_due:
                    raise Violation("a warm survivor is let go although there are capacity and a controller")
                return found.outcome
            if isinstance(found, Adopt):
                self.generation = found.generation
                return None
            if isinstance(found, Hold):
                self.generation = found.generation
                self._patience.begin()
            elif isinstance(found, Propose):
                yield from self._propose(found, known)

    def _had_time_to_buy(self) -> bool:
        """Say whether drivers would have bought two minutes ago: they wait after failures, and then give up."""
        history = HistoryReader(self._inner, self._job_id).read()
        earlier = self.world.now() - timedelta(seconds=TO_BUY_SECONDS)
        return isinstance(after_losses(job_file_of(history.submission), history, earlier), Buy)

    def _verdict(self, known):
        liveness, exits, gone = {}, {}, set()
        roster = roster_of(known)
        for seat in sorted(roster.candidates - {self.seat}):
            peer = self.training.nodes.get(seat)
            if peer is None:
                if seat in roster.members:
                    liveness[seat] = Liveness.SUSPECT
                    gone.add(seat)
                continue
            standing = self._liveness(peer, is_member=seat in roster.members)
            liveness[seat] = standing
            word = peer.exit_record
            if word is not None:
                exits[seat] = word
            if word is not None or standing is Liveness.SUSPECT:
                gone.add(seat)
        taken = {(launch, rank) for launch, rank in self._slots()}
        unclaimed = {}
        for seat in roster.seats:
            if tuple(seat) not in taken:
                unclaimed[seat] = self.world.time - self._seen.setdefault(seat, self.world.time)
        return verdict(
            View(
                seat=self.seat,
                roster=roster,
                min_nodes=self._min_nodes,
                max_nodes=self._cloud.max_nodes,
                current=self.generation,
                liveness=liveness,
                gone=frozenset(gone),
                exits=exits,
                unclaimed=unclaimed,
                late_seconds=self._patience.late_seconds,
                held_seconds=self._patience.held_seconds,
                hold_seconds=HOLD_SECONDS,
            )
        )

    def _liveness(self, peer: SimNode, *, is_member: bool) -> Liveness:
        if peer.exit_record is not None:
            return Liveness.LEAVING
        if not peer.is_well:
            return Liveness.SUSPECT
        if self.world.chance(self.script.doubt):
            self.training.doubted.add(peer.seat)
            return Liveness.SUSPECT
        if peer.has_written_notice:
            # Its drain may go on: whoever takes it for gone goes on without what it uploads.
            return Liveness.LEAVING
        if peer.state == "setup":
            return Liveness.UNKNOWN
        if peer.todo:
            return Liveness.BUSY
        if peer.state == "running":
            return Liveness.UNKNOWN if is_member else Liveness.FRESH
        return Liveness.FRESH

    def _slots(self):
        prefix = keys.launches_prefix(self._job_id)
        for meta in self._inner.list_objects(prefix):
            launch, kind, rank = meta.key.removeprefix(prefix).split("/")
            if kind == "nodes":
                yield int(launch), int(rank)

    def _propose(self, found: Propose, known) -> Doing[None]:
        newest = newest_generation(known)
        late = [] if newest is None else self.training.complete_saves(newest.number)
        if late:
            committed = yield from self._commit(late[-1])
            if committed:
                return  # What it saw is out of date.
        members = tuple(
            Member(
                launch=seat.launch,
                rank=seat.rank,
                instance_id=self.training.nodes[seat].machine.id,
                address="10.0.0.1",
            )
            for seat in found.seats
        )
        record = Generation(
            number=found.number,
            members=members,
            endpoint="10.0.0.1:1",
            restore_from=head(known),
            why="regrouped",
            at=self.world.now(),
            writer=new_nonce(),
        )
        is_written = yield from self._persist(lambda: self.journal.append(record, len(known) + 1))
        if is_written:
            self._cloud.note_generation(record)
            self.training.check_next(record, newest, roster_of(known).principals)

    # --- a generation -----------------------------------------------------------------------------

    def _train(self) -> Doing[str | None]:
        """Follow the ranks of this node to their end; return how to leave, or None: regroup."""
        generation = self.generation
        assert generation is not None
        while True:
            yield self.world.rng.uniform(1, 8)
            yield from self._fall_silent()
            yield from self._beat()
            known = yield from self._persist(self.journal.read)
            if why_over(known, self.seat.launch) is not None:
                return "superseded"
            if self.machine.has_notice and not self.has_written_notice:
                yield from self._persist(self._write_notice)
            while self.todo:
                yield from self._upload(self.todo[0])
            for save in self.training.complete_saves(generation.number)[-1:]:
                yield from self._commit(save)
            if self.ended is not None:
                return (yield from self._conclude(generation))
            if (yield from self._persist(self._is_stopped)):
                return "stopped"
            newer = newest_generation(self.journal.known)
            if newer is not None and newer.number > generation.number:
                return None
            if self._is_broken(generation):
                yield self.world.rng.uniform(5, 40)  # What suspicion takes.
                if self.ended is None:
                    return "failed" if self.world.chance(0.1) else None

    def _is_broken(self, generation: Generation) -> bool:
        for seat in generation.seats:
            peer = self.training.nodes.get(seat)
            if peer is None or not peer.is_well or peer.number != generation.number or not peer.runs:
                return self.world.time - self.started_at > 60.0 or peer is None or not peer.is_well
        return False

    def _upload(self, save: Save) -> Doing[None]:
        yield self.world.rng.uniform(1, 60)
        yield from self._fall_silent()
        self.todo.remove(save)
        self.training.parts[save].add(self.seat)

    def _conclude(self, generation: Generation) -> Doing[str | None]:
        """Wait for the commit of the last save, or until a part of it can never come."""
        assert self.ended is not None
        how, step = self.ended
        if how == "broken":
            while self.todo:
                yield from self._upload(self.todo[0])
            return "broken"
        save = (generation.number, step, 1)
        while True:
            known = yield from self._persist(self.journal.read)
            done = head(known)
            if step <= (0 if done is None else done.step):
                break
            while self.todo:
                yield from self._upload(self.todo[0])
            yield from self._beat()
            if self.training.is_complete(save):
                yield from self._commit(save)
            missing = self.training.needed[save] - self.training.parts[save]
            lost = [seat for seat in missing if not self.training.nodes[seat].is_well]
            newest = newest_generation(known)
            if lost or why_over(known, self.seat.launch) or (newest and newest.number > generation.number):
                how = "drained"
                break
            yield self.world.rng.uniform(1, 8)
        if self.machine.has_notice and how != "succeeded":
            return "drained"
        return "succeeded" if how == "succeeded" else None

    def _commit(self, save: Save) -> Doing[bool]:
        """Commit the save unless one as new stands, or it cannot count any more."""
        number, step, _ = save
        while True:
            known = yield from self._persist(self.journal.read)
            newest, base = newest_generation(known), head(known)
            is_newest = newest is not None and newest.number == number
            is_later = step > (0 if base is None else base.step)
            if not is_newest or not is_later or isinstance(known[-1], Finished | Moved):
                return False
            now = self.world.now()
            record = Commit(
                generation=number,
                step=step,
                kind="session",
                size=1,
                sealed_at=now,
                at=now,
                writer=new_nonce(),
            )
            if (yield from self._persist(lambda: self.journal.append(record, len(known) + 1))):  # noqa: B023
                return True

    @property
    def is_joined_soon(self) -> bool:
        """Say whether the ranks should save for newcomers: they are ready, and there is a commit of one's own."""
        generation, known = self.generation, self.journal.known
        assert generation is not None
        ready = [
            node
            for seat, node in self.training.nodes.items()
            if node.is_well
            and node.state == "ready"
            and not node.has_written_notice
            and seat in roster_of(known).candidates
            and node.generation is None
        ]
        own = any(isinstance(one, Commit) and one.generation == generation.number for one in known)
        return bool(ready) and own

    # --- records ----------------------------------------------------------------------------------

    def _fall_silent(self) -> Doing[None]:
        """Say and do nothing for some minutes, or for ever."""
        if not (self.script.hang and self.world.chance(self.script.hang)):
            return
        self.is_silent = self.was_silent = True
        is_passing = self.world.rng.random() < 0.5
        if is_passing:
            seconds = self.world.rng.uniform(60, 2400)
            yield seconds
            self._deaf_seconds += seconds
            self.is_silent = False
        while self.is_silent:
            yield 60.0

    def _say(self, outcome: str, *, waits: bool = False) -> Doing[None]:
        machine = self.machine
        known = yield from self._persist(self.journal.read)
        step = 0 if self.ended is None else self.ended[1]
        last_word = Exit(
            launch=machine.launch,
            rank=machine.rank,
            instance_id=machine.id,
            outcome="failed" if outcome == "broken" else outcome,
            detail="",
            exit_code=1 if outcome in {"failed", "broken"} else 0,
            permanent=outcome == "broken",
            waits_until=self.world.now() + timedelta(seconds=VERDICT_SECONDS) if waits else None,
            generation=self.number,
            restored_step=0,
            step=step,
            reached_step=step,
            committed=head(known),
            at=self.world.now(),
            writer=new_nonce(),
        )
        key = keys.exit_record(self._job_id, machine.launch, machine.rank)
        yield from self._persist(lambda: create(self._store, key, codec.encode(last_word)))

    @property
    def exit_record(self) -> Exit | None:
        """Return its last word as the others find it: it may have come there before the node knows it."""
        return find_record(self._inner, keys.exit_record(self._job_id, *self.seat), Exit)

    @property
    def has_written_notice(self) -> bool:
        """Say whether the others know of its notice."""
        return find_meta(self._inner, keys.notice(self._job_id, *self.seat)) is not None

    def _write_notice(self) -> None:
        machine = self.machine
        notice = Notice(
            launch=machine.launch,
            rank=machine.rank,
            deadline=self.world.now(),
            action="terminate",
            source=f"sim, {NOTICE_SECONDS:g} s",
            step=0,
            at=self.world.now(),
            writer=new_nonce(),
        )
        key = keys.notice(self._job_id, machine.launch, machine.rank)
        create(self._store, key, codec.encode(notice))

    def _beat(self) -> Doing[None]:
        self._beats += 1
        machine, number = self.machine, self.number
        restored = None if self.generation is None else self.generation.restore_from
        beat = Heartbeat(
            counter=self._beats,
            instance_id=machine.id,
            address="10.0.0.1",
            port=1,
            state=self.state,
            generation=number,
            restored_step=0 if restored is None or not self.script.tells_restored else restored.step,
            step=self.training.reached.get(number, 0),
            steps_total=self.script.num_steps,
            metrics={},
            committed=None,
            stall_seconds=None,
            upload_seconds=None,
            at=self.world.now(),
        )
        key = keys.heartbeat(self._job_id, machine.launch, machine.rank)
        if self._told != (beat.state, beat.generation):
            self._told, self._changes = (beat.state, beat.generation), self._changes + 1
        data = fill_up(codec.encode(beat), num_beats=self._beats, num_changes=self._changes)
        yield from self._persist(lambda: self._store.put(key, data))
        machine.note_heard(self._landed_at(key), self._down_seconds)

    def _is_stopped(self) -> bool:
        try:
            self._store.get(keys.stop(self._job_id, self._resumption))
        except ObjectMissing:
            return False
        return True

    def _persist(self, call: Callable[[], Result], *, until: float = math.inf) -> Doing[Result]:
        """Call until the answer is known, or this time has come, as an agent does."""
        while True:
            try:
                return call()
            except TransientError:
                if self.world.time >= until:
                    raise
                yield self.world.rng.uniform(1, 5)


class SimAgents:
    """Makes the simulated nodes of a cloud; those of one job train together."""

    def __init__(
        self,
        world: World,
        cloud: Callable[[], SimCloud],
        store: Callable[[], ObjectStore],
        *,
        script: Script | None = None,
        min_nodes: int = 1,
    ) -> None:
        """``cloud`` and ``store`` are asked for each machine."""
        self._world = world
        self._cloud = cloud
        self._store = store
        self._script = script or Script()
        self._min_nodes = min_nodes
        self.trainings: dict[tuple[str, str], SimTraining] = {}
        """By store and job."""

    def __call__(self, machine: Machine) -> Doing[None]:
        """Return the life of the machine."""
        store = self._store()
        key = store.canonical_url, machine.job_id
        if key not in self.trainings:
            self.trainings[key] = SimTraining(self._world, self._script)
            self._world.start(self.trainings[key].live())
        node = SimNode(self._world, self._cloud(), store, machine, self.trainings[key], self._min_nodes)
        return node.live()


assert peers.SUSPECT_SECONDS == 20.0, "the simulated suspicion takes 5 to 40 s"
