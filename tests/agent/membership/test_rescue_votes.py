"""What a node hears of the others' part in a rescue."""

from unittest import mock

from support.records.made_records import Records

from cloudspot.agent.membership.peer_heartbeats import PeerHeartbeats
from cloudspot.agent.membership.rescue_votes import RescueVotes
from cloudspot.agent.orders import Orders
from cloudspot.jobstore.layout.records import Seat, StopRequest


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
