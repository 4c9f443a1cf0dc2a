"""What a node hears of the others' part in a rescue."""

from types import SimpleNamespace
from unittest import mock

import pytest
from support.records.made_records import Records

from cloudspot.agent.membership import rescue_votes
from cloudspot.agent.membership.peer_heartbeats import PeerHeartbeats
from cloudspot.agent.membership.rescue_votes import RescueVotes
from cloudspot.agent.orders import Orders
from cloudspot.jobstore.layout.records import RescueOrder, Seat, StopRequest, Survivors

OTHER = Seat(1, 1)


@pytest.fixture
def context():
    return mock.Mock(
        seat=Seat(1, 0),
        job=SimpleNamespace(spec=SimpleNamespace(procs_per_node=1)),
        retry_until=lambda act: act(),
    )


@pytest.mark.parametrize(("attempt", "found"), [(None, "open"), (1, "open"), (2, "hopeless")])
def test_a_saver_that_goes_on_to_the_next_attempt_has_given_up_this_one(context, monkeypatch, attempt, found):
    """It lives, so that waiting for its part would last as long as the save may take."""
    generation = Records().generation(1, ranks=(0, 1))
    said = None if attempt is None else Survivors(generation=1, attempt=attempt, held=())
    peers = mock.Mock()
    peers.beats.return_value = {OTHER: SimpleNamespace(survivors=said)}
    peers.is_gone.return_value = False
    monkeypatch.setattr(rescue_votes.manifests, "commit_whole", lambda *_args, **_options: None)
    monkeypatch.setattr(rescue_votes, "missing_parts", lambda *_args: {OTHER})
    order = RescueOrder(
        generation=1, attempt=1, boundary=7, step=7, ranks=(0, 1), cause="failed", is_exact=True,
        at=Records().at(5), writer="w",
    )  # fmt: skip
    assert RescueVotes(context, peers, generation).state_of(order) == found


def test_a_standing_order_to_leave_does_not_make_a_rescue_ask_the_store_without_a_pause(context):
    """It goes on all the same, and each look is a listing."""
    context.orders = orders = Orders()
    orders.give(stop=mock.Mock(spec=StopRequest))
    waited = []
    orders._changed.wait = waited.append
    votes = RescueVotes(context, PeerHeartbeats(context), Records().generation(1, ranks=(0, 1)))
    votes.pause()
    assert len(waited) == 1
