"""What a node hears of the others' part in a rescue."""

from unittest import mock

from support.records.made_records import Records

from cloudspot.agent.membership.peer_heartbeats import PeerHeartbeats
from cloudspot.agent.membership.rescue_votes import RescueVotes
from cloudspot.agent.orders import Orders
from cloudspot.jobstore.layout.records import RankLikeness, Seat, StopRequest


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
