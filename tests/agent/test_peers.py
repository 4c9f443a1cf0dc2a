"""Membership: the clock of silence, the verdict, and no split in thousands of random histories (P3)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timezone

import pytest

from cloudspot.agent import peers
from cloudspot.agent.peers import Adopt, Leave, PeerClock, Propose, Standing, View, Wait, verdict
from cloudspot.jobstore.records import Exit, Generation, Member

NOW = datetime(2026, 11, 20, tzinfo=timezone.utc)


def generation(number: int, *ranks: int, launch: int = 1) -> Generation:
    members = tuple(Member(rank=rank, instance_id=f"i-{rank}", address="127.0.0.1") for rank in ranks)
    return Generation(
        number=number,
        launch=launch,
        members=members,
        endpoint="127.0.0.1:1",
        restore_from=None,
        why="first",
        at=NOW,
        writer="w",
    )


def last_word(outcome: str, *, permanent: bool = False) -> Exit:
    return Exit(
        launch=1,
        rank=1,
        instance_id="i-1",
        outcome=outcome,
        detail="wrong on purpose",
        exit_code=7,
        permanent=permanent,
        generation=1,
        restored_step=0,
        step=3,
        committed=None,
        at=NOW,
        writer="w",
    )


def view(
    standings: dict[int, Standing],
    *,
    current: Generation | None = None,
    newest: Generation | None = None,
    min_nodes: int = 1,
    exits: dict[int, Exit] | None = None,
) -> View:
    return View(
        rank=0,
        launch=1,
        min_nodes=min_nodes,
        current=current,
        newest=newest or current,
        candidates=tuple(sorted({0, *standings})),
        standings=standings,
        exits=exits or {},
    )


# --- the clock of silence ---------------------------------------------------------------------------


def clock_after(counters: list[int | None], *, seconds: float) -> PeerClock:
    clock = PeerClock()
    for number, counter in enumerate(counters):
        clock.hear(number * seconds, {1: counter})
    return clock


def test_a_counter_that_stands_for_twenty_seconds_makes_a_suspect() -> None:
    assert clock_after([5] * 20, seconds=1.0).standing(1) is Standing.UNKNOWN
    assert clock_after([5] * 22, seconds=1.0).standing(1) is Standing.SUSPECT


def test_a_peer_that_never_spoke_becomes_a_suspect_too() -> None:
    assert clock_after([None] * 22, seconds=1.0).standing(1) is Standing.SUSPECT


def test_an_outage_of_the_store_is_nobodys_death() -> None:
    clock = PeerClock()
    clock.hear(0.0, {1: 5})
    for second in range(1, 100):
        clock.hear(float(second), None)
    clock.hear(100.0, {1: 5})
    assert clock.standing(1) is Standing.UNKNOWN


def test_a_reader_that_was_stopped_itself_suspects_nobody_for_it() -> None:
    clock = PeerClock()
    clock.hear(0.0, {1: 5})
    clock.hear(500.0, {1: 5})
    assert clock.standing(1) is Standing.UNKNOWN


def test_only_a_counter_that_moves_after_the_mark_proves_life() -> None:
    clock = PeerClock()
    clock.hear(0.0, {1: 5})
    clock.hear(1.0, {1: 6})
    assert clock.standing(1) is Standing.FRESH
    clock.mark()
    clock.hear(2.0, {1: 6})
    assert clock.standing(1) is Standing.UNKNOWN
    clock.hear(3.0, {1: 7})
    assert clock.standing(1) is Standing.FRESH


def test_a_suspect_that_speaks_again_is_none() -> None:
    clock = clock_after([5] * 30, seconds=1.0)
    clock.hear(30.0, {1: 6})
    assert clock.suspects([1]) == frozenset()


# --- the verdict ------------------------------------------------------------------------------------


def test_nobody_proposes_while_a_peer_is_in_doubt() -> None:
    assert verdict(view({1: Standing.FRESH, 2: Standing.UNKNOWN})) == Wait()


def test_the_living_go_on_without_the_lost_and_the_leaving() -> None:
    standings = {1: Standing.SUSPECT, 2: Standing.FRESH, 3: Standing.LEAVING}
    assert verdict(view(standings, current=generation(4, 0, 1, 2, 3))) == Propose(5, (0, 2))


def test_fewer_than_min_leave_and_idle_on_no_paid_machine() -> None:
    found = verdict(view({1: Standing.SUSPECT}, current=generation(1, 0, 1), min_nodes=2))
    assert found == Leave("left", "1 of at least 2 nodes are left; gone: node 1")


def test_the_loser_of_the_race_adopts_the_winners_record() -> None:
    newest = generation(2, 0, 2)
    found = verdict(view({1: Standing.UNKNOWN}, current=generation(1, 0, 1, 2), newest=newest))
    assert found == Adopt(newest)


def test_who_is_not_in_the_newest_generation_leaves() -> None:
    newest = generation(2, 1, 2)
    found = verdict(view({1: Standing.FRESH}, current=generation(1, 0, 1, 2), newest=newest))
    assert found == Leave("superseded", "generation 2 goes on without this node")


def test_a_newer_launch_ends_every_node_of_the_older() -> None:
    newest = generation(2, 0, launch=2)
    found = verdict(view({}, current=generation(1, 0), newest=newest))
    assert found == Leave("superseded", "launch 2 runs the job")


def test_a_late_record_of_an_older_launch_only_takes_a_number() -> None:
    late = generation(3, 0, launch=0)
    assert verdict(view({}, newest=late)) == Propose(4, (0,))


def test_a_peers_permanent_failure_is_everybodys() -> None:
    found = verdict(
        view(
            {1: Standing.LEAVING},
            current=generation(1, 0, 1),
            exits={1: last_word("failed", permanent=True)},
        )
    )
    assert found == Leave("failed", "node 1: wrong on purpose", permanent=True, exit_code=7)


# --- random histories -------------------------------------------------------------------------------

NUM_NODES = 4
MIN_NODES = 2
HISTORIES = 500


@dataclass
class Node:
    """A node of the model: it runs at most one generation at a time, and may be stopped or killed."""

    rank: int
    clock: PeerClock = field(default_factory=PeerClock)
    counter: int = 0
    current: Generation | None = None
    running: bool = False
    started_at: float = 0.0
    stopped_until: float = 0.0
    alive: bool = True
    left: bool = False
    planned: Propose | None = None
    """Decided, and not yet carried out: between a node's look and its put anything may happen."""


