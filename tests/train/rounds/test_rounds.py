"""The rounds protocol under random interleavings: all ranks serve the same step, and nobody hangs."""

import itertools
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
from support.worlds.few_or_many import few_or_many
from torch.distributed import HashStore

from cloudspot.train.rounds import presiding, rounds, step_seconds
from cloudspot.train.rounds.handover import HandOver
from cloudspot.train.rounds.rounds import Rounds
from cloudspot.train.rounds.save_order import DRAIN, INTERVAL, MAX_BYTES, REWOUND, SaveOrder, limit_bytes
from cloudspot.train.state.partition import plan


def given(rank, order):
    """What a rank hands over for this save, and for no other."""
    return b"%d at %d in %d" % (rank, order.step, order.number)


class WouldWait(Exception):
    """Raised where a main thread would wait."""


def try_begin(rounds, step):
    """Return what ``begin`` returns, but True for a boundary that is passed and False instead of waiting."""

    order = without_waiting(rounds, lambda: rounds.begin(step))
    return True if order is None else order


def without_waiting(rounds, call):
    """Return what ``call`` returns, or False instead of waiting."""

    def wait(timeout):
        raise WouldWait

    rounds._changed.wait = wait
    try:
        return call()
    except WouldWait:
        return False
    finally:
        del rounds._changed.wait


class World:
    """Ranks with main and background actors that a seeded scheduler interleaves, on a virtual clock."""

    def __init__(self, seed, *, num_ranks, total, collectives=True, known_end=True, evaluators=None):
        self.evaluators = evaluators or frozenset()
        """The ranks that evaluate, and check, at the beginning of every fifth step."""
        self.random = random.Random(seed)
        self.asking = random.Random(seed) if seed % 4 == 3 else None
        """Chooses which rank asks for an interval save; None: rank 0 always does."""
        self.now = 0.0
        self.guard = 1e9
        self.store = HashStore()
        self.total = total
        self.collectives = collectives
        self.known_end = known_end
        self.stability = 1.0
        """How probable it is that a state stands where the script has not changed it."""
        self.ranks = [Rank(self, rank, num_ranks) for rank in range(num_ranks)]

    def run(self, *, drain_at=None, intervals=0.0, drain_ranks=None, seconds_per_event=0.001):
        """Interleave until every rank has ended or left, and return after how many events; fail if they hang."""
        for event in range(200_000):
            if all(rank.over for rank in self.ranks):
                return event
            self.now += self.random.random() * seconds_per_event
            if drain_at is not None and event >= drain_at:
                for index in drain_ranks or [self.random.randrange(len(self.ranks))]:
                    self.ranks[index].rounds.request_drain(guard=self.guard, notice=True)
                drain_at = None
            if self.random.random() < intervals:
                asking = self.ranks[0] if self.asking is None else self.asking.choice(self.ranks)
                if asking.index == 0:
                    asking.rounds.request_interval()
                else:
                    asking.rounds.wants_interval = True  # a save of its own has come to nothing
            rank = self.random.choice(self.ranks)
            if rank.is_dead:
                continue
            if self.random.random() < 0.1:
                rank.connection.deliver()
            if self.random.random() < rank.haste:
                rank.move()
            elif self.random.random() < 0.5:
                rank.rounds.poll()
            else:
                with suppress(RuntimeError):
                    rank.rounds._advance()  # interleave within a poll, too
        states = [(r.position, r.in_step, r.over, r.rounds._hold, r.rounds._order) for r in self.ranks]
        pytest.fail(f"the ranks hang: {states}")


class Connection:
    """As a TCPStore's client: what it sets reaches the others a while later, in order."""

    def __init__(self, world):
        self._world = world
        self._server = world.store
        self._sent = []

    def set(self, key, value, /):
        self._sent.append((key, value))

    def deliver(self):
        for key, value in self._sent:
            self._server.set(key, value)
        self._sent.clear()

    def get(self, key, /):
        self._reach()
        return self._server.get(key)

    def check(self, keys, /):
        self._reach()
        return self._server.check(keys)

    def _reach(self):
        if self._world.ranks[0].is_dead:
            raise RuntimeError("Connection reset by peer")
        self.deliver()

    def compare_set(self, key, expected, desired, /):
        self._reach()
        return self._server.compare_set(key, expected, desired)


