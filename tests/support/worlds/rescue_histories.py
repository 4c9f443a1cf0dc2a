"""Histories of one rescue by seed: real agents' membership, rescue and store, simulated machines and ranks.

Ranks make steps together as DDP has them: none begins an optimizer's step before all have been in its all-reduce
at once, so one that dies, fails or stands still before the last has come lets none go on. Each bears in what it
saves who it is, which boundary it really holds, and for which attempt: so what is committed shows whether it was
mixed. ``play`` raises ``Violation`` where a rescue breaks its promise.
"""

import io
import json
import math
import random
import struct
from collections import defaultdict, deque
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType, SimpleNamespace
from unittest import mock

from support.records.made_records import Records
from support.records.uploads import upload_session
from support.stores.memorystore import InMemoryStore
from support.stores.one_at_a_time import OneAtATime
from support.worlds.fibers import Fibers
from support.worlds.simulation import START, Violation

from cloudspot.agent import orders, rank_reports, status, store_retry, worker
from cloudspot.agent.delivery.checkpoint_restore import Restored
from cloudspot.agent.leaving import LeavingError
from cloudspot.agent.membership import (
    agreement,
    failure_votes,
    heartbeat_writer,
    open_seats,
    peer_heartbeats,
    rescue_votes,
)
from cloudspot.agent.membership.agreement import Membership
from cloudspot.agent.membership.heartbeat_writer import HeartbeatWriter
from cloudspot.agent.node import Node, NodeMemory
from cloudspot.agent.node_context import Job, NodeContext
from cloudspot.agent.training.launching.trainer import Trainer
from cloudspot.agent.training.watching import rescue as agents_rescue
from cloudspot.errors import CorruptData, TransientError
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.access import parallel, store_clock
from cloudspot.jobstore.access.retrying_store import RetryingStore
from cloudspot.jobstore.access.store_clock import StoreClock
from cloudspot.jobstore.access.wrapped_store import WrappedStore
from cloudspot.jobstore.checkpoints import manifests
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import head, may_follow
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Commit, Failed, Generation, Heartbeat, RescueOrder, SaveId, Seat
from cloudspot.jobstore.layout.seals import parse_seal
from cloudspot.model import NodeIdentity
from cloudspot.train import handoff as files
from cloudspot.train.rounds import rescue as ranks_rescue
from cloudspot.train.rounds.keeper import Given, Keeper, keeper_of
from cloudspot.train.rounds.rescue import Held
from cloudspot.train.rounds.save_order import INTERVAL, SaveOrder
from cloudspot.train.state.boxes import Box
from cloudspot.train.state.partition import Item, Shard, cuts, plan

JOB = "digits-1"
URL = "memory://rescues"
LIMIT_SECONDS = 1500.0
"""A node that has not gone on by then never will."""
AMPLE_SECONDS = 240.0
"""So long a rescue may take where its success is asked for; no trouble lasts as long."""
TORCHRUN_KILLS_SECONDS = 30.0
SPARE_SECONDS = 10.0
"""If the store answers again by then, counted from the first death on a machine, the others are saved in time."""
POLL_SECONDS = 0.5
"""Between the looks of agents and ranks, which have less: there are many histories."""
STAMP = struct.Struct("<iiii")
"""In each item: the boundary, the rank that wrote it, the round, and the step."""

_TIMED = (
    agents_rescue, agreement, failure_votes, heartbeat_writer, open_seats, peer_heartbeats, ranks_rescue, store_retry,
)  # fmt: skip
_THREADED = orders, peer_heartbeats, ranks_rescue, status, worker


@dataclass
class Result:
    """What a history came to."""

    committed: tuple[int, ...]
    """The steps of the commits that a rescue made."""
    num_orders: int
    num_attempts: int
    is_apart: bool
    """Whether survivors held different boundaries."""
    demanded: int | None
    """The step that had to be committed."""
    num_generations: int


def play(seed, *, trouble=None, **changes):
    """Run one history to its end and check it; return what it came to.

    ``trouble(history)`` happens in the place of what the seed would let happen, and ``changes`` replace what it
    has drawn.
    """
    history = History(random.Random(seed))
    for name, value in changes.items():
        setattr(history, name, value)
    if trouble is not None:
        history.trouble = lambda: trouble(history)
    try:
        with history.patched():
            history.run()
        return history.check()
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation}") from violation


def violation_of(seed):
    """Run one history; return what goes wrong in it, or None."""
    try:
        play(seed)
    except Violation as violation:
        return str(violation)
    return None


# --- files and store ------------------------------------------------------------------------------


class MemoryPath:
    """A path of files in memory, as far as hand-offs use one."""

    def __init__(self, disk, name):
        self._disk, self._name = disk, name

    def __truediv__(self, name):
        return MemoryPath(self._disk, f"{self._name}/{name}")

    @property
    def name(self):
        return self._name.rpartition("/")[2]

    def exists(self):
        return self._name in self._disk

    def write(self, data):
        self._disk[self._name] = data, next_number(self._disk)

    def read(self):
        try:
            return self._disk[self._name][0]
        except KeyError:
            raise FileNotFoundError(self._name) from None

    def stat(self):
        self.read()
        number = self._disk[self._name][1]
        return SimpleNamespace(st_ino=number, st_mtime_ns=number)

    def open(self, _mode):
        return io.BytesIO(self.read())

    def unlink(self):
        self._disk.pop(self._name)

    def below(self):
        """Return what is there, in order."""
        return [
            MemoryPath(self._disk, name) for name in sorted(self._disk) if name.startswith(f"{self._name}/")
        ]