@dataclass
class World:
    """Nodes and the create-only records they share, on one virtual clock."""

    rng: random.Random
    shortcut: str | None
    nodes: list[Node] = field(default_factory=lambda: [Node(rank) for rank in range(NUM_NODES)])
    records: dict[int, Generation] = field(default_factory=dict)
    commits: list[tuple[int, float]] = field(default_factory=list)
    """Generation and time of each checkpoint."""
    strays: list[str] = field(default_factory=list)
    """Nodes seen to run a generation that is not the one on record."""
    outage_until: float = 0.0
    now: float = 0.0

    def trains(self, number: int) -> bool:
        """Say whether all members of a generation run it: a training needs every rank of its world."""
        members = self.records[number].members
        return all(
            self.nodes[m.rank].alive
            and self.nodes[m.rank].running
            and self.now >= self.nodes[m.rank].stopped_until
            and self.nodes[m.rank].current is not None
            and self.nodes[m.rank].current.number == number  # type: ignore[union-attr]
            for m in members
        )

    def step(self, node: Node) -> None:
        """Let a node look once and do what its verdict says."""
        if not node.alive or node.left or self.now < node.stopped_until:
            return
        node.counter += 1
        if node.planned is not None:
            planned, node.planned = node.planned, None
            self._act(node, planned)
            return
        if self.now < self.outage_until:
            if self.shortcut == "an outage counts as silence":
                node.clock.hear(self.now, {r: self._heard(r) for r in range(NUM_NODES) if r != node.rank})
            else:
                node.clock.hear(self.now, None)
            return
        others = [r for r in range(NUM_NODES) if r != node.rank]
        node.clock.hear(self.now, {r: self._heard(r) for r in others})
        newest = self.records[max(self.records)] if self.records else None
        behind = newest is not None and (node.current is None or newest.number > node.current.number)
        if node.running:
            members = {m.rank for m in node.current.members} if node.current else set()
            lost = node.clock.suspects(members - {node.rank})
            late = self.now - node.started_at > peers.START_SECONDS and not self.trains(node.current.number)  # type: ignore[union-attr]
            failed = any(not self.nodes[r].alive or self.nodes[r].left for r in members)
            if not (lost or late or behind or failed):
                return
            node.running = False
            node.clock.mark()
            return
        candidates = tuple(m.rank for m in node.current.members) if node.current else tuple(range(NUM_NODES))
        standings = {r: self._standing(node, r) for r in candidates if r != node.rank}
        seen_newest = newest
        if self.shortcut == "the newest record is not read":
            seen_newest = node.current
        found = verdict(
            View(
                rank=node.rank,
                launch=1,
                min_nodes=MIN_NODES,
                current=node.current,
                newest=seen_newest,
                candidates=candidates,
                standings=standings,
                exits={},
            )
        )
        if isinstance(found, Propose) and self.rng.random() < 0.5:
            node.planned = found
        else:
            self._act(node, found)

    def _standing(self, node: Node, rank: int) -> Standing:
        if self.nodes[rank].left:
            return Standing.LEAVING
        return node.clock.standing(rank)

    def _heard(self, rank: int) -> int | None:
        return self.nodes[rank].counter or None

    def _act(self, node: Node, found: peers.Verdict) -> None:
        if isinstance(found, Leave):
            node.left = True
        elif isinstance(found, Adopt):
            self._run(node, found.generation)
        elif isinstance(found, Propose):
            record = generation(found.number, *found.ranks)
            if self.shortcut == "the last writer wins":
                self.records[found.number] = record
            winner = self.records.setdefault(found.number, record)
            if self.shortcut == "the loser runs its own":
                winner = record
            if any(m.rank == node.rank for m in winner.members):
                self._run(node, winner)
            # Else the next look says that it is out.

    def _run(self, node: Node, record: Generation) -> None:
        node.current, node.running, node.started_at = record, True, self.now
        node.clock.mark()