class Rank:
    def __init__(self, world, index, num_ranks):
        self.connection = Connection(world)
        self.world = world
        self.index = index
        self.haste = world.random.choice([0.1, 0.5, 0.9])
        self.position = 0
        self.in_step = False
        self.over = False
        self.left_at = None
        self.saved = []
        self.room = 1000 + index
        self.num_checks = 0  # still to come in the evaluation
        self.is_saving = False
        """Whether it copies its state for an interval save."""
        self.copied = None
        self.published = None
        self.handover = None
        self.sealed = None
        """The ranks whose state is in this rank's part."""
        self.is_doomed = False
        self.is_dead = False
        """Whether its machine is gone, and the store with it if it is rank 0's."""
        self.rounds = Rounds(
            self.connection,
            rank=index,
            world_size=num_ranks,
            start=0,
            clock=lambda: world.now,
            can_save=lambda: world.random.random() < 0.9,
            room=lambda: self.room,
            rewindable=self,
        )

    # As a session's service, to the background thread:

    def has_marked(self, number):
        return self.position + self.in_step > number

    def standing(self, number):
        """After a boundary, the state is as there until the step is done; of two steps, both change it."""
        return [self.position] if self.in_step and self.world.random.random() < self.world.stability else []

    def copy(self, order):
        assert order.rooms == tuple(rank.room for rank in self.world.ranks)
        stands = self.position == order.step and self.in_step
        if not stands or self.world.random.random() > self.world.stability:
            return None
        self.copied = order.step
        self.handover = self.hand_over(order)
        return self.handover

    def publish(self):
        assert self.published is None, "sealed twice"
        self.published = self.copied
        self.seal()

    # As a session's saver:

    def hand_over(self, order):
        takers = plan((), world_size=len(self.world.ranks), avoid=order.avoid).takers
        self.is_doomed = 0 < len(order.avoid) < len(self.world.ranks) and self.index in order.avoid
        if self.index in takers:
            staying = set(range(len(self.world.ranks))) - set(takers)
            awaits = staying if self.index == 0 else {takers[self.index]}
            return HandOver(order, self.index, gives=given(self.index, order), awaits=awaits)
        givers = [giver for giver, taker in takers.items() if taker == self.index]
        self.order = order
        return HandOver(order, self.index, takes=givers)

    def seal(self):
        taken = self.handover.taken
        assert taken == {giver: given(giver, self.order) for giver in self.handover._takes}
        self.sealed = set() if self.handover.gives is not None else {self.index, *taken}

    def leave(self):
        """Tell the others, as the session's link does; a machine that has a notice goes at once."""
        self.over = True
        if self.is_doomed:
            # At a boundary behind, rank 0 waits here for the others, who need its store.
            staying = [rank.over for rank in self.world.ranks if not rank.is_doomed]
            self.is_dead = self.index != 0 or self.published is None or all(staying)
        else:
            self.connection.set(f"parted/{self.index}", "1")

    def move(self):
        """Let the main thread do its next thing, if it can."""
        if self.over:
            return
        if self.is_saving:
            if self.world.random.random() < 0.5:
                self.is_saving = False
                self.rounds.served()
            return
        if self.rounds.is_rewound:
            self.left_at = self.published
            self.leave()
            return
        if self.handover is not None and self.saved and self.saved[-1][0] == DRAIN:
            without_waiting(self.rounds, lambda: self.rounds.hand_over(self.handover))
            if self.handover.is_done:
                self.left_at = self.position
                self.seal()
                self.leave()
            elif self.rounds.is_lost or self.world.now >= self.rounds.guard:
                self.over = True
            return
        if self.num_checks:
            order = without_waiting(self.rounds, self.rounds.check)
            if order is False:
                self.rounds._asks = True
            elif order is None:
                self.num_checks -= 1
            else:
                self.over = True
                self.left_at = None if order.step is None else self.published
                assert order.step in {None, self.published}
            return
        if self.in_step:
            if any(r.over and r.left_at is None and r.position < self.world.total for r in self.world.ranks):
                self.over = True  # a peer left without a save: the collective fails, or the agent kills
                return
            if self.is_doomed and self.rounds.is_lost:
                self.over = True  # as do those of a rank that has not heard that all have rewound
                return
            begun = [r.position + r.in_step for r in self.world.ranks]
            if not self.world.collectives or all(each > self.position for each in begun):
                self.in_step = False
                self.position += 1
            return
        if self.position == self.world.total and self.world.known_end:
            self.end()
            return
        answer = try_begin(self.rounds, self.position)
        if answer is True:
            if self.position == self.world.total:
                self.end()  # there was no further batch
            else:
                self.in_step = True
                if self.index in self.world.evaluators and self.position % 5 == 0:
                    self.num_checks = 80
        elif isinstance(answer, SaveOrder) and answer.kind == REWOUND:
            self.over, self.left_at = True, self.published
        elif isinstance(answer, SaveOrder):
            if answer.step is None:
                self.over = True
                return
            assert answer.step == self.position
            assert answer.rooms == tuple(rank.room for rank in self.world.ranks)
            self.saved.append((answer.kind, answer.step, answer.avoid))
            if answer.kind == DRAIN:
                self.handover = self.hand_over(answer)
            else:
                self.is_saving = True

    def end(self):
        order = without_waiting(self.rounds, self.rounds.finish)
        if order is None:
            self.over = True
        elif order is not False:
            self.over, self.left_at = True, self.published


