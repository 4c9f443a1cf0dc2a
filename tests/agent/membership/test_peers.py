"""Membership: the clock of silence, the verdict, and no split in thousands of random histories (P3)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timezone

import pytest

from cloudspot.agent.membership import peers
from cloudspot.agent.membership.peers import (
    Adopt,
    Leave,
    PeerClock,
    Propose,
    Standing,
    View,
    Wait,
    absent,
    appraise,
    left_behind,
    verdict,
)
from cloudspot.jobstore.records import Exit, Failed, Generation, Heartbeat, Member

NOW = datetime(2026, 11, 20, tzinfo=timezone.utc)


def generation(number: int, *ranks: int, launch: int = 1) -> Generation:
    members = tuple(
        Member(launch=launch, rank=rank, instance_id=f"i-{rank}", address="127.0.0.1") for rank in ranks
    )
    return Generation(
        number=number,
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
        reached_step=4,
        committed=None,
        at=NOW,
        writer="w",
    )


def beat(number: int, *, state: str, counter: int = 1, failed: int | None = None) -> Heartbeat:
    return Heartbeat(
        counter=counter,
        instance_id="i",
        address="127.0.0.1",
        port=1,
        state=state,
        generation=number,
        restored_step=0,
        step=0,
        steps_total=None,
        metrics={},
        committed=None,
        stall_seconds=None,
        upload_seconds=None,
        failed=None if failed is None else Failed(generation=failed, why="trainer-failed", exit_code=1),
        at=NOW,
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
    clock.mark(1.5)
    clock.hear(2.0, {1: 6})
    assert clock.standing(1) is Standing.UNKNOWN
    clock.hear(3.0, {1: 7})
    assert clock.standing(1) is Standing.FRESH


def test_a_beat_from_before_the_question_that_is_read_after_it_proves_nothing() -> None:
    clock = PeerClock()
    clock.hear(0.0, {1: 5})
    clock.mark(1.0)
    clock.hear(1.1, {1: 5}, asked_at=0.9)  # this pass began before the question
    clock.hear(2.0, {1: 6})
    assert clock.standing(1) is Standing.UNKNOWN
    clock.hear(3.0, {1: 7})
    assert clock.standing(1) is Standing.FRESH


def test_what_could_not_be_heard_counts_for_nothing() -> None:
    clock = PeerClock()
    for second in range(10):
        clock.hear(float(second), {1: 5} if second < 4 else None)
    assert clock.heard_seconds == 3.0


def test_a_suspect_that_speaks_again_is_none() -> None:
    clock = clock_after([5] * 30, seconds=1.0)
    clock.hear(30.0, {1: 6})
    assert clock.suspects([1]) == frozenset()


# --- the verdict ------------------------------------------------------------------------------------


def test_nobody_proposes_while_a_peer_is_in_doubt() -> None:
    assert verdict(view({1: Standing.FRESH, 2: Standing.UNKNOWN})) == Wait()


def test_nobody_proposes_while_a_peer_is_busy() -> None:
    assert verdict(view({1: Standing.FRESH, 2: Standing.BUSY})) == Wait()


@pytest.mark.parametrize(
    ("heard", "state", "standing"),
    [
        (Standing.FRESH, "ready", Standing.FRESH),
        (Standing.FRESH, "running", Standing.FRESH),
        (Standing.FRESH, "uploading", Standing.BUSY),
        (Standing.FRESH, "restoring", Standing.BUSY),
        (Standing.FRESH, "setup", Standing.UNKNOWN),
        (Standing.UNKNOWN, "ready", Standing.UNKNOWN),
        (Standing.UNKNOWN, "ending", Standing.LEAVING),
        (Standing.FRESH, "draining", Standing.LEAVING),
        (Standing.SUSPECT, "restoring", Standing.SUSPECT),
    ],
)
def test_what_a_node_says_it_does_tells_how_it_stands(
    heard: Standing, state: str, standing: Standing
) -> None:
    assert appraise(heard, beat(1, state=state), has_to_go=False) is standing
    assert appraise(heard, beat(1, state=state), has_to_go=True) is Standing.LEAVING


def test_who_is_still_busy_is_absent_and_not_left_behind() -> None:
    newest = generation(2, 1, 2, 3, 4)
    beats = {
        1: beat(1, state="restoring"),
        2: beat(1, state="running"),
        3: beat(2, state="running"),
        4: beat(2, state="ready"),
    }
    assert absent(newest, beats) == {1, 2, 4}
    assert left_behind(newest, beats) == {2}


def test_who_has_run_the_generation_and_delivers_already_is_not_absent() -> None:
    newest = generation(2, 1, 2, 3, 4)
    beats = {
        rank: beat(2, state=state)
        for rank, state in enumerate(("draining", "uploading", "running", "ending"), 1)
    }
    assert absent(newest, beats) == {4}
    assert absent(newest, {}) == {1, 2, 3, 4}


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
HISTORIES = 250
END_SECONDS = 900.0


@dataclass
class Node:
    """A node of the model. It has an agent that may be restarted, and at most one training."""

    rank: int
    phase: str = "setup"
    """``setup``, ``seeking``, ``starting``, ``running``, ``judging``."""
    busy_until: float = 0.0
    clock: PeerClock = field(default_factory=PeerClock)
    written: Heartbeat | None = None
    beat_at: float = 0.0
    read: tuple[float, dict[int, Heartbeat | None]] | None = None
    """A pass that has begun: what it read then is known at the next step."""
    beats: dict[int, Heartbeat | None] = field(default_factory=dict)
    current: Generation | None = None
    started: list[Generation] = field(default_factory=list)
    """Remembered on the machine's disk."""
    began: float = 0.0
    wall_began: float = 0.0
    all_ran: bool = False
    dead_when_asked: frozenset[int] = frozenset()
    stopped_until: float = 0.0
    deadline: float | None = None
    is_deaf: bool = False
    """Its training does not notice by itself that another rank is gone: it waits for it."""
    failed: int | None = None
    """The newest generation that has failed here."""
    hangs: bool = False
    """Its training does not end when it is killed."""
    alive: bool = True
    last_word: Exit | None = None
    planned: Propose | None = None
    """Decided, and not yet carried out: between a node's look and its put anything may happen."""

    @property
    def is_here(self) -> bool:
        return self.alive and self.last_word is None

    @property
    def others(self) -> tuple[int, ...]:
        """Who matters to it."""
        if self.current is None:
            return tuple(rank for rank in range(NUM_NODES) if rank != self.rank)
        return tuple([member.rank for member in self.current.members if member.rank != self.rank])

    def state(self, now: float) -> str:
        if self.phase == "setup":
            return "setup"
        if self.phase == "judging":
            return "uploading"
        if self.phase == "running":
            return "running"
        return "restoring" if self.phase == "starting" or now < self.busy_until else "ready"


