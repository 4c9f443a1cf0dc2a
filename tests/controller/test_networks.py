"""Offers whose machines do not reach each other, such as two regions': what may join, replace and move."""

import pytest
from support.worlds.launch_histories import first_violation, play
from support.worlds.simnodes import Script

from cloudspot.controller import moving
from cloudspot.controller.actions import OpenLaunch, Postpone
from cloudspot.controller.decide import decide
from cloudspot.controller.moving import Target, plan_move
from cloudspot.controller.supply.policy import Wish
from cloudspot.errors import CloudspotError
from cloudspot.model import Market

HOUR = 3600.0
LONG = Script(num_steps=90)


@pytest.fixture
def east(records):
    return records.offer("east-a", price=1.0, network="east")


@pytest.fixture
def west(records):
    """Cheaper, and out of reach of the east."""
    return records.offer("west-a", price=0.2, network="west")


@pytest.fixture
def one_of_two_lost(records, east):
    """``one_of_two_lost(offer)``: of two nodes of the offer, one is proven dead."""

    def make(offer=east):
        launch = records.launch(
            intent=records.intent(num_nodes=2, offer=offer),
            certificates={"i-1-1": records.certificate("i-1-1", rank=1, end_reason="reclaimed")},
        )
        return records.history(launch, generations=(records.generation(1, ranks=(0, 1)),))

    return make


def launched(records, history, *offers, nodes, at=100.0, machines=(), **tables):
    seen = records.observed(*machines, offers=offers)
    actions = decide(records.assess(history, seen.instances, at=at, nodes=nodes, **tables), seen)
    return next((one for one in actions if isinstance(one, OpenLaunch | Postpone)), None)


def test_a_replacement_stays_in_the_network_of_its_peers_whatever_that_costs(
    records, one_of_two_lost, east, west
):
    dear = records.offer("east-b", price=0.9 * 3, network="east")
    machine = records.instance("i-1-0")
    found = launched(records, one_of_two_lost(), west, dear, nodes=2, machines=[machine])
    assert found.offer == dear
    found = launched(records, one_of_two_lost(), west, nodes=2, machines=[machine])
    assert isinstance(found, Postpone)
    assert found.why.startswith("no machine is bought: no offer fits")


def test_once_no_node_stays_the_job_goes_on_anywhere(records, east, west):
    gone = {
        f"i-1-{rank}": records.certificate(f"i-1-{rank}", rank=rank, end_reason="reclaimed")
        for rank in (0, 1)
    }
    launch = records.launch(intent=records.intent(num_nodes=2, offer=east), certificates=gone)
    history = records.history(launch, generations=(records.generation(1, ranks=(0, 1)),))
    found = launched(records, history, east, west, nodes=2)
    assert (found.offer, found.num_nodes) == (west, 2)


@pytest.mark.parametrize("known", [True, False])
def test_an_offer_that_names_no_network_reaches_every_one(records, one_of_two_lost, west, known):
    """So it is on a cloud whose network is one, and with launches from before networks were told."""
    told, untold = records.offer("a", network="east"), records.offer("a")
    held, offer = (untold, west) if known else (told, records.offer("b", price=0.2))
    found = launched(records, one_of_two_lost(held), offer, nodes=2, machines=[records.instance("i-1-0")])
    assert found.offer == offer


def on_demand_since(records, offer, num_nodes):
    """Nodes that have trained on demand for two hours, a tenth of what there is to do."""
    at = 2 * HOUR
    ranks = range(num_nodes)
    beat = records.heartbeat(at=at, step=100, steps_total=1000, restored_step=0)
    launch = records.launch(
        1,
        intent=records.intent(1, offer=offer, num_nodes=num_nodes, at=at - 3900.0),
        slots={rank: records.slot(f"i-1-{rank}", at=at - 3600.0) for rank in ranks},
        heartbeats=dict.fromkeys(ranks, beat),
    )
    return records.history(
        launch,
        generations=(records.generation(1, ranks=tuple(ranks), at=at - 3600.0),),
        commits=(records.commit(1, 100, at=at),),
    )


def test_the_market_moves_one_node_to_another_network_but_not_several(records, west):
    held = records.offer("east-a", "on-demand", 3.0, network="east")
    for num_nodes, moves in ((1, True), (2, False)):
        history = on_demand_since(records, held, num_nodes)
        machines = [records.instance(f"i-1-{rank}", rank=rank) for rank in range(num_nodes)]
        found = launched(records, history, west, held, nodes=num_nodes, at=2 * HOUR, machines=machines)
        assert (found is not None and found.offer == west) is moves, num_nodes


def test_a_move_by_hand_of_several_nodes_to_another_network_is_refused(records, east, west):
    near = records.offer("east-b", price=2.0, network="east")
    launch = records.launch(1, intent=records.intent(num_nodes=2, offer=east))
    history = records.history(launch, generations=(records.generation(1, seats=[(1, 0), (1, 1)]),))

    def move(nodes, **target):
        return plan_move(
            records.spec(nodes=nodes), history, [east, near, west], records.at(1e4), Target(**target)
        )

    assert move(2, zone="east-b").offer == near
    with pytest.raises(
        CloudspotError, match=r"west-a \(spot\) cannot reach the present machines.*cloudspot stop"
    ):
        move(2, zone="west-a")
    assert launch.intent.offer.market is Market.SPOT


def test_a_move_of_one_node_goes_anywhere(records, east, west):
    launch = records.launch(1, intent=records.intent(offer=east))
    history = records.history(launch, generations=(records.generation(1, seats=[(1, 0)]),))
    found = plan_move(records.spec(), history, [east, west], records.at(1e4), Target(zone="west-a"))
    assert (found.offer, found.num_nodes) == (west, 1)


def with_networks(cloud):
    cloud.has_networks = True


@pytest.mark.full
def test_no_history_brings_nodes_together_that_do_not_reach_each_other():
    """Neither drivers that race, nor people who move the job, nor notices, losses and lost answers."""
    num_stand_ins = 0
    for seed in range(60):
        nodes = [(1, 1), (2, 2), (1, 2), (2, 3), (1, 3)][seed % 5]
        found = play(seed, nodes=nodes, moves=2, script=LONG, change_cloud=with_networks)
        num_stand_ins += found.num_stand_ins
    assert num_stand_ins > 0, "moves of one node, or within a network, still happen"


@pytest.mark.full
def test_a_shortcut_through_another_network_is_found_out(monkeypatch):
    told = "do not reach each other"
    with monkeypatch.context() as shortcut:
        shortcut.setattr(Wish, "fits", lambda wish, offer: True)
        assert first_violation(told, known=(20,), change_cloud=with_networks) is not None
    monkeypatch.setattr(moving, "may_replace", lambda *_: True)
    options = {"moves": 3, "nodes": (2, 2), "script": LONG, "change_cloud": with_networks}
    assert first_violation(told, known=(149,), **options) is not None