def check(world):
    first = world.ranks[0]
    for rank in world.ranks:
        if rank.is_doomed and rank.rounds.is_lost and rank.left_at is None:
            continue  # it has given, and loses the store before it hears that its taker has sealed
        assert rank.saved == first.saved
        assert rank.left_at == first.left_at
        assert rank.published == first.published
        if first.published is None:
            assert rank.position == first.position
    steps = [step for _, step, _ in first.saved]
    assert steps == sorted(steps)
    if first.left_at is not None:
        # Whichever machines go at once, before they have uploaded anything, the others hold the state of all.
        parts = [rank.sealed for rank in world.ranks if not rank.is_doomed]
        assert sorted(itertools.chain(*parts)) == list(range(len(world.ranks)))


@pytest.mark.costly
@few_or_many(25, 160)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("known_end", [True, False])
def test_under_any_interleaving_all_ranks_save_and_leave_at_the_same_steps(num_ranks, known_end, seeds):
    drained = finished = 0
    for seed in seeds:
        world = World(seed, num_ranks=num_ranks, total=20, known_end=known_end)
        length = World(seed, num_ranks=num_ranks, total=20, known_end=known_end).run(intervals=0.02)
        doomed = world.random.sample(range(num_ranks), min(num_ranks, 1 + seed % 2))
        world.run(drain_at=world.random.randrange(length), drain_ranks=doomed, intervals=0.02)
        check(world)
        drained += world.ranks[0].left_at is not None
        finished += world.ranks[0].left_at is None
    assert drained > len(seeds) / 3
    assert finished >= len(seeds) / 30


@pytest.mark.full
@few_or_many(20, 70)
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("stability", [1.0, 0.9])
def test_in_an_evaluation_all_ranks_rewind_or_none_does(num_ranks, stability, seeds):
    rewound = ahead = 0
    for seed in seeds:
        worlds = [
            World(
                seed,
                num_ranks=num_ranks,
                total=20,
                evaluators=frozenset(range(num_ranks)) if seed % 2 else {seed % num_ranks},
            )
            for _ in range(2)
        ]
        length = worlds[0].run(intervals=0.02)
        world = worlds[1]
        world.stability = stability
        world.run(drain_at=world.random.randrange(length), intervals=0.02)
        check(world)
        for rank in world.ranks:
            drained = [step for kind, step, _ in rank.saved if kind == DRAIN]
            assert ([] if rank.left_at is None else [rank.left_at]) == (
                drained if rank.published is None else [rank.published]
            )
            assert rank.published is None or drained == []
        rewound += world.ranks[0].published is not None
        ahead += world.ranks[0].published is None
    assert rewound > len(seeds) / 24
    assert ahead > len(seeds) / 24


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 7])
def test_many_more_interleavings(num_ranks):
    for seed in range(20_000):
        world = World(seed, num_ranks=num_ranks, total=30, known_end=seed % 2 == 0)
        world.run(drain_at=world.random.randrange(600 * num_ranks), intervals=0.02)
        check(world)


