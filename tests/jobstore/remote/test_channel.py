"""Frames both ways over a store that loses answers, and that others write to."""

import itertools
import random
import threading
import time

import pytest
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import TransientError
from cloudspot.jobstore.remote import channel as module
from cloudspot.jobstore.remote.channel import Channel, ChannelEnded, Requests
from cloudspot.jobstore.remote.relay import Frame, Kind


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "FIRST_LOOK_SECONDS", 0.005)
    monkeypatch.setattr(module, "_GATHER_SECONDS", 0.0)
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.01)


@pytest.fixture
def ends():
    """``ends(store)``: both ends of a channel, which end with the test."""
    made = []

    def make(store, *, secrets=(b"one", b"one"), requests=(None, None)):
        keys = [lambda number: f"to-node/{number:08d}", lambda number: f"from-node/{number:08d}"]
        person = Channel(store, sends=keys[0], takes=keys[1], secret=secrets[0], requests=requests[0])
        node = Channel(store, sends=keys[1], takes=keys[0], secret=secrets[1], requests=requests[1])
        made.extend((person, node))
        person.start()
        node.start()
        return person, node

    yield make
    for each in made:
        each.end("the test is over")


def take_all(end, count):
    found = []
    while len(found) < count:
        frame = end.take(5.0)
        assert frame is not None, found
        found.append(frame)
    return found


def test_frames_come_in_order_both_ways_and_once(ends):
    person, node = ends(InMemoryStore())
    sent = [Frame(Kind.INPUT, str(number).encode()) for number in range(200)]
    for frame in sent:
        person.send(frame)
        node.send(Frame(Kind.OUTPUT, frame.data))
    assert take_all(node, 200) == sent
    assert [frame.data for frame in take_all(person, 200)] == [frame.data for frame in sent]
    assert node.take(0.05) is None


def test_a_store_that_fails_and_loses_answers_loses_and_repeats_nothing(ends):
    person, node = ends(LosingStore(random.Random(5)))
    sent = [Frame(Kind.INPUT, str(number).encode()) for number in range(60)]
    for frame in sent:
        person.send(frame)
        time.sleep(0.001)
    assert take_all(node, 60) == sent


class LosingStore(InMemoryStore):
    """Fails before or after a put, and now and then at a get."""

    def __init__(self, rng):
        super().__init__()
        self._rng = rng

    def get(self, key):
        if self._rng.random() < 0.2:
            raise TransientError("it was not read")
        return super().get(key)

    def put(self, key, data, *, if_absent=False):
        chance = self._rng.random()
        if chance < 0.2:
            raise TransientError("it was not put")
        super().put(key, data, if_absent=if_absent)
        if chance > 0.8:
            raise TransientError("the answer was lost")


