"""What a job's nodes and its driver ask of the store: in proportion to the nodes, and enough to see a loss."""

from __future__ import annotations

import heapq
import itertools
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from unittest import mock

import pytest
from support.records.made_journal import append
from support.records.made_records import Records
from support.stores.faultstore import FaultPlan, FaultyStore
from support.stores.memorystore import InMemoryStore

from cloudspot.agent.delivery.log_pump import LogPump, flush_seconds_of
from cloudspot.agent.membership import heartbeat_writer, peer_heartbeats
from cloudspot.agent.membership.heartbeat_writer import HEARTBEAT_SECONDS, HeartbeatWriter
from cloudspot.agent.membership.peer_heartbeats import LISTEN_SECONDS, MAX_READS, PeerHeartbeats
from cloudspot.agent.membership.peers import MAX_PASS_SECONDS, SUSPECT_SECONDS, Liveness
from cloudspot.agent.node import Node, NodeMemory
from cloudspot.agent.node_context import Job, NodeContext
from cloudspot.calls import InstancesResult
from cloudspot.controller.clock import Clock
from cloudspot.controller.loop import Controller
from cloudspot.errors import CorruptData, TransientError
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.access.stored_records import find_record
from cloudspot.jobstore.jobs.submission import request_stop
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Failed, Heartbeat, Seat
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.jobstore.nodes.launches import claim_slot
from cloudspot.model import Instance, InstanceState, NodeIdentity

START = datetime(2026, 11, 20, tzinfo=timezone.utc)