def play(seed: int, shortcut: str | None = None) -> World:
    """Play one history of faults for a while of virtual time."""
    rng = random.Random(seed)
    world = World(rng, shortcut)
    faults = rng.randrange(1, 5)
    moments = sorted(rng.uniform(5.0, 250.0) for _ in range(faults))
    while world.now < 600.0:
        world.now += rng.uniform(0.5, 3.0)
        while moments and world.now >= moments[0]:
            moments.pop(0)
            _fault(world)
        for node in rng.sample(world.nodes, NUM_NODES):
            world.step(node)
        for number in world.records:
            if world.trains(number):
                world.commits.append((number, world.now))
        world.strays += [
            f"node {node.rank} runs a generation {node.current.number} of its own"
            for node in world.nodes
            if node.running and node.current and world.records[node.current.number] != node.current
        ]
    return world


def _fault(world: World) -> None:
    rng = world.rng
    kind = rng.choice(["kill", "stop", "stop", "outage"])
    victim = rng.choice(world.nodes)
    if kind == "kill":
        victim.alive = False
    elif kind == "stop":
        victim.stopped_until = world.now + rng.choice([5.0, 30.0, 90.0, 200.0])
    else:
        world.outage_until = world.now + rng.choice([5.0, 30.0, 60.0])


def violations(world: World) -> list[str]:
    """Return what must never happen, and did."""
    found = []
    for (number, at), (later, later_at) in zip(world.commits, world.commits[1:], strict=False):
        if later < number:
            found.append(f"generation {later} trained at {later_at:.0f}, after {number} had at {at:.0f}")
    alive = [node for node in world.nodes if node.alive and not node.left]
    training = [number for number in world.records if world.trains(number)]
    if len(training) > 1:
        found.append(f"generations {training} train at once")
    if alive and not training:
        found.append("living nodes idle on paid machines")
    found += world.strays[:1]
    return found


def test_random_histories_never_split_and_never_idle() -> None:
    for seed in range(HISTORIES):
        assert violations(play(seed)) == [], f"seed {seed}"


@pytest.mark.parametrize(
    "shortcut", ["the newest record is not read", "the last writer wins", "the loser runs its own"]
)
def test_a_shortcut_is_found_out(shortcut: str) -> None:
    assert any(violations(play(seed, shortcut)) for seed in range(HISTORIES)), shortcut