@pytest.mark.full
def test_with_a_guard_that_may_pass_either_all_save_or_nobody_does():
    saved = left = 0
    for seed in range(300):
        world = World(seed, num_ranks=3, total=10_000)
        world.guard = world.random.random()  # an event takes half a millisecond
        world.run(drain_at=0)
        parts = [rank.sealed for rank in world.ranks if rank.sealed]
        if len({tuple(rank.saved) for rank in world.ranks}) > 1 or not parts:
            assert world.now >= world.guard
        saved += sorted(itertools.chain(*parts)) == [0, 1, 2]
        left += not parts
    assert saved > 50
    assert left >= 1


@pytest.mark.full
def test_ranks_that_do_not_wait_for_each_other_save_at_the_same_steps_too():
    saves = 0
    for seed in range(150):
        world = World(seed, num_ranks=3, total=60, collectives=False)
        world.run(intervals=0.02)
        for rank in world.ranks:
            assert rank.saved == world.ranks[0].saved
            assert rank.position == 60
        saves += len(world.ranks[0].saved)
    assert saves > 100


@pytest.mark.full
def test_a_drain_that_meets_a_finished_rank_lets_the_others_finish():
    for seed in range(100):
        world = World(seed, num_ranks=3, total=30, collectives=False)
        world.ranks[1].haste = 1.0
        while not world.ranks[1].over:
            world.ranks[1].move()
        world.ranks[1].haste = 0.5
        world.run(drain_at=0, drain_ranks=[2])
        assert [rank.left_at for rank in world.ranks] == [None] * 3
        assert [rank.position for rank in world.ranks] == [30] * 3


def test_the_ranks_on_machines_with_a_notice_are_avoided():
    world = World(1, num_ranks=4, total=1000)
    world.run(drain_at=100, drain_ranks=[1, 3])
    check(world)
    ((kind, _, avoid),) = world.ranks[0].saved
    assert (kind, avoid) == (DRAIN, frozenset({1, 3}))


def test_a_rank_whose_save_came_to_nothing_has_another_one_made_by_all():
    world = World(1, num_ranks=3, total=80)
    for rank in world.ranks:
        rank.rounds._can_save = lambda: True
    for rank in world.ranks[1:]:
        rank.rounds.wants_interval = True
    world.run()
    check(world)
    assert {kind for kind, *_ in world.ranks[0].saved} == {INTERVAL}


def test_short_steps_go_on_while_the_ranks_find_together_for_an_interval_save():
    world = World(2, num_ranks=2, total=1000)
    for rank in world.ranks:
        rank.haste = 0.5
        rank.rounds._can_save = lambda: True
    while world.ranks[0].position < 500:
        rank = world.random.choice(world.ranks)
        world.now += 0.005
        rank.move()
        rank.rounds.poll()
    opened_at = world.ranks[0].position
    world.ranks[0].rounds.request_interval()
    world.run(seconds_per_event=0.01)
    check(world)
    ((kind, step, _),) = world.ranks[0].saved
    # About 20 ms a step, and 100 ms to find together.
    assert kind == INTERVAL
    assert 4 <= step - opened_at <= 8


@pytest.mark.parametrize("last_step", [20, 21])
def test_ranks_that_leave_early_learn_after_which_step_each_has(last_step):
    store = HashStore()
    ranks = [
        Rounds(store, rank=rank, world_size=3, start=0, clock=time.monotonic, can_save=lambda: True)
        for rank in range(3)
    ]
    over = threading.Event()

    def poll():
        while not over.is_set():
            for rank in ranks:
                rank.poll()

    poller = threading.Thread(target=poll)
    poller.start()
    until = time.monotonic() + 60
    with ThreadPoolExecutor(3) as pool:
        steps = [20, 20, last_step]
        found = list(
            pool.map(lambda pair: pair[0].leave(pair[1], until=lambda: until), zip(ranks, steps, strict=True))
        )
    over.set()
    poller.join()
    assert found == [dict(enumerate(steps))] * 3