@dataclass
class World:
    """Nodes and the create-only records they share, on one virtual clock."""

    rng: random.Random
    shortcut: str | None
    nodes: list[Node] = field(default_factory=lambda: [Node(rank) for rank in range(NUM_NODES)])
    records: dict[int, Generation] = field(default_factory=dict)
    commits: list[tuple[int, float]] = field(default_factory=list)
    """Generation and time of each checkpoint."""
    wrongs: list[str] = field(default_factory=list)
    """What was seen on the way and must not be."""
    outage_until: float = 0.0
    now: float = 0.0

    def trains(self, number: int) -> bool:
        """Say whether all members of a generation run it: a training needs every rank of its world."""
        return all(
            node.alive
            and node.phase == "running"
            and self.now >= node.stopped_until
            and node.current is self.records[number]
            for node in (self.nodes[member.rank] for member in self.records[number].members)
        )

    @property
    def newest(self) -> Generation | None:
        return self.records[max(self.records)] if self.records else None

    def step(self, node: Node) -> None:
        """Let a node beat, hear, and do one thing."""
        if not node.is_here or self.now < node.stopped_until:
            return
        is_down = self.now < self.outage_until
        self._beat(node, is_down=is_down)
        self._hear(node, is_down=is_down)
        if node.hangs:
            return
        if node.deadline is not None and not is_down:
            self._leave(node, "drained")
        elif node.phase == "setup":
            if self.now >= node.busy_until:
                self._seek(node)
        elif node.phase == "starting":
            self._start(node)
        elif node.phase == "running":
            self._watch(node, is_down=is_down)
        elif not is_down and self.now >= node.busy_until:
            if node.phase == "judging":
                self._judge(node)
            else:
                self._agree(node)

    def _beat(self, node: Node, *, is_down: bool) -> None:
        state = node.state(self.now)
        number = 0 if node.current is None else node.current.number
        is_news = node.written is None or (node.written.state, node.written.generation) != (state, number)
        if not is_down and (is_news or self.now >= node.beat_at):
            counter = 1 if node.written is None else node.written.counter + 1
            node.written = beat(number, state=state, counter=counter, failed=node.failed)
            node.beat_at = self.now + (0.5 if node.phase in {"judging", "seeking"} else 5.0)

    def _hear(self, node: Node, *, is_down: bool) -> None:
        if node.read is not None:
            asked_at, beats = node.read
            node.beats.update(beats)
            counters = {rank: None if one is None else one.counter for rank, one in beats.items()}
            if self.shortcut == "an unread beat proves life":
                asked_at = self.now
                for rank, heard in node.clock._heard.items():
                    if heard.first is None and rank in counters:
                        heard.first = heard.counter
            node.clock.hear(self.now, counters, asked_at=asked_at)
            node.read = None
        elif is_down and self.shortcut != "an outage counts as silence":
            node.clock.hear(self.now, None)
        if not is_down or self.shortcut == "an outage counts as silence":
            node.read = (
                self.now,
                {one.rank: one.written for one in self.nodes if one.rank != node.rank},
            )

    # --- the phases ---

    def _seek(self, node: Node) -> None:
        node.phase = "seeking"
        node.busy_until = self.now + self.rng.choice([0.0, 1.0, 8.0, 8.0, 160.0])
        node.clock.mark(self.now)

    def _watch(self, node: Node, *, is_down: bool) -> None:
        assert node.current is not None
        others = node.others
        lost = node.clock.suspects(others)
        if not is_down:
            lost |= {rank for rank in others if self.nodes[rank].last_word is not None}
        missing = frozenset[int]()
        if not node.all_ran:
            missing = absent(node.current, node.beats) - {node.rank}
            node.all_ran = not missing
            waited = node.clock.heard_seconds - node.began
            if self.shortcut == "absence is counted in an outage too":
                waited = self.now - node.wall_began
            if waited <= peers.START_SECONDS:
                missing = frozenset()
            if missing and is_down:
                self.wrongs.append(f"node {node.rank} gave a training up in an outage")
        newest = self.newest
        is_behind = newest is not None and newest.number > node.current.number and not is_down
        has_failed = any(
            not other.alive
            or other.last_word is not None
            or (node.current in other.started and other.phase not in {"running", "setup"})
            for other in (self.nodes[rank] for rank in others)
            if not node.is_deaf
        )
        told = [one.failed for rank in others if (one := node.beats.get(rank)) and one.failed]
        if self.shortcut == "a failure of any generation is believed":
            has_failed = has_failed or bool(told)
        has_failed = has_failed or any(one.generation == node.current.number for one in told)
        if has_failed and not (lost or missing or is_behind):
            node.phase, node.failed = "judging", node.current.number
            node.clock.mark(self.now)
            node.dead_when_asked = frozenset(rank for rank in others if not self.nodes[rank].alive)
        elif has_failed or lost or missing or is_behind:
            self._seek(node)

    def _judge(self, node: Node) -> None:
        newest = self.newest
        assert node.current is not None
        if newest is not None and newest.number > node.current.number:
            self._seek(node)
            return
        standings = [self._standing(node, rank) for rank in node.others]
        if Standing.UNKNOWN in standings:
            return
        is_well = not {Standing.SUSPECT, Standing.LEAVING}.intersection(standings)
        if is_well and node.dead_when_asked:
            self.wrongs.append(f"the loss of {set(node.dead_when_asked)} was booked as the script's failure")
        self._seek(node)

    def _agree(self, node: Node) -> None:
        if node.planned is not None:
            planned, node.planned = node.planned, None
            self._propose(node, planned)
            return
        standings = {rank: self._standing(node, rank) for rank in node.others}
        had_time = node.clock.heard_seconds - node.began > peers.START_SECONDS
        if node.current is not None and had_time and self.shortcut != "the absent are proposed again":
            for rank in left_behind(node.current, node.beats):
                if standings.get(rank) is Standing.FRESH:
                    standings[rank] = Standing.LEAVING
        found = verdict(
            View(
                rank=node.rank,
                launch=1,
                min_nodes=MIN_NODES,
                current=node.current,
                newest=node.current if self.shortcut == "the newest record is not read" else self.newest,
                candidates=tuple(sorted((node.rank, *node.others))),
                standings=standings,
                exits={r: word for r in node.others if (word := self.nodes[r].last_word) is not None},
            )
        )
        if isinstance(found, Leave):
            self._leave(node, found.outcome)
        elif isinstance(found, Adopt):
            self._enter(node, found.generation)
        elif isinstance(found, Propose):
            if self.rng.random() < 0.5:
                node.planned = found
            else:
                self._propose(node, found)

    def _standing(self, node: Node, rank: int) -> Standing:
        peer = self.nodes[rank]
        return appraise(
            node.clock.standing(rank),
            node.beats.get(rank),
            has_to_go=peer.last_word is not None or peer.deadline is not None,
            has_come=node.current is None,
        )

    def _propose(self, node: Node, found: Propose) -> None:
        record = generation(found.number, *found.ranks)
        if self.shortcut == "the last writer wins":
            self.records[found.number] = record
        winner = self.records.setdefault(found.number, record)
        if self.shortcut == "the loser runs its own":
            winner = record
        if any(member.rank == node.rank for member in winner.members):
            self._enter(node, winner)
        # Else the next look says that it is out.

    def _enter(self, node: Node, record: Generation) -> None:
        node.current, node.phase = record, "starting"
        node.began, node.wall_began, node.all_ran = node.clock.heard_seconds, self.now, False

    def _start(self, node: Node) -> None:
        assert node.current is not None
        if node.current in node.started:
            self.wrongs.append(f"node {node.rank} started generation {node.current.number} twice")
        node.started.append(node.current)
        node.phase, node.is_deaf = "running", self.rng.random() < 0.3

    def _leave(self, node: Node, outcome: str) -> None:
        well = [rank for rank in (node.rank, *node.others) if self._is_well(self.nodes[rank])]
        if outcome == "left" and len(well) >= MIN_NODES:
            self.wrongs.append(f"node {node.rank} left, though nodes {well} were well")
        node.last_word = last_word(outcome)

    def _is_well(self, node: Node) -> bool:
        speaks_since = max(node.stopped_until, self.outage_until) if node.stopped_until else 0.0
        is_late = self.now < speaks_since + 2 * peers.SUSPECT_SECONDS
        return node.is_here and not node.hangs and node.deadline is None and not is_late

    def restart_agent(self, node: Node) -> None:
        """Kill the agent; the next one knows what is on the disk. A training that runs goes on."""
        node.clock, node.read, node.planned = PeerClock(), None, None
        node.beats = {}
        node.began, node.wall_began, node.all_ran = 0.0, self.now, False
        node.current = node.started[-1] if node.started else None
        if node.phase in {"judging", "starting", "seeking"}:
            self._seek(node)
            if self.shortcut == "a restarted agent forgets what it has run":
                node.current = None


