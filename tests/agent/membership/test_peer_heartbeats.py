"""What the nodes of a launch ask of the store: at most in proportion to their number, and enough to see a loss."""

from __future__ import annotations

import heapq
import itertools
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from faultstore import FaultPlan, FaultyStore
from memorystore import InMemoryStore

from cloudspot.agent.membership import heartbeat_writer, peer_heartbeats
from cloudspot.agent.membership.heartbeat_writer import HeartbeatWriter
from cloudspot.agent.membership.peer_heartbeats import MAX_READS, PeerHeartbeats
from cloudspot.agent.membership.peers import Standing
from cloudspot.agent.node import Node, NodeMemory
from cloudspot.agent.node_context import Job, NodeContext
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.records import Failed
from cloudspot.model import NodeIdentity

START = datetime(2026, 11, 20, tzinfo=timezone.utc)


class Launch:
    """The nodes of a launch by a clock of their own; they beat, listen and look as their threads would."""

    def __init__(self, num_nodes, directory):
        self.now = 1000.0
        # As by S3: a listing tells whole seconds.
        memory = InMemoryStore(now=lambda: START + timedelta(seconds=int(self.now)))
        self.store = FaultyStore(memory, FaultPlan(), directory / "faults")
        spec = spec_from_json({
            "name": "digits", "run": {"entrypoint": "train.py"}, "nodes": num_nodes, "spot": {"policy": "spot"},
        })  # fmt: skip
        self.contexts, self.writers, self.peers = [], [], []
        for rank in range(num_nodes):
            node = Node("digits-1", 1, "memory://", "given", directory, "python", directory)
            identity = NodeIdentity(instance_id=f"m-{rank}", rank=rank, address="10.0.0.1")
            context = NodeContext(node, self.store, None, Job(None, spec, identity), NodeMemory())
            context.status.generation, context.status.state = 1, "running"
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
                (peers._pass, lambda p=peers: p.listen_seconds),
            ):
                first = self.now + shift * pause()
                heapq.heappush(self._queue, (first, next(self._turns), rank, act, pause))

    def run(self, seconds):
        """Let time pass; return the requests a second."""
        before, until = sum(self.store.calls.values()), self.now + seconds
        while self._queue[0][0] <= until:
            self.now, _, rank, act, pause = heapq.heappop(self._queue)
            if rank not in self.dead:
                act()
                heapq.heappush(self._queue, (self.now + pause(), next(self._turns), rank, act, pause))
        self.now = until
        return (sum(self.store.calls.values()) - before) / seconds


@pytest.fixture
def launch(tmp_path, monkeypatch):
    def make(num_nodes):
        made = Launch(num_nodes, tmp_path)
        clock = SimpleNamespace(monotonic=lambda: made.now)
        monkeypatch.setattr(peer_heartbeats, "time", clock)
        monkeypatch.setattr(heartbeat_writer, "free_port", lambda: 1)
        return made

    return make


def test_the_requests_grow_with_the_nodes_and_stay_below_thirty_a_second_at_sixty_four(launch):
    """Each node read the heartbeats of all others once a second: 4,000 a second, six dollars an hour."""
    rates = {}
    for num_nodes in (2, 8, 32, 64):
        nodes = launch(num_nodes)
        nodes.run(60.0)
        rates[num_nodes] = nodes.run(60.0)
    assert rates[64] < 30.0
    assert all(rate <= 3.0 + 0.75 * num_nodes for num_nodes, rate in rates.items()), rates


def test_no_pass_reads_more_than_a_few_heartbeats(launch):
    nodes = launch(64)
    nodes.run(10.0)
    before = nodes.store.calls["get"]
    nodes.peers[0]._pass()
    assert nodes.store.calls["get"] - before <= MAX_READS
    nodes.run(40.0)
    assert all(set(peers.beats()) == set(peers.others) for peers in nodes.peers)


def test_a_node_that_dies_is_seen_by_all_after_twenty_seconds_and_a_few(launch):
    nodes = launch(64)
    nodes.run(30.0)
    nodes.writers[5].beat()
    nodes.dead.add(5)
    nodes.run(18.0)
    live = [peers for rank, peers in enumerate(nodes.peers) if rank != 5]
    assert all(peers.lost(peers.others, generation=1) == set() for peers in live)
    nodes.run(8.0)
    assert all(peers.lost(peers.others, generation=1) == {5} for peers in live)


def test_a_failure_is_known_to_all_with_one_read_each(launch):
    nodes = launch(16)
    nodes.run(30.0)
    before = nodes.store.calls["get"]
    nodes.contexts[3].status.failed = Failed(generation=1, why="trainer-failed", exit_code=3)
    nodes.writers[3].beat()
    nodes.run(nodes.peers[0].listen_seconds)
    others = [peers for rank, peers in enumerate(nodes.peers) if rank != 3]
    assert {peers.beats()[3].failed.exit_code for peers in others} == {3}
    looks = 2 * nodes.peers[0].listen_seconds + 2
    assert nodes.store.calls["get"] - before <= 15 + looks


def test_what_has_changed_and_was_not_read_yet_is_unknown(launch, monkeypatch):
    """Its old heartbeat said that it was ready; it had since begun to restore."""
    monkeypatch.setattr(peer_heartbeats, "MAX_READS", 0)
    nodes = launch(2)
    for writer in nodes.writers:
        writer.beat()
    nodes.peers[0]._pass()
    nodes.peers[0].ask()
    for _ in range(3):
        nodes.now += 1.0
        nodes.writers[1].beat()
        nodes.peers[0]._pass()
    assert nodes.peers[0].standing(1, has_come=True) is Standing.UNKNOWN


def test_beats_within_one_second_of_the_stores_clock_are_told_apart(launch):
    nodes = launch(2)
    nodes.writers[1].beat()
    nodes.peers[0]._pass()
    nodes.peers[0].ask()
    nodes.peers[0]._pass()
    assert nodes.peers[0].standing(1) is Standing.UNKNOWN
    nodes.writers[1].beat()
    nodes.peers[0]._pass()
    assert nodes.peers[0].standing(1) is Standing.FRESH


def test_a_restarted_agent_counts_its_changes_on(launch):
    """By chance it would have counted as many as the agent before it, and its state would not have been read."""
    nodes = launch(2)
    nodes.writers[1].beat()
    nodes.peers[0]._pass()
    nodes.contexts[1].status.state = "restoring"
    HeartbeatWriter(nodes.contexts[1]).beat()
    nodes.peers[0]._pass()
    assert nodes.peers[0].beats()[1].state == "restoring"