def test_a_rank_that_leaves_alone_waits_no_longer_than_it_is_told():
    rank = Rounds(HashStore(), rank=1, world_size=2, start=0, clock=lambda: 5.0)
    assert rank.leave(20, until=lambda: 5.0) == {1: 20}
    assert rank.begin(3) is None


# --- single cases -------------------------------------------------------------------------------


ROOMS = (100, 70, 90)
"""How many bytes the slots of each rank hold."""


def order_for(kind, step, avoid=(), *, number=1, num_ranks=2):
    """What the ranks of ``pair`` are told, with time to hand over as much as the store may hold."""
    return SaveOrder(kind, step, number, frozenset(avoid), ROOMS[:num_ranks], MAX_BYTES)


def pair(store=None, now=None, num_ranks=2):
    store = store or HashStore()
    now = now or [0.0]
    return [
        Rounds(
            store,
            rank=rank,
            world_size=num_ranks,
            start=0,
            clock=lambda: now[0],
            room=lambda rank=rank: ROOMS[rank],
        )
        for rank in range(num_ranks)
    ]


class Standing:
    """A state that stands at every boundary that was passed, or at none."""

    def __init__(self, stands=True):
        self.stands = stands
        self.published = 0

    def has_marked(self, number):
        return True

    def standing(self, number):
        return [number] if self.stands else []

    def copy(self, order):
        assert order == order_for(DRAIN, 0, {1}, number=2)
        return HandOver(order, 0)

    def publish(self):
        self.published += 1


@pytest.fixture
def evaluating():
    """``evaluating(...)``: two ranks whose states stand or not: 0 evaluates, 1 is at the next boundary, drained."""

    def make(*stands):
        now = [0.0]
        ranks = pair(now=now)
        for one, each in zip(ranks, stands, strict=True):
            one._rewind._rewindable = one._rewindable = Standing(each)
            assert one.begin(0) is None
            assert one.check() is None
        ranks[1].request_drain(guard=100.0, notice=True)
        settle(*ranks)
        assert try_begin(ranks[1], 1) is False  # it would else leave alone
        settle(*ranks)
        assert try_begin(ranks[1], 1) is False
        return *ranks, now

    return make


def ask(participant):
    """Let the main thread ask, and wait in the ``check``."""
    assert without_waiting(participant, participant.check) is False
    participant._asks = True


def test_where_one_rank_evaluates_the_other_waits_at_its_boundary_and_both_rewind(evaluating):
    zero, one, _ = evaluating(True, True)
    ask(zero)
    settle(zero, one)
    assert zero.check() == try_begin(one, 1) == order_for(REWOUND, 0, {1}, number=2)
    assert zero._rewindable.published == one._rewindable.published == 1


@pytest.mark.parametrize("stands", [(True, False), (False, True)])
def test_a_rank_whose_state_has_changed_sends_all_to_the_boundary_ahead(evaluating, stands):
    zero, one, _ = evaluating(*stands)
    ask(zero)
    settle(zero, one)
    assert zero.check() is None
    assert try_begin(one, 1) is False
    assert try_begin(zero, 1) is False  # says that it has arrived
    settle(zero, one)
    assert try_begin(zero, 1) == try_begin(one, 1) == order_for(DRAIN, 1, {1})
    assert zero._rewindable.published == one._rewindable.published == 0


def test_a_rank_that_waits_for_one_that_evaluates_leaves_alone_at_the_guard(evaluating):
    _, one, now = evaluating(True, True)
    now[0] = 100.1
    assert try_begin(one, 1) == order_for(DRAIN, 1, {1})


def test_a_check_waits_for_nobody_after_the_guard(evaluating):
    zero, one, now = evaluating(True, True)
    ask(zero)
    zero.poll()  # the other one does not answer any more
    now[0] = 100.1
    settle(zero)
    assert zero.check() is None
    assert (zero._rewindable.published, one._rewindable.published) == (0, 0)


def test_a_rank_that_has_ended_its_loop_sends_the_others_ahead(evaluating):
    zero, one, _ = evaluating(True, True)
    one.finish()
    settle(one)
    ask(zero)
    settle(zero, one)
    assert zero.check() is None
    assert zero._rewindable.published == 0