def next_number(disk):
    number = disk.get("", (b"", 0))[1] + 1
    disk[""] = b"", number
    return number


class NodesStore(WrappedStore):
    """The store as one agent finds it: requests take time and fail."""

    def __init__(self, history, node):
        super().__init__(history.store)
        self._history, self._node = history, node

    def put(self, key, data, *, if_absent=False):
        self._call("put", key, lambda: self._history.put(key, data, if_absent=if_absent))

    def _call(self, method, key, request):
        history = self._history
        rng, fibers = history.rng, history.fibers
        slow = rng.random() < (history.slow_lists if method == "list_page" else 0.01)
        fibers.sleep(rng.uniform(1, 8) if slow else rng.uniform(0.001, 0.05))
        is_cut = self._node.cut_until > fibers.now
        if is_cut or any(start <= fibers.now < end for start, end in history.outages):
            raise TransientError("the store did not answer")
        answer = request()
        if rng.random() < 0.01:
            fibers.sleep(rng.uniform(0.1, 5))
        if method == "put" and rng.random() < 0.01:
            raise TransientError("the answer was lost")
        return answer


# --- ranks ----------------------------------------------------------------------------------------


class ProcessEnds(Exception):
    """The main thread is about to end the process."""


class SimRank:
    """One process: a main thread that makes steps, and the real thread that answers the agent."""

    def __init__(self, history, node, rank):
        self.history, self.node, self.rank = history, node, rank
        self.boundary = 0
        """The newest that it has passed, or come to."""
        self.stands = True
        """Whether the state is that of a boundary."""
        self.has_ended = False
        self.has_stopped = False
        self._standing = None
        self._signalled = history.fibers.threading.Event()
        self._num_saves = 0
        self.has_failed_to_save = False
        self._given = deque(maxlen=2)
        """What another rank has handed over; the keeper's own."""
        self.gives = history.more.random() < 0.8

    @property
    def owner(self):
        return (self.node.name, "rank", self.rank)

    @property
    def held_boundary(self):
        """The first boundary since the newest step of the optimizer, or None."""
        return self.history.first_of(self.boundary) if self.stands else None

    def live(self):
        history = self.history
        handoff = self.node.handoff
        files.progress_path(handoff, self.rank).write(files.PROGRESS.pack(0, 1000, 0))
        likeness = {"rank": self.rank, "draws": history.draws, "digests": []}
        files.likeness_path(handoff, self.rank).write(json.dumps(likeness).encode())
        self._rescue = ranks_rescue.Rescue(
            handoff, rank=self.rank, rescuable=self, stop_rounds=self._stop_rounds
        )
        self._rescue.start()
        try:
            while not self.has_stopped:
                self._save_at_interval()
                self._pause(history.step_seconds * history.rng.uniform(0.8, 1.2))
                if history.rng.random() < 0.05:
                    self._pause(history.rng.uniform(0, 5))  # a slow batch
                if history.is_end_of_epoch(self.boundary):
                    self.boundary += 1
                    continue  # without a step there is nothing to hand over
                self._reduce()
                self.stands = False
                self._pause(history.optimizer_seconds * history.rng.uniform(0.5, 1.5))
                self.boundary += 1
                self.stands = True
                self._hand_over()
        except ProcessEnds:
            pass
        self._rescue.hold()
        self.end(1)

    def _hand_over(self):
        """Give what this rank alone has to its keeper, who has it a little later, if this one lives until then."""
        history, boundary = self.history, self.boundary
        if not self.gives or not (history.draws or history.needs_all or (history.differs and self.rank == 0)):
            return
        if history.more.random() < 0.02:
            self.gives = False  # the connection is lost
        given = Given(boundary, history.step_of(boundary), {"rank": self.rank, "boundary": boundary})
        sizes = {"world_size": history.world_size, "local_world_size": history.procs}
        keeper = history.ranks[keeper_of(self.rank, **sizes)]

        def arrive():
            history.fibers.sleep(history.giving_seconds)
            if not keeper.has_ended:
                keeper._given.append(given)

        history.fibers.start(arrive, self.owner)

    def _kept_at(self, boundary):
        """Return what ``Service`` would have of another rank."""
        given = Keeper.given_at(self, boundary, self.history.step_of(boundary))
        return {} if given is None else {given.pieces["rank"]: given.pieces}

    def end(self, status):
        """End the process at once; not through its own main thread, if it was killed."""
        if self.has_ended:
            return
        self.has_ended = True
        files.exited_path(self.node.handoff, self.rank).write(str(status).encode())
        self.history.note_death(self)
        self.node.rank_ended.set()
        self.history.fibers.kill(self.owner)

    def fail(self):
        """Meet an error of its own, unless the main thread hangs in a collective."""
        self._signalled.set()

    def sigterm(self):
        """Go on to the next boundary, and no further."""
        self._rescue.begin()

    def _stop_rounds(self):
        self.has_stopped = True
        return True

    def _pause(self, seconds):
        if self._signalled.wait(seconds):
            raise ProcessEnds

    def _reduce(self):
        """Wait until all ranks are here at once, or fail, or hang for good."""
        history = self.history
        history.arrived[self.boundary].add(self.rank)
        history.changed.notify_all()
        try:
            self._wait_for_sum()
        except ProcessEnds:
            history.leave_reduction(self)
            raise
        deaths = history.num_deaths
        history.fibers.sleep(history.rng.uniform(0, history.reduce_seconds))
        if history.num_deaths > deaths and history.rng.random() < 0.5:
            if history.hangs:
                history.never.wait()
            raise ProcessEnds

    def _wait_for_sum(self):
        history = self.history
        while not history.is_summed(self.boundary):
            if history.num_deaths and not history.hangs:
                self._pause(history.rng.uniform(0.07, 1.8))
                raise ProcessEnds
            if history.hangs:
                history.changed.wait()
            elif self._signalled.is_set():
                raise ProcessEnds
            else:
                history.changed.wait(1.0)

    def _save_at_interval(self):
        history = self.history
        if history.interval and self.boundary and self.boundary % history.interval == 0:
            number = self.boundary // history.interval
            self._copy(SaveOrder(INTERVAL, self.boundary, number), self.boundary)

    # --- what the real thread asks for ------------------------------------------------------------

    def held(self):
        """Return what ``Service.held`` would."""
        history = self.history
        boundary = self.held_boundary
        if boundary is None:
            return "since the last boundary, an optimizer has stepped"
        if history.step_of(boundary) == 0:
            return "it has made no step"
        self._standing = boundary
        return Held(
            boundary=boundary,
            before=history.first_of(boundary - 1),
            step=history.step_of(boundary),
            digest=f"{history.step_of(boundary)}",
            draws=history.draws,
            differs=history.differs,
            holders=tuple(sorted({shard.holders for each in history.items for shard in each.shards})),
            needs_all=history.needs_all,
            keeps=tuple(self._kept_at(boundary)),
        )

    def report_likeness(self):
        """It never changes."""

    def save(self, order):
        """Save as ``Service.save`` would."""
        history = self.history
        if self._standing is None or order.step != self._standing:
            return None
        boundary = self._standing
        if history.rng.random() < history.save_failures:
            self.has_failed_to_save = True
            return None
        there = self._kept_at(boundary)
        asked = {rank for rank, keeper in order.keepers.items() if keeper == self.rank}
        if not asked <= there.keys() or not self._copy(
            order, boundary, {rank: there[rank] for rank in asked}
        ):
            return None
        return history.step_of(boundary)

    def _copy(self, order, boundary, kept=MappingProxyType({})):
        history = self.history
        truth = self.held_boundary
        is_rescue = order.rescue is not None
        try:
            table = plan(
                history.items,
                world_size=history.world_size,
                avoid=order.avoid,
                are_lost=is_rescue,
                buffers_from=order.keepers.get(0),
            )
        except LookupError:
            return False
        truth = -1 if truth is None else truth
        step = history.step_of(boundary)
        stamp = STAMP.pack(truth, self.rank, order.number, step)
        buffers = stamp
        if 0 in kept:
            buffers = STAMP.pack(kept[0]["boundary"], 0, order.number, step)
        history.fibers.sleep(history.rng.uniform(0.01, history.copy_seconds))
        if is_rescue and self.held_boundary != boundary:
            return False
        placements, nbytes = table.parts[self.rank], table.part_bytes[self.rank]
        data = b"".join(
            (buffers if each.item.pinned else stamp) * (each.nbytes // STAMP.size) for each in placements
        )
        assert len(data) == nbytes
        self._num_saves += 1
        slot = self.node.directory / f"slot-{self.rank}-{self._num_saves}"
        slot.write(data)
        content = {
            "generation": 1,
            "step": step,
            "round": order.number,
            "rank": self.rank,
            "world_size": history.world_size,
            "relieved": sorted(table.takers),
            "kind": order.kind,
            "rescue": order.rescue,
            "plan": table.digest,
            "objects": {},
            "rank_states": {
                str(self.rank): {"rank": self.rank, "boundary": truth},
                **{str(rank): state for rank, state in kept.items()},
            },
            "slot": slot.name,
            "nbytes": nbytes,
            "items": [placement.to_json() for placement in placements],
            "cuts": cuts(placements),
            "stall_seconds": history.fibers.now,  # another in each seal, as it is
        }
        name = f"seal-1-{step}-{order.number}-{self.rank}.json"
        files.write_json(files.seals_directory(self.node.handoff) / name, content)
        return True


# --- nodes ----------------------------------------------------------------------------------------


class SimTrainer(Trainer):
    """torchrun on a simulated machine."""

    def __init__(self, node):
        super().__init__(node.handoff, 0)
        self._node = node

    def poll(self):
        return 1 if self._node.torchrun_has_ended else None

    def kill(self):
        for rank in self._node.ranks:
            rank.end(137)
        return True


class SimNode:
    """One machine: its ranks, torchrun, and one agent after the other."""

    def __init__(self, history, index):
        self.history, self.index = history, index
        self.name = f"n{index}"
        self.seat = Seat(1, index)
        self.disk = {}
        self.node = Node(
            JOB, 1, URL, "sim", MemoryPath(self.disk, "/m"), "python", MemoryPath(self.disk, "/a"), "5" * 64
        )
        self.directory = self.node.directory
        self.handoff = self.node.handoff(1)
        self.memory = NodeMemory(start_seconds=1.0, generation=1, trainer_pid=1, training_began_at=0.01)
        self.cut_until = 0.0
        first = index * history.procs
        self.ranks = [SimRank(history, self, rank) for rank in range(first, first + history.procs)]
        self.rank_ended = history.fibers.threading.Event()
        self.torchrun_has_ended = False
        self.is_dead = False
        self.is_steady = True
        """Whether nothing has happened to it."""
        self.follows = False
        """Whether its agent still follows the trainer."""
        self.is_done = False
        """Whether its agent has gone on to the next generation, or has left."""
        self.num_agents = 0
        self.rescued_seconds = 0.0

    def start(self):
        fibers = self.history.fibers
        for rank in self.ranks:
            fibers.start(rank.live, rank.owner)
        fibers.start(self._torchrun, (self.name, "torchrun"))
        self.start_agent()

    def start_agent(self, *, delay=0.0):
        self.num_agents += 1
        self.history.fibers.start(self._agent, (self.name, "agent", self.num_agents), delay=delay)

    def kill_agent(self):
        self.history.fibers.kill((self.name, "agent", self.num_agents))

    def kill(self):
        """Take the whole machine away."""
        self.is_dead, self.is_steady = True, False
        for rank in self.ranks:
            if not rank.has_ended:
                rank.has_ended = True
                self.history.note_death(rank)
        self.history.fibers.kill((self.name,))

    def _torchrun(self):
        self.rank_ended.wait()
        fibers = self.history.fibers
        fibers.sleep(0.1)
        began = fibers.now
        kills_at = began + TORCHRUN_KILLS_SECONDS
        for rank in self.ranks:
            if not rank.has_ended:
                rank.sigterm()
        while not all(rank.has_ended for rank in self.ranks) and fibers.now < kills_at:
            self.rank_ended.clear()
            self.rank_ended.wait(kills_at - fibers.now)
        if any(start < kills_at and end > began + SPARE_SECONDS for start, end in self.history.outages):
            self.is_steady = False  # the order may have come too late for those that are killed now
        for rank in self.ranks:
            rank.end(137)
        fibers.sleep(0.2)
        self.torchrun_has_ended = True

    # --- the agent --------------------------------------------------------------------------------

    def _agent(self):
        history = self.history
        identity = NodeIdentity(instance_id=f"i-1-{self.index}", rank=self.index, address="10.0.0.1")
        store = RetryingStore(NodesStore(history, self), sleep=history.fibers.sleep)
        submission = SimpleNamespace(resumption=0, num_launches_before=0)
        context = NodeContext(self.node, store, None, Job(submission, history.spec, identity), self.memory)
        context.status.now = history.wall
        self.status = context.status
        membership = Membership(context)
        writer = HeartbeatWriter(context)
        context.retry_until(context.journal.read)
        writer.start()
        membership.enter(next(one for one in context.journal.known if isinstance(one, Generation)))
        context.status.ranks = tuple(rank.rank for rank in self.ranks)
        context.status.state = "running"
        membership.start()
        history.fibers.start(lambda: self._carry(context), history.fibers.current.owner)
        try:
            self._go_on(context, membership)
        except LeavingError:
            context.status.state = "ending"
        writer.stop()
        membership.stop()
        self.is_done = True

    def _go_on(self, context, membership):
        history, trainer = self.history, SimTrainer(self)
        rescue = agents_rescue.Rescue(context, membership, trainer)
        self.follows = True
        while True:
            if rescue.is_due():
                history.begin_rescue(self)
                rescue.run()
                history.end_rescue(self)
            code = trainer.poll() or trainer.failed_status(context.status.ranks)
            if code is not None and code != 0:
                break
            if context.orders.superseded or membership.why_regroup() or membership.votes.failed_elsewhere():
                code = None
                break
            context.orders.wait_for_news(POLL_SECONDS)
        self.follows = False
        trainer.kill()
        context.status.state = "uploading"
        if code is not None:
            context.status.failed = Failed(generation=1, why="trainer-failed", exit_code=code)
            membership.others_are_well()
        while not context.orders.pending and self._seals():
            history.fibers.sleep(POLL_SECONDS)
        context.status.state = "restoring"
        membership.obey()
        membership.next("regrouped")

    def _seals(self):
        found = files.seals_directory(self.handoff).below()
        names = [(files.parse_seal_name(path.name), path) for path in found]
        return sorted(
            ((name, path) for name, path in names), key=lambda pair: (-pair[0].round, pair[0].number)
        )

    def _carry(self, context):
        """Upload as the courier does: the last saves first; and commit what is whole."""
        history = self.history
        while True:
            try:
                while pending := self._seals():
                    self._upload(context, *pending[0])
            except TransientError:
                history.fibers.sleep(1.0)
            history.fibers.sleep(POLL_SECONDS)

    def _upload(self, context, name, path):
        history = self.history
        save = SaveId(name.generation, name.step, name.round)
        newest = head(context.journal.known)
        text = path.read()
        if newest is None or newest.generation > save.generation or may_follow(save, newest):
            history.fibers.sleep(history.rng.uniform(0, history.upload_seconds))
            try:
                data = (self.directory / parse_seal(text, path.name).slot).read()
                upload_session(context.store, JOB, text, data, sealed_at=history.wall())
                self._forget(path, text)
                manifests.try_commit(context.store, context.journal, JOB, save, known=context.known_parts)
                return
            except (CorruptData, manifests.Superseded):
                pass
        self._forget(path, text)

    def _forget(self, path, text):
        if path.exists() and path.read() == text:  # else it was sealed again
            path.unlink()


# --- a history ------------------------------------------------------------------------------------


class History:
    """One job in its first generation, and what happens to it."""

    def __init__(self, rng):
        self.rng = rng
        self.fibers = Fibers()
        self.store = InMemoryStore(URL, now=lambda: self.wall().replace(microsecond=0))
        self.num_nodes = rng.choice([1, 2, 2, 3, 3, 4])
        self.procs = rng.choice([1, 1, 2, 3]) if self.num_nodes < 4 else rng.choice([1, 2])
        self.world_size = self.num_nodes * self.procs
        self.sharding = rng.choice(["none", "none", "none", "hybrid", "full"])
        self.hangs = rng.random() < 0.4
        self.draws, self.differs = rng.random() < 0.5, rng.random() < 0.4
        self.epoch = rng.choice([0, 0, 4, 7])
        self.interval = rng.choice([0, 0, 3, 5])
        self.step_seconds = rng.choice([0.3, 1.0, 4.0])
        self.optimizer_seconds = self.step_seconds * rng.choice([0.05, 0.3])
        self.reduce_seconds = rng.choice([0.05, 0.3, 1.5])
        self.copy_seconds = rng.choice([0.05, 0.5, 3.0])
        self.upload_seconds = rng.choice([0.2, 2.0, 10.0])
        self.slow_lists = rng.choice([0.0, 0.02, 0.2])
        self.save_failures = rng.choice([0.0, 0.0, 0.0, 0.2])
        self.is_ample = rng.random() < 0.75
        self.more = random.Random(repr(rng.getstate()))
        """For what ranks alone have."""
        self.needs_all = self.more.random() < 0.15
        self.giving_seconds = self.more.choice([0.001, 0.02, 0.5])
        self.items = self._items()
        self.spec = spec_from_json(
            {
                "name": "digits",
                "run": {"entrypoint": "train.py"},
                "nodes": {"min": 1, "max": self.num_nodes},
                "procs_per_node": self.procs,
                "spot": {"policy": "spot"},
            }
        )
        self.arrived = defaultdict(set)
        self.summed = set()
        self.changed = self.fibers.threading.Condition()
        self.never = self.fibers.threading.Event()
        self.num_deaths = 0
        self.outages = []
        self.injected = False
        self.orders = {}
        self.rescued_at = None
        self.held_at_order = {}
        """What ranks really held when the newest order was put."""
        self.heard = defaultdict(list)
        """By node's heartbeat: what it said of its ranks, and when."""
        self._looked = {}
        self._rescue_began = {}
        self.trouble_seconds = 0.0
        self.demanded = None
        self.problems = []
        self.nodes = [SimNode(self, index) for index in range(self.num_nodes)]
        self.ranks = [rank for node in self.nodes for rank in node.ranks]

    def wall(self):
        return START + timedelta(seconds=self.fibers.now)

    def _items(self):
        items = [Item("w", "uint8", (2 * STAMP.size,), 1), Item("v", "uint8", (STAMP.size,), 1)]
        if self.differs:
            items.append(Item("b", "uint8", (STAMP.size,), 1, pinned=True))
        groups = {"none": 0, "hybrid": self.procs, "full": self.world_size}[self.sharding]
        if groups > 1 or self.sharding == "full":
            shards = tuple(
                Shard(
                    Box((STAMP.size * group,), (STAMP.size,)),
                    tuple(rank for rank in range(self.world_size) if rank % groups == group),
                )
                for group in range(groups)
            )
            items.append(Item("s", "uint8", (STAMP.size * groups,), 1, shards=shards))
        return tuple(items)

    # --- boundaries: at the end of an epoch there is one more without a step ------------------------

    def is_end_of_epoch(self, boundary):
        return bool(self.epoch) and boundary % (self.epoch + 1) == self.epoch

    def first_of(self, boundary):
        return boundary - 1 if self.epoch and boundary and boundary % (self.epoch + 1) == 0 else boundary

    def step_of(self, boundary):
        return boundary - (boundary // (self.epoch + 1) if self.epoch else 0)

    def note_death(self, rank):
        self.num_deaths += 1
        self.leave_reduction(rank)
        self.changed.notify_all()

    def is_summed(self, boundary):
        """Tell whether all ranks have been in the reduction at once: a sum needs each of them to the end."""
        is_here = len(self.arrived[boundary]) == self.world_size
        if is_here and not any(self.fibers.is_frozen(rank.owner) for rank in self.ranks):
            self.summed.add(boundary)
        return boundary in self.summed

    def leave_reduction(self, rank):
        """Without the rank there is no sum any more, unless there is one."""
        if rank.boundary not in self.summed:
            self.arrived[rank.boundary].discard(rank.rank)

    # --- the run ------------------------------------------------------------------------------------

    def patched(self):
        """Put simulated time in the place of the real one, and memory in that of disks."""
        stack = ExitStack()
        change = lambda *about: stack.enter_context(mock.patch.object(*about))  # noqa: E731
        for module in _TIMED:
            change(module, "time", self.fibers.clock)
        for module in _THREADED:
            change(module, "threading", self.fibers.threading)
        change(parallel, "ThreadPoolExecutor", OneAtATime)
        change(files, "write_whole", lambda path, data: path.write(data))
        change(files, "read_at_most", lambda path, most: path.read())
        change(rank_reports, "read_at_most", lambda path, most: path.read())
        change(agents_rescue, "POLL_SECONDS", POLL_SECONDS)
        change(agents_rescue, "MIN_SECONDS", AMPLE_SECONDS if self.is_ample else 5.0)
        change(ranks_rescue, "POLL_SECONDS", POLL_SECONDS)
        change(heartbeat_writer, "REGROUP_SECONDS", 0.7)
        change(peer_heartbeats, "REGROUP_SECONDS", 0.5)
        change(heartbeat_writer, "free_port", lambda: 1)
        change(agreement, "free_port", lambda: 1)
        change(agreement, "restore_newest", lambda context: Restored(head(context.journal.known)))
        change(agreement, "restore_this", lambda context, checkpoint, before: Restored(checkpoint))
        change(agreement, "newest_candidate", lambda context, known, skipped: head(known))
        change(rescue_votes.RescueVotes, "look", _noting_looks(self, rescue_votes.RescueVotes.look))
        stack.callback(self.fibers.close)
        clock = StoreClock(wall=self.wall, uptime=lambda: self.fibers.now)
        clock._compared = 0.0, START.timestamp()
        store_clock._clocks[URL] = clock
        return stack

    def run(self):
        records, journal = Records(), Journal(self.store, JOB)
        journal.append(records.intent(1, num_nodes=self.num_nodes), 1)
        journal.append(records.generation(1, ranks=range(self.num_nodes)), 2)
        for node in self.nodes:
            node.start()
        self.fibers.start(self.trouble, ("trouble",))
        self.fibers.run(until=LIMIT_SECONDS, is_done=self._is_done)

    def _is_done(self):
        return all(node.is_dead or node.is_done for node in self.nodes)

    def trouble(self):
        """Let a rank or a machine fail, and more go wrong thereafter."""
        rng, fibers = self.rng, self.fibers
        fibers.sleep(rng.uniform(2, 12 * self.step_seconds + 4))
        if self.more.random() < 0.5:
            self.await_sum()
            fibers.sleep(self.more.uniform(0, self.reduce_seconds))
        decisive = rng.choice(
            [self._kill_rank, self._kill_node, self._kill_node, self._fail_rank, self._freeze_long]
        )
        decisive()
        for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
            fibers.sleep(rng.choice([rng.uniform(0, 2), rng.uniform(0, 45)]))
            rng.choice(
                [
                    self._kill_rank, self._kill_node, self._freeze, self._freeze, self._cut, self._cut, self._outage,
                    self._restart_agent, self._restart_agent, self._restart_agent, self._supersede,
                ]
            )()  # fmt: skip

    def await_sum(self):
        """Wait until the next sum is under way, which some finish and others do not if a rank dies in it."""
        num_before = len(self.summed)
        self.changed.wait_for(lambda: len(self.summed) > num_before, 60.0)

    def _kill_rank(self):
        rank = self.rng.choice(self.ranks)
        rank.node.is_steady = False
        rank.end(self.rng.choice([137, 139]))

    def _fail_rank(self):
        """Let a script fail on one rank, whose process waits then while the others hang."""
        rank = self.rng.choice(self.ranks)
        if not rank.has_ended:
            rank.fail()

    def _kill_node(self):
        self.rng.choice(self.nodes).kill()

    def _freeze_long(self):
        self._stop_one(self.rng.uniform(25, 80))

    def _freeze(self):
        self._stop_one(self.rng.uniform(2, 40))

    def _stop_one(self, seconds):
        self.stop_node(self.rng.choice(self.nodes), seconds)

    def stop_node(self, node, seconds):
        """Let the machine stand still for so long."""
        node.is_steady = False
        self.trouble_seconds += seconds
        self.fibers.freeze((node.name,), seconds)
        self.fibers.start(self.changed.notify_all, ("thaw",), delay=seconds)

    def _cut(self):
        node, seconds = self.rng.choice(self.nodes), self.rng.uniform(2, 50)
        node.is_steady = False
        self.trouble_seconds += seconds
        node.cut_until = self.fibers.now + seconds

    def _outage(self):
        seconds = self.rng.uniform(2, 50)
        self.trouble_seconds += seconds
        self.outages.append((self.fibers.now, self.fibers.now + seconds))

    def _restart_agent(self):
        node = self.rng.choice(self.nodes)
        if node.is_dead or not node.follows:
            return
        node.is_steady = False
        node.follows = False
        node.kill_agent()
        seconds = self.rng.choice([self.rng.uniform(0.3, 3), self.rng.uniform(3, 30)])
        self.trouble_seconds += seconds
        node.start_agent(delay=seconds)

    def _supersede(self):
        """Let some go on without the others, as if they had heard nothing of these."""
        if self.rng.random() < 0.6:
            return
        journal = Journal(self.store, JOB)
        known = journal.read()
        if isinstance(known[-1], Generation) and known[-1].number > 1:
            return
        self.injected = True
        goes_on = [node.index for node in self.nodes if self.rng.random() < 0.5] or [0]
        restored = head(known)
        record = Records().generation(
            2, ranks=goes_on, restored=restored and (restored.generation, restored.step), at=self.fibers.now
        )
        journal.append(record, len(known) + 1)

    # --- what must never happen, as it happens --------------------------------------------------------

    def put(self, key, data, *, if_absent):
        """Put for a node, and look at what it puts."""
        self.store.put(key, data, if_absent=if_absent)
        if keys.heartbeat.match(key) is not None:
            beat = codec.decode(bytes(data), Heartbeat, key=key)
            self.heard[key].append((self.fibers.now, beat.survivors))
        elif keys.journal.match(key) is not None:
            record = codec.decode_journal(bytes(data), key=key)
            if isinstance(record, Commit) and record.rescue is not None and self.rescued_at is None:
                self.rescued_at = self.fibers.now
        elif keys.rescue_order.match(key) is not None:
            order = codec.decode(bytes(data), RescueOrder, key=key)
            before = self.orders.setdefault(order.attempt, order)
            if before != order:
                self.violate("there are two orders of one attempt")
            self.held_at_order = {rank: rank.held_boundary for rank in self.ranks}
            self._check_order(order)

    def violate(self, what):
        self.problems.append(what)
        raise Violation(what)

    def _check_order(self, order):
        """The newest boundary counts that was said in time and of which each part has a saver."""
        name = self.fibers.current.owner[0]
        by_now = self._said(order.attempt, math.inf, name)
        # A member that has ended its rescue meanwhile, as after a newer generation, has released its ranks.
        said = [
            each for each in self._said(order.attempt, self._looked.get(name, 0.0), name) if each in by_now
        ]
        best = max(
            (one for one in {each.boundary for each in said} if self._is_held(said, one)), default=None
        )
        if best is not None and order.boundary < best:
            self.violate(f"boundary {best} was held, and boundary {order.boundary} is saved")
        if not self._is_held([each for each in by_now if each.rank in order.ranks], order.boundary):
            self.violate(f"the savers {order.ranks} do not hold every part of boundary {order.boundary}")
        for rank, keeper in order.keepers:
            keeps = [each.keeps for each in by_now if (each.rank, each.boundary) == (keeper, order.boundary)]
            if keeper not in order.ranks or not any(rank in each for each in keeps):
                self.violate(f"rank {keeper} does not keep what rank {rank} had, as the order says")
        lost = set(range(self.world_size)) - set(order.ranks) - set(dict(order.keepers))
        # Where not all ranks have told in time how far they are alike, it may be exact without saying so.
        if order.is_exact and not self._is_exact_without(lost):
            self.violate(f"an order without ranks {sorted(lost)} says that it is exact")

    def _is_exact_without(self, lost):
        return not lost or (not self.draws and (0 not in lost or not self.differs))

    def _said(self, attempt, until, own):
        """Return what nodes had said by then, and what one's own says."""
        found = {}
        for node in self.nodes:
            key = keys.heartbeat(JOB, *node.seat)
            told = [survivors for at, survivors in self.heard[key] if at < until]
            if node.name == own:
                told.append(node.status.survivors)
            for survivors in told:
                if survivors is not None and survivors.attempt >= attempt:
                    found[node] = survivors.held
        return [each for held in found.values() for each in held]

    def _is_held(self, said, boundary):
        there = [each for each in said if each.boundary == boundary]
        ranks = {each.rank for each in there}
        known = ranks.union(*(getattr(each, "keeps", ()) for each in there))
        if self.needs_all and len(known) < self.world_size:
            return False
        return bool(ranks) and all(
            not ranks.isdisjoint(shard.holders) for item in self.items for shard in item.shards
        )

    def begin_rescue(self, node):
        self._rescue_began[node] = self.fibers.now
        if self.demanded is None:
            self.demanded = []

    def end_rescue(self, node):
        began, now = self._rescue_began.pop(node), self.fibers.now
        allowance = AMPLE_SECONDS if self.is_ample else max(5.0, began)
        # Silence is waited for in any case: 20 s after each trouble, and what slow listings and answers add.
        waits = self.trouble_seconds + 60.0 + 30.0 * self.num_deaths
        if now - began > allowance + waits:
            self.violate(f"{node.name} was held up for {now - began:.0f} s")
        if self.rescued_at is not None and now - max(began, self.rescued_at) > waits:
            self.violate(f"{node.name} was held up after all was saved")

    # --- at the end ---------------------------------------------------------------------------------

    def check(self):
        """Check what has come of it all."""
        for problem in self.problems:
            raise Violation(problem)
        for node in self.nodes:
            if not (node.is_dead or node.is_done) and self.num_deaths:
                raise Violation(f"{node.name} waits for ever")
        journal = Journal(self.store, JOB).read()
        number, step = 1, 0
        rescued = []
        for record in journal:
            if isinstance(record, Generation):
                number = record.number
            elif isinstance(record, Commit):
                if record.generation != number:
                    raise Violation(f"generation {record.generation} commits after generation {number}")
                if record.step <= step:
                    raise Violation(f"step {record.step} is committed after step {step}")
                step = record.step
                self._check_commit(record)
                if record.rescue is not None:
                    rescued.append(record.step)
        demanded = self._demanded()
        if demanded is not None and step < demanded:
            raise Violation(f"step {demanded} was held to the end, and step {step} is committed")
        return Result(
            committed=tuple(rescued),
            num_orders=len(self.orders),
            num_attempts=max(self.orders, default=0),
            is_apart=len({rank.boundary for rank in self.ranks}) > 1,
            demanded=demanded,
            num_generations=number,
        )

    def _check_commit(self, commit):
        manifest = manifests.read_manifest(self.store, JOB, commit.id)
        found, own, known, writers = set(), set(), set(), set()
        for part in manifest.parts:
            data = b"".join(
                self.store.get(keys.chunk(JOB, part.save, part.rank, number))
                for number in range(len(part.chunks))
            )
            for boundary, writer, number, step in STAMP.iter_unpack(data):
                if writer != part.rank and not (writer == 0 and commit.rescue and 0 in commit.rescue.kept):
                    raise Violation(f"part {part.rank} is rank {writer}'s")
                found.add((boundary, number, step))
                writers.add(writer)
            for rank, state in part.parsed_seal.rank_states.items():
                if state["rank"] != int(rank):
                    raise Violation(f"what rank {rank} alone had is rank {state['rank']}'s")
                own.add(state["boundary"])
                known.add(int(rank))
        if len(found) > 1:
            raise Violation(f"a commit mixes (boundary, round, step) {sorted(found)}")
        if own != {boundary for boundary, _, _ in found}:
            raise Violation(f"a commit of {sorted(found)} has what ranks alone had at {sorted(own)}")
        if commit.rescue is not None and commit.rescue.is_exact:
            lost = set(range(self.world_size)) - known
            if not self._is_exact_without(lost) or (self.differs and 0 not in writers):
                raise Violation(f"a commit without what ranks {sorted(lost)} had is called exact")
        for boundary, number, step in found:
            if self.first_of(boundary) != boundary and commit.rescue is not None:
                raise Violation(f"boundary {boundary} is not the first since the newest step")
            if boundary < 0 or self.step_of(boundary) != commit.step or step != commit.step:
                raise Violation(f"step {commit.step} is said to be boundary {boundary}")
            if commit.rescue is not None:
                order = next(each for each in self.orders.values() if each.save.round == number)
                savers = tuple(part.rank for part in manifest.parts)
                if (order.boundary, order.ranks) != (boundary, savers):
                    raise Violation(f"{order} was carried out by {savers} at boundary {boundary}")
                if (commit.rescue.is_exact, commit.rescue.cause) != (order.is_exact, order.cause):
                    raise Violation(f"{order} is told as {commit.rescue}")

    def _demanded(self):
        """Return the step that the ranks of nodes to which nothing has happened held to the end."""
        if not self.is_ample or self.injected or not self.num_deaths or self.demanded is None:
            return None
        steady = [
            rank
            for node in self.nodes
            if node.is_steady
            for rank in node.ranks
            if not rank.has_failed_to_save and rank.held_boundary is not None
        ]
        # Whoever was taken for lost may come back in the middle of a save: what is held after the order is too late.
        held_then = self.held_at_order or {rank: rank.held_boundary for rank in steady}
        said = [
            SimpleNamespace(rank=rank.rank, boundary=held_then[rank])
            for rank in steady
            if held_then[rank] is not None
        ]
        held = [one for one in {each.boundary for each in said} if self._is_held(said, one)]
        return max((self.step_of(one) for one in held), default=None)


def _noting_looks(history, look):
    def noting(self):
        began = history.fibers.now
        look(self)
        history._looked[history.fibers.current.owner[0]] = began

    return noting
