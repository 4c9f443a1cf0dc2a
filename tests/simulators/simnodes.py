"""Simulated nodes: they claim their rank, train, commit, say their last word and end themselves."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from simcloud import NOTICE_SECONDS, Machine, SimCloud
from simulation import World

from cloudspot.errors import JobNotFound, ObjectMissing, TransientError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.creation import create
from cloudspot.jobstore.journal import Journal
from cloudspot.jobstore.launches import claim_slot, read_slots
from cloudspot.jobstore.lineage import generations_of, head, newest_generation, why_over
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.reader import HistoryReader
from cloudspot.jobstore.records import (
    Commit,
    Exit,
    Finished,
    Generation,
    Heartbeat,
    JournalRecord,
    Member,
    Moved,
    Notice,
    Resumed,
    new_nonce,
)
from cloudspot.model import EndReason, NodeIdentity

Result = TypeVar("Result")
Doing = Generator[float, None, Result]


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the simulated script does."""

    num_steps: int = 8
    steps_per_commit: int = 3
    min_nodes: int = 1
    heeds_slots: bool = True
    """False: nodes train whether or not their claim held, as if protocol P2 had no slots."""
    hang: float = 0.0
    """How likely at each step a node falls silent, some for minutes and some for ever."""


class SimNode:
    """One machine's agent and trainer in one."""

    def __init__(
        self, world: World, cloud: SimCloud, store: ObjectStore, machine: Machine, training: Training
    ) -> None:
        self._world = world
        self._cloud = cloud
        self._store = patient(store, sleep=world.sleep)
        self._inner = getattr(store, "inner", store)
        self._machine = machine
        self._training = training
        self._job_id = machine.job_id
        self._journal = Journal(self._store, self._job_id)
        self._step = 0
        self._beats = 0

    def live(self) -> Doing[None]:
        """Be a node, from power-on to the end."""
        # What its launch was requested for; a real node finds it by the hash in its request.
        try:
            turns = HistoryReader(self._inner, self._job_id).read().turns
        except JobNotFound:
            return  # A stray of another store's job: it bills, and does nothing here.
        launch = self._machine.launch
        self._resumption = sum(isinstance(turn, Resumed) and before < launch for before, turn in turns)
        rng = self._world.rng
        if self._world.chance(0.03):
            return  # It hangs in its boot, and bills.
        slow = self._world.chance(0.1)
        yield rng.uniform(30, 1500) if slow else rng.uniform(3, 20)
        is_ours = yield from self._claim()
        if self._training.heeds_slots and not is_ours:
            self._cloud.end(self._machine, EndReason.SELF)
            return
        if self._world.chance(0.1):
            yield rng.uniform(1, 600)  # Setup, restore, or a process that was suspended.
        outcome = yield from self._train()
        self._cloud.leave_user_code(self._machine)
        yield from self._say(outcome)
        if not self._world.chance(0.05):  # Else its shutdown hangs.
            yield rng.uniform(0, 10)
            self._cloud.end(self._machine, EndReason.SELF)

    def _claim(self) -> Doing[bool]:
        machine = self._machine
        identity = NodeIdentity(instance_id=machine.id, rank=machine.rank, address="10.0.0.1")
        slot = yield from self._persist(
            lambda: claim_slot(self._store, self._job_id, machine.launch, machine.rank, identity)
        )
        if slot.instance_id != machine.id:
            return False
        machine.heard_at = self._world.time
        while True:
            slots = yield from self._persist(lambda: read_slots(self._store, self._job_id, machine.launch))
            if any(one.instance_id is None for one in slots.values()):
                return False
            if len(slots) == machine.num_nodes:
                return True
            yield self._world.rng.uniform(1, 10)

    def _train(self) -> Doing[str]:
        generation = yield from self._join()
        while True:
            if generation is None or self._machine.rank not in [one.rank for one in generation.members]:
                return "superseded"
            self._step = 0 if generation.restore_from is None else generation.restore_from.step
            self._cloud.enter_user_code(self._machine)
            outcome = yield from self._run(generation)
            if outcome != "regroup":
                return outcome
            self._cloud.leave_user_code(self._machine)
            generation = yield from self._regroup(generation)

    def _run(self, generation: Generation) -> Doing[str]:
        rng, training = self._world.rng, self._training
        while self._step < training.num_steps:
            yield rng.uniform(2, 30)
            if training.hang and self._world.chance(training.hang):
                yield from self._hang()
            if any(one.has_notice for one in self._peers(generation)):
                yield from self._heed_notice(generation)
                return "drained"
            if self._lost_peers(generation):
                yield rng.uniform(5, 40)  # What suspicion takes.
                left = len(self._peers(generation))
                if left >= training.min_nodes:
                    return "regroup"
                if self._world.chance(0.2):
                    yield rng.uniform(10, 2000)  # It hangs in a collective, and counts as running.
                return "failed"
            if (yield from self._persist(self._is_stopped)):
                yield from self._commit(generation)
                return "stopped"
            if self._world.chance(0.02):
                return "failed"
            self._step += 1
            yield from self._persist(lambda: self._beat(generation))
            if self._step % training.steps_per_commit == 0:
                yield from self._commit(generation)
        yield from self._commit(generation)
        return "succeeded"

    def _hang(self) -> Doing[None]:
        """Say and do nothing for some minutes, or for ever."""
        is_passing = self._world.rng.random() < 0.5
        if is_passing:
            yield self._world.rng.uniform(60, 2400)
        while not is_passing:
            yield 60.0

    def _peers(self, generation: Generation) -> list[Machine]:
        """Return the generation's machines that are still there, this one included."""
        machines = (self._cloud.machines.get(one.instance_id) for one in generation.members)
        return [one for one in machines if one is not None and not one.has_ended]

    def _lost_peers(self, generation: Generation) -> list[Machine]:
        machines = (self._cloud.machines.get(one.instance_id) for one in generation.members)
        return [
            one
            for one in machines
            if one is not None and one.has_ended and one.end_reason is not EndReason.SELF
        ]

    def _heed_notice(self, generation: Generation) -> Doing[None]:
        if self._machine.has_notice:
            yield from self._persist(self._write_notice)
        if not self._world.chance(0.3):  # Else there was no time.
            yield from self._commit(generation)

    def _join(self) -> Doing[Generation | None]:
        """Return the launch's first generation; the lowest rank that is there proposes it."""
        machine = self._machine
        while True:
            known = yield from self._persist(self._journal.read)
            if why_over(known, machine.launch) is not None:
                return None
            newest = newest_generation(known)
            if newest is not None and newest.members[0].launch >= machine.launch:
                return newest if newest.ranks(machine.launch) else None
            slots = yield from self._persist(lambda: read_slots(self._store, self._job_id, machine.launch))
            owners = {rank: slot.instance_id for rank, slot in slots.items() if slot.instance_id is not None}
            here = {rank: owner for rank, owner in owners.items() if not self._has_ended(owner)}
            if not self._training.heeds_slots:
                here[machine.rank] = machine.id
            if len(here) < self._training.min_nodes:
                return None
            if machine.rank == min(here):
                yield from self._propose(known, here, "first")
            else:
                yield self._world.rng.uniform(1, 10)

    def _has_ended(self, instance_id: str) -> bool:
        return self._cloud.machines[instance_id].has_ended

    def _regroup(self, generation: Generation) -> Doing[Generation | None]:
        while True:
            known = yield from self._persist(self._journal.read)
            if why_over(known, self._machine.launch) is not None:
                return None
            newest = newest_generation(known)
            assert newest is not None
            if newest.number > generation.number:
                return newest
            owners = {one.rank: one.id for one in self._peers(generation)}
            yield from self._propose(known, owners, "node-lost")

    def _propose(self, known: tuple[JournalRecord, ...], owners: dict[int, str], why: str) -> Doing[None]:
        record = Generation(
            number=len(generations_of(known)) + 1,
            members=tuple(
                Member(launch=self._machine.launch, rank=rank, instance_id=owner, address="10.0.0.1")
                for rank, owner in sorted(owners.items())
            ),
            endpoint="10.0.0.1:1",
            restore_from=head(known),
            why=why,
            at=self._world.now(),
            writer=new_nonce(),
        )
        yield from self._persist(lambda: self._journal.append(record, len(known) + 1))

    def _commit(self, generation: Generation) -> Doing[None]:
        if self._machine.rank != generation.members[0].rank:
            return
        record = Commit(
            generation=generation.number,
            step=self._step,
            kind="session",
            size=1,
            sealed_at=self._world.now(),
            at=self._world.now(),
            writer=new_nonce(),
        )
        while True:
            known = yield from self._persist(self._journal.read)
            newest, base = newest_generation(known), head(known)
            is_newest = newest is not None and newest.number == generation.number
            is_later = self._step > (0 if base is None else base.step)
            if not is_newest or not is_later or isinstance(known[-1], Finished | Moved):
                return
            if (yield from self._persist(lambda: self._journal.append(record, len(known) + 1))):  # noqa: B023
                return

    def _say(self, outcome: str) -> Doing[None]:
        machine = self._machine
        known = yield from self._persist(self._journal.read)
        number = len(generations_of(known))
        last_word = Exit(
            launch=machine.launch,
            rank=machine.rank,
            instance_id=machine.id,
            outcome=outcome,
            detail="",
            exit_code=1 if outcome == "failed" else 0,
            generation=number,
            restored_step=0,
            step=self._step,
            reached_step=self._step,
            committed=head(known),
            at=self._world.now(),
            writer=new_nonce(),
        )
        key = keys.exit_record(self._job_id, machine.launch, machine.rank)
        yield from self._persist(lambda: create(self._store, key, codec.encode(last_word)))

    def _write_notice(self) -> None:
        machine = self._machine
        notice = Notice(
            launch=machine.launch,
            rank=machine.rank,
            deadline=self._world.now(),
            action="terminate",
            source=f"sim, {NOTICE_SECONDS:g} s",
            step=self._step,
            at=self._world.now(),
            writer=new_nonce(),
        )
        key = keys.notice(self._job_id, machine.launch, machine.rank)
        create(self._store, key, codec.encode(notice))

    def _beat(self, generation: Generation) -> None:
        self._beats += 1
        machine = self._machine
        beat = Heartbeat(
            counter=self._beats,
            instance_id=machine.id,
            address="10.0.0.1",
            port=1,
            state="running",
            generation=generation.number,
            restored_step=0,
            step=self._step,
            steps_total=self._training.num_steps,
            metrics={},
            committed=None,
            stall_seconds=None,
            upload_seconds=None,
            at=self._world.now(),
        )
        self._store.put(keys.heartbeat(self._job_id, machine.launch, machine.rank), codec.encode(beat))
        machine.heard_at = self._world.time

    def _is_stopped(self) -> bool:
        try:
            self._store.get(keys.stop(self._job_id, self._resumption))
        except ObjectMissing:
            return False
        return True

    def _persist(self, call: Callable[[], Result]) -> Doing[Result]:
        """Call until the answer is known, as an agent does."""
        while True:
            try:
                return call()
            except TransientError:
                yield self._world.rng.uniform(1, 5)