def test_as_much_is_on_its_way_at_most_as_may_be(ends, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_BYTES", 64 << 10)
    monkeypatch.setattr(module, "_ACKNOWLEDGED_BYTES", 16 << 10)
    monkeypatch.setattr(module, "MAX_PIECE_BYTES", 8 << 10)
    store = InMemoryStore()
    person, node = ends(store)
    frame, count = Frame(Kind.INPUT, b"x" * 4096), 100
    sender = threading.Thread(target=lambda: [person.send(frame) for _ in range(count)])
    sender.start()
    time.sleep(0.3)
    waiting = sum(meta.size for meta in store.list_objects("to-node/"))
    assert 48 << 10 < waiting < 128 << 10
    assert len(take_all(node, count)) == count
    sender.join(5)


@pytest.mark.parametrize(
    "how",
    {
        "of another command": "secret",
        "cut": lambda pieces: {0: pieces[0][:-1]},
        "a bit": lambda pieces: {0: bytes([pieces[0][0] ^ 1]) + pieces[0][1:]},
        "two swapped": lambda pieces: {0: pieces[1], 1: pieces[0]},
        "one twice": lambda pieces: {1: pieces[0]},
        "empty": lambda pieces: {0: b""},
    }.items(),
    ids=lambda how: how[0],
)
def test_a_piece_that_is_not_of_this_place_in_this_command_does_nothing(ends, how):
    source, change = InMemoryStore(), how[1]
    writer, _ = ends(source)
    for number in range(2):
        writer.send(Frame(Kind.INPUT, f"rm {number}".encode()))
        while writer._outgoing:
            time.sleep(0.005)
        time.sleep(0.02)
    pieces = [source.get(meta.key) for meta in source.list_objects("to-node/")]
    assert len(pieces) == 2
    put = {0: pieces[0], 1: pieces[1]} | (change(pieces) if callable(change) else {})
    store = InMemoryStore()
    for number, data in put.items():
        store.put(f"to-node/{number:08d}", data)
    secret = b"another" if change == "secret" else b"one"
    _, node = ends(store, secrets=(b"one", secret))
    taken = []
    with pytest.raises(ChannelEnded, match="is truncated or belongs to another command"):
        while True:
            taken += filter(None, [node.take(2.0)])
    assert [frame.data for frame in taken] in ([], [b"rm 0"])
    if how[0] != "one twice":
        assert not taken


def test_whoever_writes_in_our_place_is_not_outdone(ends):
    store = InMemoryStore()
    store.put("to-node/00000000", b"somebody else")
    person, _ = ends(store)
    person.send(Frame(Kind.INPUT, b"mine"))
    while person.ended is None:
        time.sleep(0.01)
    assert person.ended == "another writer has taken the key of the next piece"
    with pytest.raises(ChannelEnded):
        person.send(Frame(Kind.INPUT, b"more"))


def test_an_end_that_is_silent_is_taken_for_gone_and_one_with_nothing_to_say_is_not(ends, monkeypatch):
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(module, "ALIVE_SECONDS", 0.1)
    monkeypatch.setattr(module, "IDLE_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(module, "BUSY_LOOK_SECONDS", 0.05)
    person, node = ends(InMemoryStore())
    assert person.take(1.2) is None  # nothing has ended it
    node.end("killed")
    with pytest.raises(ChannelEnded, match="silent"):
        person.take(3.0)


def test_who_has_used_its_requests_ends(ends):
    person, _ = ends(InMemoryStore(), requests=(Requests(most=50), None))
    with pytest.raises(ChannelEnded, match="the limit of 50 requests to the store is reached"):
        for number in itertools.count():
            person.send(Frame(Kind.INPUT, str(number).encode()))
            time.sleep(0.005)
    assert 50 <= person.requests.num_reads + person.requests.num_writes <= 50 + module.LAST_REQUESTS


def test_who_has_used_its_requests_tells_the_other_end_at_once(ends):
    person, node = ends(InMemoryStore(), requests=(Requests(most=30), None))
    began = time.monotonic()
    while not node.is_left:
        assert time.monotonic() < began + 10, "the other end waits until it takes it for gone"
        time.sleep(0.01)
    assert [frame.kind for frame in take_all(node, 2)] == [Kind.MESSAGE, Kind.CLOSE]
    assert person.has_sent_close


def test_a_signal_overtakes_input_that_nobody_takes(ends, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_BYTES", 64 << 10)
    monkeypatch.setattr(module, "MAX_PIECE_BYTES", 16 << 10)
    person, node = ends(InMemoryStore())
    sender = threading.Thread(target=send_without_end, args=(person,), daemon=True)
    sender.start()
    while person._sent_bytes < 64 << 10:
        time.sleep(0.005)
    person.hurry(Frame(Kind.SIGNAL, b"INT"))
    assert node.take(5.0, urgent_only=True) == Frame(Kind.SIGNAL, b"INT")
    assert node.take(0.05, urgent_only=True) is None
    assert node.take(1.0).kind is Kind.INPUT


def test_pieces_become_as_small_as_the_way_to_the_store_is_slow(ends, monkeypatch):
    monkeypatch.setattr(module, "PUT_SECONDS", 0.05)
    slow = SlowStore(bytes_per_second=8 << 20)
    person, node = ends(slow)
    for _ in range(24):
        person.send(Frame(Kind.INPUT, b"x" * (250 << 10)))
    take_all(node, 24)
    assert max(slow.sizes[-4:]) <= 600 << 10  # one that took longer would be taken for silence
    monkeypatch.setattr(module, "PUT_SECONDS", 60.0)  # so that nothing is slow, whatever else runs here
    quick = SlowStore(bytes_per_second=1e12)
    person, node = ends(quick)
    taker = threading.Thread(target=take_all, args=(node, 60))
    taker.start()
    for _ in range(60):
        person.send(Frame(Kind.INPUT, b"x" * (250 << 10)))
    taker.join(20)
    assert max(quick.sizes) > 2 << 20


class SlowStore(InMemoryStore):
    """Takes as long for a put as its bytes take."""

    def __init__(self, *, bytes_per_second):
        super().__init__()
        self._rate = bytes_per_second
        self.sizes = []

    def put(self, key, data, *, if_absent=False):
        time.sleep(len(data) / self._rate)
        if key.startswith("to-node"):
            self.sizes.append(len(data))
        super().put(key, data, if_absent=if_absent)


def test_looks_become_rare_when_nothing_happens(ends, monkeypatch):
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.0)
    monkeypatch.setattr(module, "IDLE_LOOK_SECONDS", 0.5)
    person, node = ends(InMemoryStore())
    time.sleep(1.5)
    looked = person.requests.num_reads
    time.sleep(1.0)
    assert person.requests.num_reads - looked <= 4
    # What is sent wakes its sender, who expects an answer, at once.
    began = time.monotonic()
    person.send(Frame(Kind.INPUT, b"x"))
    assert node.take(2.0) is not None
    node.send(Frame(Kind.OUTPUT, b"y"))
    assert person.take(2.0) is not None
    assert time.monotonic() - began < 1.2


def test_what_is_left_is_put_before_the_end(ends):
    person, node = ends(InMemoryStore())
    for number in range(20):
        person.send(Frame(Kind.INPUT, str(number).encode()))
    assert person.finish(5.0)
    assert len(take_all(node, 20)) == 20


def test_an_end_leaves_at_once_though_the_other_takes_nothing(ends, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_BYTES", 8 << 10)
    monkeypatch.setattr(module, "MAX_PIECE_BYTES", 4 << 10)
    person, node = ends(InMemoryStore())
    stuck = threading.Thread(target=send_without_end, args=(person,))
    stuck.start()
    while person._outgoing_bytes < 4 << 10:
        time.sleep(0.005)
    person.hurry(Frame(Kind.SIGNAL, b"INT"))
    person.leave(Frame(Kind.CLOSE))
    assert person.finish(2.0)
    stuck.join(2.0)
    assert not stuck.is_alive()
    end = time.monotonic() + 2
    while not node.is_left and time.monotonic() < end:
        time.sleep(0.005)
    assert node.is_left


def send_without_end(end):
    with pytest.raises(ChannelEnded):
        while True:
            end.send(Frame(Kind.INPUT, b"x" * 2048))