def play(seed: int, shortcut: str | None = None) -> World:
    """Play one history of faults for a while of virtual time."""
    rng = random.Random(seed)
    world = World(rng, shortcut)
    for node in world.nodes:
        node.busy_until = rng.choice([0.0, 0.0, 5.0, 100.0])
    moments = sorted(rng.uniform(1.0, 350.0) for _ in range(rng.randrange(1, 6)))
    while world.now < END_SECONDS and any(node.is_here for node in world.nodes):
        world.now += rng.uniform(0.2, 1.2)
        while moments and world.now >= moments[0]:
            moments.pop(0)
            _fault(world)
        for node in rng.sample(world.nodes, NUM_NODES):
            if node.deadline is not None and world.now >= node.deadline:
                node.alive = False
            world.step(node)
        world.commits += [(number, world.now) for number in world.records if world.trains(number)]
        world.wrongs += [
            f"node {node.rank} runs a generation {node.current.number} of its own"
            for node in world.nodes
            if node.phase == "running" and node.current and world.records[node.current.number] != node.current
        ][:1]
    return world


def _fault(world: World) -> None:
    rng = world.rng
    kind = rng.choice(["kill", "stop", "stop", "outage", "notice", "restart", "restart", "hang"])
    victim = rng.choice(world.nodes)
    if kind == "kill":
        victim.alive = False
    elif kind == "stop":
        victim.stopped_until = world.now + rng.choice([5.0, 30.0, 90.0, 200.0])
    elif kind == "notice":
        victim.deadline = world.now + rng.choice([5.0, 30.0, 120.0])
    elif kind == "restart" and victim.is_here and not victim.hangs and world.now >= victim.stopped_until:
        world.restart_agent(victim)
    elif kind == "hang" and victim.phase == "running":
        victim.hangs = True
    elif kind == "outage":
        world.outage_until = world.now + rng.choice([5.0, 30.0, 60.0, 200.0])


