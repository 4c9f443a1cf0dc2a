"""What goes from one rank to another through the store."""

import os

import pytest
import torch.distributed as dist

from cloudspot.train.errors import SessionError
from cloudspot.train.rounds import save_order
from cloudspot.train.rounds.handover import HandOver, pack, unpack
from cloudspot.train.rounds.save_order import DRAIN, INTERVAL, SaveOrder, limit_bytes, make_order, read_order

ORDER = SaveOrder(DRAIN, 7, 3)


@pytest.fixture
def connect():
    """``connect()``: another connection to the store of a process group."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return lambda: dist.PrefixStore("cloudspot", server.clone())


@pytest.mark.full
def test_more_than_the_store_takes_at_once_is_handed_over_and_acknowledged(connect):
    lines = pack({"rank_states": {"1": {"random": 0.5}}}, [os.urandom(20 << 20), b"", b"abc"])
    giving = HandOver(ORDER, 1, gives=lines, awaits=[0])
    taking = HandOver(ORDER, 0, takes=[1])
    mine, others = connect(), connect()
    assert not taking.advance(others)
    assert not giving.advance(mine)
    assert taking.advance(others)
    assert taking.taken == {1: lines}
    assert not giving.advance(mine)
    others.set("left/0", "1")  # it has left its loop early, which says nothing
    assert not giving.advance(mine)
    others.set("parted/0", "1")
    assert giving.advance(mine)
    state, (large, empty, small) = unpack(taking.taken[1], [20 << 20, 0, 3])
    assert (state, len(large), bytes(empty), bytes(small)) == (
        {"rank_states": {"1": {"random": 0.5}}}, 20 << 20, b"", b"abc",
    )  # fmt: skip


@pytest.mark.parametrize("other", [SaveOrder(DRAIN, 7, 4), SaveOrder(DRAIN, 8, 3)])
def test_the_hand_overs_of_two_rounds_or_boundaries_are_told_apart(connect, other):
    """A rewind that was called off and the drain after it have the same number."""
    HandOver(ORDER, 1, gives=b"old", awaits=[0]).advance(connect())
    assert not HandOver(other, 0, takes=[1]).advance(connect())


def test_a_rank_that_neither_gives_nor_takes_is_done_at_once():
    assert HandOver(ORDER, 0).is_done


@pytest.mark.parametrize("sizes", [[2], [4], [3, 1]])
def test_bytes_of_another_length_than_planned_are_refused(sizes):
    with pytest.raises(SessionError, match="handed over"):
        unpack(pack({}, [b"abc"]), sizes)


def test_the_less_time_is_left_the_less_is_handed_over():
    assert limit_bytes(float("inf")) == limit_bytes(3600.0) == save_order.MAX_BYTES
    assert limit_bytes(1.0) == save_order.BYTES_PER_SECOND // 2
    assert limit_bytes(-1.0) == 0


def ranks(*notices, procs=2):
    return [{"notice": told, "node": rank // procs, "room": 10 + rank} for rank, told in enumerate(notices)]


def test_all_ranks_of_a_machine_are_avoided_once_one_has_heard_of_its_notice():
    """They hear one after the other: the drain needed the part of the one that had not."""
    order = make_order(DRAIN, 7, 3, ranks(False, False, True, False), seconds=1.0)
    assert (order.avoid, order.rooms, order.number) == ({2, 3}, (10, 11, 12, 13), 3)
    assert read_order(order.to_json()) == order


def test_an_interval_save_is_spread_over_all():
    assert make_order(INTERVAL, 7, 3, ranks(True, True, False, False), seconds=1.0).avoid == frozenset()