class Nodes:
    """A job's nodes by a clock of their own; they beat, listen and look as their threads would.

    They are members of generation 1, and of launch 1 or, as the result of many replacements, of one each.
    """

    def __init__(self, num_nodes, directory, *, num_launches=1):
        self.now = 1000.0
        # As by S3: a listing tells whole seconds.
        memory = InMemoryStore(now=lambda: START + timedelta(seconds=int(self.now)))
        self.store = FaultyStore(memory, FaultPlan(), directory / "faults")
        self.spec_table = {
            "name": "digits", "run": {"entrypoint": "train.py"}, "nodes": num_nodes, "spot": {"policy": "spot"},
        }  # fmt: skip
        self.directory, self.num_nodes = directory, num_nodes
        self.spec = spec = spec_from_json(self.spec_table)
        self.contexts, self.writers, self.peers = [], [], []
        self.seats = [Seat(1, rank) for rank in range(num_nodes)]
        if num_launches > 1:
            self.seats = [Seat(1 + rank % num_launches, rank // num_launches) for rank in range(num_nodes)]
        self.records = records = Records()
        for launch in range(1, num_launches + 1):
            num_seats = sum(seat.launch == launch for seat in self.seats)
            append(self.store, "digits-1", records.intent(launch, num_nodes=num_seats))
        append(self.store, "digits-1", records.generation(1, seats=self.seats))
        for index, seat in enumerate(self.seats):
            node = Node(
                "digits-1", seat.launch, "memory://", "given", directory, "python", directory, "5" * 64
            )
            identity = NodeIdentity(instance_id=f"m-{index}", rank=seat.rank, address="10.0.0.1")
            context = NodeContext(
                node, self.store, None, Job(mock.Mock(resumption=0), spec, identity), NodeMemory()
            )
            context.status.generation, context.status.state = 1, "running"
            context.status.num_live = num_nodes
            context.journal.read()
            self.contexts.append(context)
            self.writers.append(HeartbeatWriter(context))
            self.peers.append(PeerHeartbeats(context))
        self.dead = set()
        self._turns = itertools.count()
        self._queue = []
        for rank, (writer, peers) in enumerate(zip(self.writers, self.peers, strict=True)):
            shift = rank / num_nodes
            for act, pause in (
                (writer.beat, lambda w=writer: w.beat_seconds),
                (writer.look, lambda w=writer: w.look_seconds),
                (peers._pass, lambda: LISTEN_SECONDS),
            ):
                self._repeat(act, pause, rank=rank, first=shift * pause())

    def _repeat(self, act, pause, *, rank=None, first=0.0):
        heapq.heappush(self._queue, (self.now + first, next(self._turns), rank, act, pause))

    def log(self):
        """Let each rank print all the time."""
        for rank in range(self.num_nodes):
            seconds = flush_seconds_of(
                rank, num_nodes=self.num_nodes, asked_seconds=self.spec.logs.flush_seconds
            )
            position = self.directory / f"{self.num_nodes}-{rank}.json"
            sink = ObjectStoreLogSink(self.store, "digits-1")
            pump = LogPump(sink, stream=f"1-{rank}", position_path=position, flush_seconds=seconds)
            path = self.directory / f"{self.num_nodes}-{rank}.log"
            pump.follow(path, "train")

            def deliver(pump=pump, path=path):
                with path.open("a") as file:
                    file.write("a step\n")
                pump._deliver(final=False)

            self._repeat(deliver, pump._wait_seconds, first=rank / self.num_nodes * seconds)

    def drive(self):
        """Let a driver look at the job."""
        records = self.records
        submission = records.change(records.history().submission, spec=self.spec_table)
        self.store.put(keys.spec("digits-1"), codec.encode(submission))
        for rank, context in enumerate(self.contexts):
            claim_slot(self.store, "digits-1", 1, rank, context.job.identity)
        machines = [
            Instance(
                id=f"m-{rank}", rank=rank, job_id="digits-1", launch=1,
                state=InstanceState.RUNNING, address="10.0.0.1", launched_at=START, zone="z", instance_type="big",
            )
            for rank in range(self.num_nodes)
        ]  # fmt: skip
        provisioner = SimpleNamespace(
            instances=lambda _request: InstancesResult(instances=tuple(machines)),
            announce=lambda *_: None,
            current_price=lambda _offer: None,
            token_seconds=600.0,
            absence_proves_after_seconds=60.0,
        )
        self.driver = Controller(
            self.store,
            "digits-1",
            SimpleNamespace(provisioner=lambda: provisioner, capabilities=frozenset()),
            clock=Clock(now=lambda: START + timedelta(seconds=self.now), monotonic=lambda: self.now),
        )
        self._repeat(self.driver.tick, lambda: self.driver.poll_seconds)

    def run(self, seconds):
        """Let time pass; return the requests a second."""
        before, until = sum(self.store.calls.values()), self.now + seconds
        while self._queue[0][0] <= until:
            self.now, _, rank, act, pause = heapq.heappop(self._queue)
            if rank not in self.dead:
                act()
                self._repeat(act, pause, rank=rank, first=pause())
        self.now = until
        return (sum(self.store.calls.values()) - before) / seconds


@pytest.fixture
def make_nodes(tmp_path, monkeypatch):
    def make(num_nodes, **options):
        made = Nodes(num_nodes, tmp_path, **options)
        clock = SimpleNamespace(monotonic=lambda: made.now)
        monkeypatch.setattr(peer_heartbeats, "time", clock)
        monkeypatch.setattr(heartbeat_writer, "free_port", lambda: 1)
        return made

    return make


@pytest.mark.full
@pytest.mark.parametrize("num_launches", [1, 32])
def test_the_requests_grow_with_the_nodes_and_stay_below_thirty_a_second_at_sixty_four(
    make_nodes, num_launches
):
    """Each node read the heartbeats of all others once a second: 4,000 a second, six dollars an hour."""
    rates = {}
    for num_nodes in (2, 8, 32, 64):
        nodes = make_nodes(num_nodes, num_launches=min(num_launches, num_nodes))
        nodes.run(60.0)
        rates[num_nodes] = nodes.run(60.0)
    assert rates[64] < 30.0
    assert all(rate <= 3.0 + 0.75 * num_nodes for num_nodes, rate in rates.items()), rates


@pytest.mark.full
@pytest.mark.parametrize("num_nodes", [2, 8, 32, 64])
def test_a_whole_job_that_trains_prints_and_is_driven_asks_less_than_thirty_times_a_second(
    make_nodes, num_nodes
):
    """The driver alone read 64 heartbeats every three seconds, and each node delivered lines every two."""
    nodes = make_nodes(num_nodes)
    nodes.drive()
    nodes.log()
    for context in nodes.contexts:
        context.status.progress = lambda: (int(nodes.now), 10_000)  # So that the summary is new each time.
    nodes.run(60.0)
    before = dict(nodes.store.calls)
    rate = nodes.run(120.0)
    calls = {name: (count - before[name]) / 120.0 for name, count in nodes.store.calls.items()}
    assert rate < min(30.0, 2.0 + 0.75 * num_nodes), calls
    # Everyone has been heard: no driver takes a node for silent whose heartbeat it has not read for a while.
    silent = nodes.driver._memory._beats
    assert len(silent) == num_nodes
    assert max(seconds for _, seconds in silent.values()) < 60.0
    # And all of it was counted.
    assert {"put", "get", "list_page"} <= set(calls)
    assert nodes.store.calls["put"] > before["put"]


def test_a_job_of_one_node_listens_to_nobody_until_another_is_bought(make_nodes):
    nodes = make_nodes(1)
    before = nodes.store.calls["list_page"]
    nodes.run(20.0)
    assert nodes.store.calls["list_page"] == before
    append(nodes.store, "digits-1", nodes.records.intent(2))
    before = nodes.store.calls["list_page"]
    nodes.run(20.0)
    assert nodes.store.calls["list_page"] >= before + 2  # it has to look at the journal first


@pytest.mark.parametrize("num_nodes", [1, 2, 8])
def test_a_request_to_stop_is_seen_soon_though_nobody_asks_for_it_in_vain(make_nodes, num_nodes):
    """Each second a node of the job looked for it: 60 requests a minute for what was not there."""
    nodes = make_nodes(num_nodes)
    asked, get = [], nodes.store.get
    nodes.store.get = lambda key: asked.append(key) or get(key)
    nodes.run(60.0)
    stop = keys.stop("digits-1", 0)
    assert asked.count(stop) <= (13 if num_nodes == 1 else num_nodes)  # before it has heard another
    request_stop(nodes.store, "digits-1", "user", resumption=0)
    nodes.run(5.0)
    assert all(context.orders.stop is not None for context in nodes.contexts)


@pytest.mark.parametrize("num_nodes", [2, 8])
def test_a_call_for_a_command_is_seen_where_the_nodes_are_listed_and_by_the_node_that_is_called(
    make_nodes, num_nodes
):
    nodes = make_nodes(num_nodes, num_launches=num_nodes)
    nodes.run(60.0)
    for called in (0, num_nodes - 1):
        seat = nodes.contexts[called].seat
        nodes.store.put(keys.remote_call("digits-1", *seat), b"asked")
        nodes.run(LISTEN_SECONDS)
        seen = [rank for rank, context in enumerate(nodes.contexts) if context.is_called.is_set()]
        # Whoever is of an earlier launch than all others, whose launches it lists, looks for itself.
        assert [context.status.hears_calls for context in nodes.contexts] == [
            False,
            *[True] * (num_nodes - 1),
        ]
        assert seen == ([called] if called else [])
        nodes.contexts[called].is_called.clear()
        nodes.store.delete(keys.remote_call("digits-1", *seat))


def test_what_the_others_have_agreed_on_is_known_as_soon_as_one_of_them_runs_it(make_nodes):
    nodes = make_nodes(8)
    nodes.run(60.0)
    append(nodes.store, "digits-1", nodes.records.generation(2, seats=nodes.seats[:-1]))
    nodes.contexts[0].status.generation = 2
    nodes.writers[0].beat()
    nodes.run(LISTEN_SECONDS)
    assert all(context.orders.newer.number == 2 for context in nodes.contexts[1:])


def test_what_was_heard_of_is_read_when_the_store_answers_again(make_nodes, monkeypatch):
    nodes = make_nodes(2)
    nodes.run(60.0)
    append(nodes.store, "digits-1", nodes.records.generation(2, seats=nodes.seats[:1]))
    nodes.contexts[0].status.generation = 2
    nodes.writers[0].beat()
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "read", mock.Mock(side_effect=TransientError("an outage")))
        with pytest.raises(TransientError):
            nodes.peers[1]._pass()
    nodes.peers[1]._pass()
    assert nodes.contexts[1].orders.newer.number == 2


def test_who_listens_no_more_looks_for_a_stop_itself(make_nodes, wait_until):
    nodes = make_nodes(2)
    nodes.run(10.0)
    assert nodes.contexts[0].status.hears_others
    nodes.peers[0].start()
    nodes.peers[0].stop()
    wait_until(lambda: not nodes.contexts[0].status.hears_others)


def test_nothing_is_listed_of_the_launches_whose_nodes_are_all_left_out(make_nodes):
    """A job that has replaced a node each hour for a month would list a thousand of them every two seconds."""
    nodes = make_nodes(2, num_launches=2)
    listed = []
    plain = nodes.store.list_page

    def list_page(prefix, **options):
        listed.append((prefix, options["after"]))
        return plain(prefix, **options)

    nodes.store.list_page = list_page
    nodes.peers[1]._pass()
    append(nodes.store, "digits-1", nodes.records.intent(3))
    append(nodes.store, "digits-1", nodes.records.generation(2, seats=[(2, 0), (3, 0)]))
    nodes.contexts[1].journal.read()
    nodes.peers[1]._pass()
    prefix = keys.nodes_prefix("digits-1")
    assert [after for listed_prefix, after in listed if listed_prefix == prefix] == [
        f"{prefix}000001/",
        f"{prefix}000003/",
    ]
    assert nodes.peers[1].others == {Seat(3, 0)}


def test_a_healthy_node_is_never_near_suspicion_however_many_there_are():
    """One beat may just be missed by a listing, and the next put may take a while."""
    assert LISTEN_SECONDS <= MAX_PASS_SECONDS
    assert HEARTBEAT_SECONDS + LISTEN_SECONDS <= SUSPECT_SECONDS - 7.0


@pytest.mark.full
def test_no_pass_reads_more_than_a_few_heartbeats(make_nodes):
    nodes = make_nodes(64)
    nodes.run(10.0)
    before = nodes.store.calls["get"]
    nodes.peers[0]._pass()
    assert nodes.store.calls["get"] - before <= MAX_READS + 1  # the journal
    nodes.run(40.0)
    assert all(set(peers.beats()) == set(peers.others) for peers in nodes.peers)


@pytest.mark.full
def test_a_node_that_dies_is_seen_by_all_after_twenty_seconds_and_a_few(make_nodes):
    nodes = make_nodes(64)
    nodes.run(30.0)
    nodes.writers[5].beat()
    nodes.dead.add(5)
    nodes.run(18.0)
    live = [peers for rank, peers in enumerate(nodes.peers) if rank != 5]
    assert all(peers.lost(peers.others, generation=1) == set() for peers in live)
    nodes.run(8.0)
    assert all(peers.lost(peers.others, generation=1) == {Seat(1, 5)} for peers in live)


def test_a_failure_is_known_to_all_with_one_read_each(make_nodes):
    nodes = make_nodes(16)
    nodes.run(30.0)
    before = nodes.store.calls["get"]
    nodes.contexts[3].status.failed = Failed(generation=1, why="trainer-failed", exit_code=3)
    nodes.writers[3].beat()
    nodes.run(LISTEN_SECONDS)
    others = [peers for rank, peers in enumerate(nodes.peers) if rank != 3]
    assert {peers.beats()[Seat(1, 3)].failed.exit_code for peers in others} == {3}
    # Each has also read the journal, which might have a new generation, and some had their turn to look.
    assert nodes.store.calls["get"] - before <= 2 * 15 + 2


def test_what_has_changed_and_was_not_read_yet_is_unknown(make_nodes, monkeypatch):
    """Its old heartbeat said that it was ready; it had since begun to restore."""
    monkeypatch.setattr(peer_heartbeats, "MAX_READS", 0)
    nodes = make_nodes(2)
    for writer in nodes.writers:
        writer.beat()
    nodes.peers[0]._pass()
    nodes.peers[0].ask()
    for _ in range(3):
        nodes.now += 1.0
        nodes.writers[1].beat()
        nodes.peers[0]._pass()
    assert nodes.peers[0].liveness(Seat(1, 1), has_come=True) is Liveness.UNKNOWN


@pytest.mark.parametrize("fail_every", [3, 5])
def test_a_store_that_fails_often_is_heard_though_no_pass_gets_through_at_once(make_nodes, fail_every):
    nodes = make_nodes(8)
    for writer in nodes.writers:
        writer.beat()
    nodes.store.plan = FaultPlan(fail_every=fail_every)
    num_failed = 0
    for _ in range(40):
        try:
            nodes.peers[0]._pass()
            break
        except TransientError:
            num_failed += 1
    assert 0 < num_failed <= 15, "each pass reads at least one more"
    assert set(nodes.peers[0].beats()) == set(nodes.peers[0].others)


def test_who_cannot_read_what_it_lists_does_not_ask_more_often_for_it(make_nodes, monkeypatch):
    nodes = make_nodes(8)
    for writer in nodes.writers:
        writer.beat()
    peers = nodes.peers[0]
    with monkeypatch.context() as patch:
        patch.setattr(peers, "read_beat", mock.Mock(side_effect=TransientError("throttled")))
        for _ in range(3):
            with pytest.raises(TransientError):
                peers._pass()
    assert not peers.is_close
    assert peers.unread == frozenset(nodes.seats[1:])
    peers._pass()
    assert peers.is_close
    assert peers.unread == frozenset()


def test_beats_within_one_second_of_the_stores_clock_are_told_apart(make_nodes):
    nodes = make_nodes(2)
    nodes.writers[1].beat()
    nodes.peers[0]._pass()
    nodes.peers[0].ask()
    nodes.peers[0]._pass()
    assert nodes.peers[0].liveness(Seat(1, 1)) is Liveness.UNKNOWN
    nodes.writers[1].beat()
    nodes.peers[0]._pass()
    assert nodes.peers[0].liveness(Seat(1, 1)) is Liveness.FRESH


def test_a_restarted_agent_counts_on_what_the_machine_has_moved(make_nodes):
    nodes = make_nodes(2)
    context, key = nodes.contexts[1], keys.heartbeat("digits-1", 1, 1)
    context.status.moved_bytes = lambda: 700
    nodes.writers[1].beat()
    later = HeartbeatWriter(context)
    context.status.moved_bytes = lambda: 50
    for _ in range(2):
        later.beat()
        assert find_record(nodes.store, key, Heartbeat).moved_bytes == 750
    nodes.store.put(key, b"{")  # nobody can tell any more, and nothing stops for it
    HeartbeatWriter(context).beat()
    assert find_record(nodes.store, key, Heartbeat).moved_bytes == 50


def test_a_restarted_agent_counts_its_changes_on(make_nodes):
    """By chance it would have counted as many as the agent before it, and its state would not have been read."""
    nodes = make_nodes(2)
    nodes.writers[1].beat()
    nodes.peers[0]._pass()
    nodes.contexts[1].status.state = "restoring"
    HeartbeatWriter(nodes.contexts[1]).beat()
    nodes.peers[0]._pass()
    assert nodes.peers[0].beats()[Seat(1, 1)].state == "restoring"


def test_a_record_under_another_nodes_key_is_not_taken_for_that_nodes(make_nodes):
    """Drivers refused it, while the other nodes took the node for ended."""
    nodes = make_nodes(2)
    record = nodes.records.exit("failed", rank=0)
    nodes.store.put(keys.exit_record("digits-1", 1, 1), codec.encode(record))
    with pytest.raises(
        CorruptData, match=r"0001/exit\.json holds a record of another node: node 0 of launch 1"
    ):
        nodes.peers[0]._pass()
    assert not nodes.peers[0].is_gone(Seat(1, 1))


@pytest.mark.parametrize("name", ["exit.json", "notice"])
def test_an_odd_key_is_no_nodes(make_nodes, name):
    """The others looked for node 1.1's record, found none, and heard of nobody as long as the key was there."""
    nodes = make_nodes(2)
    nodes.store.put(keys.nodes_prefix("digits-1") + f"000001/00001/{name}", b"{}")
    nodes.peers[0]._pass()
    assert nodes.peers[0].exit_record(Seat(1, 1)) is None