def test_a_rank_does_not_end_its_loop_in_a_rewind(evaluating):
    zero, one, _ = evaluating(True, True)
    ask(zero)
    zero.poll()
    one.poll()
    assert without_waiting(one, one.finish) is False
    settle(zero, one)
    assert one.finish() == order_for(REWOUND, 0, {1}, number=2)


@pytest.mark.parametrize("is_asked_first", [False, True])
def test_a_rank_in_the_middle_of_an_interval_save_ends_it_and_rewinds_then(is_asked_first):
    """It said that its state does not stand, so all went ahead to a boundary that came too late."""
    now = [0.0]
    zero, one = pair(now=now)
    for rank in (zero, one):
        rank._rewind._rewindable = rank._rewindable = Standing()
        assert rank.begin(0) is None
        assert rank.check() is None
    zero.request_interval()
    settle(zero, one)
    assert try_begin(one, 1) == order_for(INTERVAL, 1)  # it copies; the other one evaluates
    one.request_drain(guard=100.0, notice=True)
    settle(zero, one)
    ask(zero)
    settle(zero, one)
    assert without_waiting(zero, zero.check) is False
    if is_asked_first:
        assert without_waiting(one, one.check) is False
    one.served()
    settle(zero, one)
    assert zero.check() == order_for(REWOUND, 0, {1}, number=2)
    assert one.has_rewound()
    assert zero._rewindable.published == one._rewindable.published == 1


def settle(*participants):
    for _ in range(10):
        for one in participants:
            one.poll()


def test_a_rank_goes_on_to_the_promised_boundary_and_waits_there():
    zero, one = pair()
    assert zero.begin(0) is None
    zero.request_interval()
    zero.poll()  # opened, and promised boundary 1
    assert try_begin(zero, 1) is False
    assert one.begin(0) is None
    assert one.begin(1) is None  # has not heard of the round
    settle(zero, one)
    assert try_begin(zero, 1) is True
    expected = order_for(INTERVAL, 2)
    assert try_begin(zero, 2) == try_begin(one, 2) == expected


def test_an_interval_save_is_off_when_a_rank_has_no_free_slot():
    zero, one = pair()
    one._can_save = lambda: False
    zero.request_interval()
    settle(zero, one)
    assert try_begin(zero, 0) is True
    assert try_begin(one, 0) is True


def test_an_interval_round_is_off_when_a_rank_does_not_answer():
    now = [0.0]
    zero, _ = pair(now=now)
    zero.request_interval()
    settle(zero)
    assert try_begin(zero, 0) is False
    now[0] += presiding.INTERVAL_GUARD_SECONDS + 0.1
    settle(zero)
    assert try_begin(zero, 0) is True


def test_a_drain_cuts_a_waiting_interval_round_short():
    zero, one, two = pair(num_ranks=3)
    zero.request_interval()
    settle(zero, one)
    one.request_drain(guard=100.0, notice=True)
    settle(one, zero)
    assert json.loads(zero.store.get("decision/1")) == {"outcome": "abandon"}
    settle(zero, one, two)
    assert try_begin(zero, 0) == try_begin(two, 0) == order_for(DRAIN, 0, {1}, number=2, num_ranks=3)


@pytest.mark.parametrize(
    ("kind", "seconds", "steps_ahead"),
    [
        (DRAIN, 2.0, 0),
        (DRAIN, 0.0001, 0),
        (INTERVAL, 2.0, 1),
        (INTERVAL, 0.0001, step_seconds.MAX_LOOKAHEAD_STEPS),
    ],
)
def test_a_drain_comes_at_the_next_boundary_and_an_interval_save_a_moment_later(kind, seconds, steps_ahead):
    now = [0.0]
    ranks = pair(now=now)
    for step in range(100):
        for rank in ranks:
            assert rank.begin(step) is None
        now[0] += seconds
        settle(*ranks)
    if kind == DRAIN:
        ranks[0].request_drain(guard=now[0] + 100.0, notice=False)
    else:
        ranks[0].request_interval()
    settle(*ranks)
    assert ranks[0]._order == ranks[1]._order == order_for(kind, 100 + steps_ahead)