def violations(world: World) -> list[str]:
    """Return what must never happen, and did."""
    found = []
    for (number, at), (later, later_at) in zip(world.commits, world.commits[1:], strict=False):
        if later < number:
            found.append(f"generation {later} trained at {later_at:.0f}, after {number} had at {at:.0f}")
    here = [node for node in world.nodes if node.is_here and not node.hangs]
    training = [number for number in world.records if world.trains(number)]
    if len(training) > 1:
        found.append(f"generations {training} train at once")
    if here and not training:
        found.append("living nodes idle on paid machines")
    return found + world.wrongs[:1]


def test_random_histories_never_split_and_never_idle() -> None:
    for seed in range(HISTORIES):
        assert violations(play(seed)) == [], f"seed {seed}"


@pytest.mark.parametrize(
    "shortcut",
    [
        "the newest record is not read",
        "the last writer wins",
        "the loser runs its own",
        "an unread beat proves life",
        "an outage counts as silence",
        "absence is counted in an outage too",
        "the absent are proposed again",
        "a restarted agent forgets what it has run",
        "a failure of any generation is believed",
    ],
)
def test_a_shortcut_is_found_out(shortcut: str) -> None:
    assert any(violations(play(seed, shortcut)) for seed in range(HISTORIES)), shortcut
