"""How two ranks hand over what each alone has, by real connections."""

import socket
import threading

import pytest
import torch
from torch.distributed import HashStore

from cloudspot.train.distributed import World
from cloudspot.train.rounds import keeper
from cloudspot.train.sessions import own_states
from cloudspot.train.sessions.own_states import OwnStates
from cloudspot.train.state import randomness
from cloudspot.train.state.boundary_marks import BoundaryMarks, Description, Mark


class Rank:
    """A rank that makes boundaries of its own."""

    def __init__(self, rank, store):
        torch.manual_seed(1)
        self.model = torch.nn.BatchNorm1d(3)
        self.marks = BoundaryMarks({"model": self.model})
        self.problems = []
        self.states = OwnStates(
            "secret@127.0.0.1", store, self.marks, world=World(rank, 2, 0, 1), report=self.problems.append
        )

    def mark(self, number, **more):
        """Mark a boundary, as it stands now."""
        described = Description({}, {"random": randomness.capture()}, **more)
        self.marks.mark(number, number + 1, lambda: described, is_rare=True)
        return self.marks.newest

    def close(self):
        self.states.close()
        self.marks.close()


@pytest.fixture
def ranks(monkeypatch):
    store, made = HashStore(), []
    monkeypatch.setattr(own_states, "open_store", lambda _world: (store, None))
    made += [Rank(0, store), Rank(1, store)]
    yield made
    for each in made:
        each.close()


def until(condition):
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.005)
    pytest.fail("it did not come")


def test_each_rank_keeps_what_the_other_alone_has(ranks):
    zero, one = ranks
    zero.model(torch.randn(4, 3))
    mine, theirs = one.mark(5), zero.mark(5)
    zero.states.offer(theirs, draws=True)
    one.states.offer(mine, draws=True)
    until(lambda: one.states.at(mine) and zero.states.at(theirs))
    (kept,) = one.states.at(mine).items()
    assert kept[0] == 0
    assert kept[1].rank_state == theirs.description.flatten_rank_state()
    buffers = kept[1].mark.models["model"].buffers
    assert all(map(torch.equal, buffers, theirs.models["model"].buffers))
    assert not all(map(torch.equal, buffers, mine.models["model"].buffers))
    assert zero.states.at(theirs)[1].mark == theirs  # only rank 0's buffers count
    assert one.states.at(one.mark(6)) == {}


@pytest.mark.parametrize(("rank", "is_given"), [(0, True), (1, False)])
def test_a_rank_that_draws_nothing_and_has_no_buffers_that_count_gives_nothing(ranks, rank, is_given):
    ranks[rank].states.offer(ranks[rank].mark(5), draws=False)
    assert (ranks[rank].states._giver._thread is not None) is is_given


def test_only_what_has_changed_is_sent(ranks, monkeypatch):
    sent = []

    def message(boundary, step, pieces, changed):
        sent.append((len(pieces), sorted(changed)))
        return keeper.message(boundary, step, pieces, changed)

    monkeypatch.setattr(own_states, "message", message)
    one, zero = ranks[1], ranks[0]
    for number in range(3):
        one.states.offer(one.mark(number), draws=True)
        until(lambda number=number: zero.states.at(zero.mark(number)))
        if number == 0:
            torch.rand(1)
    assert [changed for _, changed in sent[1:]] == [[("state", "random", "torch")], []]
    assert sent[0] == (sent[2][0], sorted(sent[0][1]))
    assert zero.states.at(zero.mark(2))[1].rank_state == one.marks.newest.description.flatten_rank_state()


def test_a_rank_for_which_it_costs_too_much_gives_nothing_more_and_says_so(ranks, monkeypatch):
    monkeypatch.setattr(own_states, "NUM_COUNTED", 2)
    monkeypatch.setattr(own_states, "SHARE", 0.0)
    one = ranks[1]
    for number in range(4):
        one.states.offer(one.mark(number), draws=True)
        until(lambda: one.states._giver._offered is None or one.problems)
    until(lambda: one.problems)
    assert "% of a step" in one.problems[0]
    one.states.offer(one.mark(9), draws=True)
    assert one.states._giver._offered is None