def test_a_notice_in_a_round_of_another_rank_brings_the_guard_nearer():
    zero, one = pair()
    zero.request_drain(guard=100.0, notice=True)
    settle(zero, one)
    assert one.guard == 100.0
    one.request_drain(guard=5.0, notice=True)
    assert one.guard == 5.0


def test_a_drain_goes_before_an_interval_save_that_was_asked_for_first():
    zero, one = pair()
    zero.request_interval()
    zero.request_drain(guard=100.0, notice=False)
    settle(zero, one)
    assert json.loads(zero.store.get("round/1"))["kind"] == DRAIN
    assert try_begin(zero, 0) == try_begin(one, 0) == order_for(DRAIN, 0)


def test_without_a_decision_by_the_guard_all_leave_without_a_save():
    now = [0.0]
    zero, one = pair(now=now)
    zero.request_drain(guard=5.0, notice=True)
    settle(zero)
    assert try_begin(zero, 0) is False
    now[0] = 5.1
    settle(zero, one)
    assert try_begin(zero, 0) == try_begin(one, 0) == SaveOrder(DRAIN, None)


def test_a_rank_calls_the_round_off_when_rank_0_does_not():
    now = [0.0]
    zero, one = pair(now=now)
    zero.request_drain(guard=5.0, notice=True)
    zero.poll()
    one.poll()
    assert try_begin(one, 0) is False
    now[0] = 6.5
    one.poll()
    one.poll()
    assert try_begin(one, 0) == SaveOrder(DRAIN, None)


def test_the_others_leave_it_to_rank_0_for_a_moment_to_call_the_round_off():
    now = [0.0]
    zero, one = pair(now=now)
    zero.request_drain(guard=5.0, notice=True)
    zero.poll()
    one.poll()
    now[0] = 5.9
    settle(one)
    assert not zero.store.check(["decision/1"])
    assert try_begin(one, 0) is False


def test_a_rank_with_less_time_calls_the_round_off_by_its_own_guard():
    now = [0.0]
    zero, one = pair(now=now)
    zero.request_drain(guard=100.0, notice=True)
    one.request_drain(guard=5.0, notice=True)
    zero.poll()
    one.poll()
    now[0] = 6.5
    settle(one)
    assert try_begin(one, 0) == SaveOrder(DRAIN, None)
    settle(zero)
    assert try_begin(zero, 0) == SaveOrder(DRAIN, None)


def test_another_machines_guard_travels_as_the_seconds_that_are_left():
    store = HashStore()
    zero = Rounds(store, rank=0, world_size=2, start=0, clock=lambda: 1000.0)
    one = Rounds(store, rank=1, world_size=2, start=0, clock=lambda: 5.0)
    one.request_drain(guard=12.0, notice=True)
    one.poll()
    zero.poll()
    assert json.loads(store.get("round/1"))["remaining"] == 7.0
    settle(one)
    assert zero.guard == 1007.0
    assert one.guard == 12.0


class BrokenStore(HashStore):
    """A store whose host has gone."""

    broken = False

    def check(self, keys, /):
        if self.broken:
            raise RuntimeError("Connection reset by peer")
        return super().check(keys)


def test_when_the_store_is_gone_the_training_goes_on_and_says_that_nothing_is_saved(caplog):
    store = BrokenStore()
    zero, one = pair(store)
    zero.request_interval()
    settle(zero)
    store.broken = True
    settle(zero, one)
    assert zero.is_lost
    assert caplog.messages == [
        f"rank {rank} cannot agree on a save with the other ranks until the training starts again: "
        "Connection reset by peer"
        for rank in (0, 1)
    ]
    assert try_begin(zero, 0) is True
    assert try_begin(one, 0) is True


def test_a_rank_that_has_said_that_it_finished_needs_the_store_no_more():
    store = BrokenStore()
    zero, one = pair(store)
    one.finish()
    settle(one)
    assert store.check(["finished/1"])
    store.broken = True
    settle(one, zero)
    assert not one.is_lost
    assert zero.is_lost


def test_when_the_store_is_gone_a_drain_leaves_without_a_save():
    store = BrokenStore()
    _, one = pair(store)
    store.broken = True
    settle(one)
    one.request_drain(guard=100.0, notice=True)
    settle(one)
    assert try_begin(one, 0) == SaveOrder(DRAIN, None)


