"""What a node hears of the others' part in a rescue."""

from unittest import mock

import pytest
from support.records.made_records import START, Records
from support.stores.memorystore import InMemoryStore

from cloudspot.agent.membership import rescue_votes
from cloudspot.agent.membership.peer_heartbeats import PeerHeartbeats
from cloudspot.agent.membership.rescue_votes import RescueVotes
from cloudspot.agent.orders import Orders
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import (
    HeldState,
    RankLikeness,
    RescueOrder,
    SaveId,
    Seat,
    StopRequest,
    Survivors,
)


def made_votes(store, *, own=None, beats=None, gone=()):
    """Return what node 0 of two knows, with one rank each."""
    context = mock.Mock(seat=Seat(1, 0), store=store, job_id="x", retry_until=lambda call: call())
    context.job.spec.procs_per_node = 1
    context.status = mock.Mock(survivors=own, likeness=())
    peers = mock.Mock(beats=lambda: beats or {}, is_gone=lambda seat: seat in gone)
    return RescueVotes(context, peers, Records().generation(1, ranks=(0, 1)))


def order_of(ranks, *, step):
    return RescueOrder(
        generation=1, attempt=1, boundary=step, step=step, ranks=ranks, cause="lost", is_exact=False, at=START,
        writer="a" * 16,
    )  # fmt: skip


def reported(rank, boundary, *, holders=()):
    held = HeldState(
        rank=rank, boundary=boundary, before=boundary - 1, step=boundary, digest="d", draws=False, differs=False,
        holders=holders, needs_all=False,
    )  # fmt: skip
    return Survivors(generation=1, attempt=1, held=(held,))


@pytest.mark.parametrize(("number", "state"), [(1, "hopeless"), (900_001, "open")])
def test_what_a_gone_saver_has_brought_counts_only_for_the_rescue_s_own_save(monkeypatch, number, state):
    """It may be gone after its part of an interval save of the same step, which is never whole."""
    monkeypatch.setattr(rescue_votes, "commit_if_whole", lambda *_: False)
    store = InMemoryStore("memory://x")
    store.put(keys.part("x", SaveId(1, 5, number), 1), b"")
    votes = made_votes(store, gone={Seat(1, 1)})
    assert votes.state_of(order_of((0, 1), step=5)) == state


@pytest.mark.parametrize(
    ("boundary", "holders", "is_newer"),
    [
        pytest.param(3, (), True, id="it was not heard when the order was written"),
        pytest.param(2, (), False, id="it holds the same"),
        pytest.param(3, ((0,),), False, id="it lacks a part that only the other holds"),
    ],
)
def test_a_newer_boundary_counts_if_it_can_be_saved(boundary, holders, is_newer):
    beat = mock.Mock(survivors=reported(1, boundary, holders=holders))
    votes = made_votes(None, own=reported(0, 2), beats={Seat(1, 1): beat})
    assert votes.hold_newer(order_of((0,), step=2)) == is_newer


def test_a_standing_order_to_leave_does_not_make_a_rescue_ask_the_store_without_a_pause():
    """It goes on all the same, and each look is a listing."""
    orders = Orders()
    context = mock.Mock(seat=Seat(1, 0), orders=orders)
    orders.give(stop=mock.Mock(spec=StopRequest))
    waited = []
    orders._changed.wait = waited.append
    votes = RescueVotes(context, PeerHeartbeats(context), Records().generation(1, ranks=(0, 1)))
    votes.pause()
    assert len(waited) == 1


def test_what_lost_members_have_told_of_their_ranks_in_this_generation_counts():
    told = RankLikeness(rank=1, draws=True, digests=((2, "a"),))
    context = mock.Mock(seat=Seat(1, 0))
    beats = {Seat(1, 1): mock.Mock(generation=1, likeness=(told,)), Seat(1, 2): None}
    peers = mock.Mock(beats=lambda: beats)
    votes = RescueVotes(context, peers, Records().generation(1, ranks=(0, 1, 2)))
    assert [*votes._likeness()] == [told]
    beats[Seat(1, 1)].generation = 0  # its training has not begun
    assert [*votes._likeness()] == []
