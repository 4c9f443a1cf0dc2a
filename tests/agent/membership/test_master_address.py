"""The first node's address: announced, or by its slot; whatever is missing holds nobody up."""

from types import SimpleNamespace

import pytest

from cloudspot.agent.leaving import LeavingError
from cloudspot.agent.membership.master_address import master_address
from cloudspot.errors import TransientError
from cloudspot.jobstore.records import Member


def find(life, first):
    return master_address(life.context, first, gathered_at=1000.0)


FIRST = Member(launch=1, rank=0, instance_id="m-1", address="10.0.0.1")


@pytest.fixture
def announced(bench, monkeypatch):
    """What the provider says at each look, the last one for good; with how long it is waited for."""

    def say(*answers, seconds=0.0):
        looks = []

        def look():
            looks.append(answers[min(len(looks), len(answers) - 1)])
            if isinstance(looks[-1], Exception):
                raise looks[-1]
            return looks[-1]

        monkeypatch.setattr(bench.provider, "announced", look)
        monkeypatch.setattr(type(bench.provider), "announce_seconds", seconds)
        return looks

    return say


@pytest.fixture
def life(bench, monkeypatch):
    """The second of two nodes; its clock goes on only while it waits."""
    life = bench.life(nodes=2, rank=1)
    clock = [1000.0]
    monkeypatch.setattr(
        "cloudspot.agent.membership.master_address.time", SimpleNamespace(monotonic=lambda: clock[0])
    )

    def wait(seconds):
        clock[0] += seconds

    monkeypatch.setattr(life.context.orders, "wait", wait)
    return life


def test_what_was_announced_is_taken(life, announced, caplog):
    caplog.set_level("INFO", "cloudspot")
    announced({"MASTER_ADDR": "10.0.0.1"})
    assert find(life, FIRST) == "10.0.0.1"
    assert caplog.messages == ["MASTER_ADDR is 10.0.0.1, as announced"]


def test_what_comes_late_is_waited_for(life, announced):
    looks = announced({}, TransientError("not yet"), {"MASTER_ADDR": "10.0.0.1"}, seconds=5.0)
    assert find(life, Member(launch=1, rank=0, instance_id="m-1", address="")) == "10.0.0.1"
    assert len(looks) == 3


def test_without_an_announcement_the_slot_is_taken_after_a_while_counted_from_when_all_were_there(
    life, announced, caplog
):
    caplog.set_level("INFO", "cloudspot")
    looks = announced({}, seconds=1.0)
    assert find(life, FIRST) == "10.0.0.1"
    assert len(looks) == 5
    assert caplog.messages == ["MASTER_ADDR is 10.0.0.1, by the first node's slot: it was not announced here"]
    assert find(life, FIRST) == "10.0.0.1"
    assert len(looks) == 6


def test_where_both_differ_the_slot_is_right_and_it_is_said(life, announced, caplog):
    announced({"MASTER_ADDR": "10.0.0.9"})
    assert find(life, FIRST) == "10.0.0.1"
    assert caplog.messages == [
        "MASTER_ADDR was announced as 10.0.0.9, but the first node's slot says 10.0.0.1, which is taken"
    ]


def test_a_single_node_and_a_generation_without_the_first_node_ask_nobody(bench, life, announced):
    looks = announced({"MASTER_ADDR": "10.0.0.9"}, seconds=5.0)
    assert find(life, Member(launch=1, rank=1, instance_id="m-2", address="10.0.0.2")) == "10.0.0.2"
    assert find(bench.life(nodes=1), FIRST) == "10.0.0.1"
    assert looks == []


def test_an_order_ends_the_wait(life, announced):
    announced({}, seconds=60.0)
    life.context.orders.give(superseded="launch 2 runs the job")
    with pytest.raises(LeavingError):
        find(life, FIRST)
