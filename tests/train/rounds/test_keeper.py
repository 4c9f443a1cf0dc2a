"""What a keeper takes from its giver, and what it refuses."""

import json
import socket
import threading

import pytest

from cloudspot.train.rounds import keeper
from cloudspot.train.rounds.keeper import (
    PROOF_BYTES,
    Keeper,
    keeper_of,
    message,
    proof_of,
    read_exactly,
)

ONE, TWO = ("state", "random"), ("buffers", "model", "0")


@pytest.fixture
def kept():
    made = Keeper("127.0.0.1", secret="the secret", giver=3)
    yield made
    made.close()


@pytest.fixture
def connect(kept):
    """``connect()``: a connection on which a giver has proved who it is."""
    opened = []

    def connect_one(secret="the secret", rank=3):
        address, _, port = kept.endpoint.rpartition(":")
        opened.append(socket.create_connection((address, int(port)), timeout=10))
        with opened[-1].makefile("rb") as source:
            opened[-1].sendall(proof_of(secret, read_exactly(source, PROOF_BYTES), rank))
        return opened[-1]

    yield connect_one
    for each in opened:
        each.close()


def await_given(kept, boundary):
    for _ in range(2000):
        found = kept.given_at(boundary, boundary + 1)
        if found is not None:
            return found
        threading.Event().wait(0.005)
    return pytest.fail(f"nothing came of boundary {boundary}")


def is_dropped(connection):
    return connection.recv(1) == b""


def test_what_was_given_is_kept_at_the_last_two_boundaries(kept, connect):
    giver = connect()
    giver.sendall(message(5, 6, (ONE, TWO), {ONE: b"one", TWO: b"two"}))
    giver.sendall(message(6, 7, (ONE, TWO), {ONE: b"another"}))
    giver.sendall(message(7, 8, (ONE,), {}))
    assert await_given(kept, 7).pieces == {ONE: b"another"}
    assert kept.given_at(6, 7).pieces == {ONE: b"another", TWO: b"two"}
    assert kept.given_at(5, 6) is None
    assert kept.given_at(7, 7) is None  # of another step
    giver.close()
    assert kept.given_at(6, 7) is not None  # that is what it is for


@pytest.mark.parametrize("stranger", [{"secret": "another"}, {"rank": 2}])
def test_who_does_not_prove_to_be_that_rank_is_not_heard(kept, connect, stranger):
    connection = connect(**stranger)
    connection.sendall(message(5, 6, (ONE,), {ONE: b"one"}))
    connect().sendall(message(7, 8, (ONE,), {ONE: b"mine"}))
    await_given(kept, 7)
    assert kept.given_at(5, 6) is None


def test_who_says_nothing_does_not_keep_the_giver_from_being_heard(kept, connect, monkeypatch):
    monkeypatch.setattr(keeper, "WAIT_SECONDS", 0.05)
    address, _, port = kept.endpoint.rpartition(":")
    with socket.create_connection((address, int(port)), timeout=10):
        connect().sendall(message(5, 6, (ONE,), {ONE: b"one"}))
        await_given(kept, 5)


def raw(header, rest=b""):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "big") + text + rest


@pytest.mark.parametrize(
    "bad",
    [
        (1 << 40).to_bytes(8, "big"),
        (2).to_bytes(8, "big") + b"no",
        raw([]),
        raw({"boundary": 5, "step": 6}),
        raw({"boundary": 5, "step": 6, "pieces": [[["a"], 1 << 40]]}),
        raw({"boundary": 5, "step": 6, "pieces": [[["a"], -1]]}),
        raw({"boundary": 5, "step": 6, "pieces": [[["a"], "1"]]}),
        raw({"boundary": 5, "step": 6, "pieces": [[7, 1]]}),
        raw({"boundary": 5, "step": 6, "pieces": [[["never given"], None]]}),
    ],
)
def test_what_no_giver_would_send_ends_its_connection_alone(kept, connect, bad):
    first = connect()
    first.sendall(bad)
    assert is_dropped(first)
    connect().sendall(message(5, 6, (ONE,), {ONE: b"one"}))
    assert await_given(kept, 5).pieces == {ONE: b"one"}


def test_half_a_message_is_none(kept, connect):
    giver = connect()
    giver.sendall(message(5, 6, (ONE,), {ONE: b"one"})[:-1])
    giver.close()
    connect().sendall(message(7, 8, (ONE,), {ONE: b"one"}))
    await_given(kept, 7)
    assert kept.given_at(5, 6) is None


def test_more_than_a_keeper_takes_is_not_sent(monkeypatch):
    monkeypatch.setattr(keeper, "MAX_BYTES", 7)
    assert message(5, 6, (ONE,), {ONE: b"1234567"})
    with pytest.raises(ValueError, match=r"the changed part of its own state has \d+ bytes, more than"):
        message(5, 6, (ONE,), {ONE: b"12345678"})


@pytest.mark.parametrize(
    ("sizes", "keepers"),
    [
        ({"world_size": 4, "local_world_size": 1}, [1, 2, 3, 0]),
        ({"world_size": 6, "local_world_size": 2}, [2, 3, 4, 5, 0, 1]),
        ({"world_size": 3, "local_world_size": 3}, [1, 2, 0]),
    ],
)
def test_a_keeper_is_on_another_machine_if_there_is_one(sizes, keepers):
    assert [keeper_of(rank, **sizes) for rank in range(sizes["world_size"])] == keepers