def test_the_first_boundaries_and_cheap_ones_do_not_count(ranks, monkeypatch):
    monkeypatch.setattr(own_states, "NUM_COUNTED", 2)
    monkeypatch.setattr(own_states, "SHARE", 1e9)
    one, zero = ranks[1], ranks[0]
    for number in range(6):
        one.states.offer(one.mark(number), draws=True)
        until(lambda number=number: zero.states.at(zero.mark(number)))
    assert one.problems == []


def test_what_cannot_be_given_is_said_once(ranks):
    one = ranks[1]
    for number in range(2):
        one.states.offer(one.mark(number, loader_state=dict), draws=True)
        until(lambda: one.problems)
    assert one.problems == ["its loader's position is read only when the state is saved"]


def test_a_process_that_may_start_no_thread_trains_on_and_says_that_it_gives_nothing(ranks, monkeypatch):
    def start(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    one = ranks[1]
    for number in range(2):
        one.states.offer(one.mark(number), draws=True)
    assert one.problems == ["can't start new thread"]


def test_a_boundary_to_which_the_device_has_not_come_is_not_given_yet(ranks, monkeypatch):
    zero, one = ranks
    reached = threading.Event()
    monkeypatch.setattr(Mark, "is_reached", property(lambda mark: mark.number != 5 or reached.is_set()))
    late = one.mark(5)
    one.states.offer(late, draws=True)
    threading.Event().wait(0.05)
    assert zero.states.at(zero.mark(5)) == {}
    reached.set()
    until(lambda: zero.states.at(zero.mark(5)))


def test_a_keeper_that_has_gone_is_said_once(ranks):
    zero, one = ranks
    one.states.offer(one.mark(0), draws=True)
    until(lambda: zero.states.at(zero.mark(0)))
    zero.states.close()
    for number in range(1, 200):
        one.states.offer(one.mark(number), draws=True)
        until(lambda: one.states._giver._offered is None or one.problems)
        if one.problems:
            break
    assert len(one.problems) == 1
    assert one.problems[0].startswith("no connection to rank 0: ")


def test_a_keeper_that_does_not_read_is_dropped(ranks, monkeypatch):
    """Nothing else would wait for it; but the memory of the connection is not endless."""
    giver = ranks[1].states._giver
    mine, theirs = socket.socketpair()
    mine.settimeout(0.05)
    monkeypatch.setattr(own_states.own_pieces, "encode", lambda *_: bytes(4 << 20))
    monkeypatch.setattr(giver, "_next", lambda: iter([ranks[1].mark(0)]))
    with mine, theirs, pytest.raises(TimeoutError):
        giver._give(mine)


def test_an_address_that_is_not_this_machines_is_no_place_to_listen(ranks):
    with pytest.raises(OSError, match="assign"):
        OwnStates("secret@203.0.113.7", HashStore(), ranks[0].marks, world=World(0, 2, 0, 1), report=print)


def test_a_keeper_that_takes_it_from_another_generation_is_none(ranks):
    one = ranks[1]
    one.states._giver._secret = "that of the generation before"
    one.states.offer(one.mark(0), draws=True)
    for number in range(1, 200):
        one.states.offer(one.mark(number), draws=True)
        until(lambda: one.states._giver._offered is None or one.problems)
        if one.problems:
            break
    assert one.problems[0].startswith("no connection to rank 0: ")
    assert not ranks[0].states._keeper._given


def test_a_keeper_that_never_says_where_it_listens_is_given_up(ranks, monkeypatch):
    monkeypatch.setattr(own_states, "CONNECT_SECONDS", 0.05)
    monkeypatch.setattr(own_states, "open_store", lambda _world: (HashStore(), None))
    ranks[1].states.offer(ranks[1].mark(0), draws=True)
    until(lambda: ranks[1].problems)
    assert ranks[1].problems == ["no connection to rank 0: the keeper has not published its address"]