def test_a_waiting_main_thread_is_woken_by_the_decision(monkeypatch, wait_until):
    monkeypatch.setattr(rounds, "_WAIT_SECONDS", 1000.0)
    zero, one = pair()
    zero.request_drain(guard=1e9, notice=False)
    settle(zero)
    found = []
    waiting = threading.Thread(target=lambda: found.append(zero.begin(0)))
    waiting.start()
    wait_until(lambda: zero._changed._waiters)
    settle(one, zero, one)
    waiting.join(10)
    assert found == [order_for(DRAIN, 0)]


def waits_of(participant, now, *, meanwhile=lambda waited: None):
    """Let its main thread wait on the virtual clock; ``meanwhile`` happens during each wait."""
    begun = now[0]

    def wait(timeout):
        assert now[0] - begun < 3600, "it waits for ever"
        now[0] += timeout
        participant._lock.release()
        try:
            meanwhile(now[0] - begun)
        finally:
            participant._lock.acquire()

    participant._changed.wait = wait


def test_a_main_thread_waits_for_a_drains_decision_until_its_guard():
    now = [0.0]
    zero, one = pair(now=now)
    zero.request_drain(guard=120.0, notice=True)
    settle(zero)

    def answer_at_the_last_moment(waited):
        if waited >= 119.0:
            settle(one, zero)

    waits_of(zero, now, meanwhile=answer_at_the_last_moment)
    order = zero.begin(0)
    assert order == replace(order_for(DRAIN, 0, {0}), handover_bytes=limit_bytes(1.0))
    assert now[0] == 119.0


def test_a_process_that_stood_still_past_the_silence_still_hears_the_decision():
    now = [0.0]
    zero, one = pair(now=now)
    zero.request_interval()
    settle(zero, one)
    zero._order, zero._state = None, "promised"  # decided, and its background thread gets no turn

    def stand_still_then_hear(waited):
        if waited == 0.5:
            now[0] += 10 * rounds.SILENCE_SECONDS
        else:
            settle(zero)

    waits_of(zero, now, meanwhile=stand_still_then_hear)
    assert zero.begin(0) == order_for(INTERVAL, 0)


def test_a_main_thread_that_hears_nothing_takes_the_store_for_lost():
    now = [0.0]
    zero, _ = pair(now=now)
    zero.request_interval()
    settle(zero)
    waits_of(zero, now)  # the background thread hangs in the store
    assert zero.begin(0) is None
    assert zero.is_lost
    assert rounds.SILENCE_SECONDS <= now[0] < rounds.SILENCE_SECONDS + 2


# --- with threads -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_real_threads_agree(seed):
    """Four main threads meet at a barrier each step, as a collective would make them."""
    num_ranks, total = 4, 400
    chance = random.Random(seed)
    store, barrier = HashStore(), threading.Barrier(num_ranks)
    stopped = threading.Event()
    world = [
        Rounds(store, rank=rank, world_size=num_ranks, start=0, clock=time.monotonic)
        for rank in range(num_ranks)
    ]
    saved = [[] for _ in world]
    drain_at = chance.randrange(total)

    def background(rank):
        while not stopped.is_set():
            if rank == 0 and not stopped.is_set():
                world[0].request_interval()
            world[rank].poll()
            world[rank].wait(0.0005)

    def main(rank):
        for step in range(total):
            while (order := world[rank].begin(step)) is not None:
                assert order.step == step
                saved[rank].append(order)
                if order.kind == DRAIN:
                    return
                world[rank].served()
            if step == drain_at and rank == num_ranks - 1:
                world[rank].request_drain(guard=1e12, notice=True)
            barrier.wait(30)
        world[rank].finish()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=background, args=(rank,)) for rank in range(num_ranks)]
        mains = [threading.Thread(target=main, args=(rank,)) for rank in range(num_ranks)]
        for thread in threads + mains:
            thread.start()
        for thread in mains:
            thread.join(60)
        assert not any(thread.is_alive() for thread in mains)
    finally:
        stopped.set()
        for thread in threads:
            thread.join(10)
        sys.setswitchinterval(before)
    assert saved[1:] == saved[:-1]
    assert len(saved[0]) > 1
