"""What checkpoints cost on their way to the bucket's region, and that it decides between regions."""

import pytest

from cloudspot.controller.moving import Target, plan_move
from cloudspot.controller.supply.policy import choose_offer, offer_instead
from cloudspot.controller.supply.transfer import NO_TRAFFIC, Traffic, price_with_transfer, traffic_of
from cloudspot.market.knowledge import NOTHING_KNOWN
from cloudspot.model import Market

GIB = 2**30
HOUR = 3600.0


@pytest.fixture
def home(records):
    return records.offer("east-a", price=1.0, network="east")


@pytest.fixture
def away(records):
    """Cheaper by the machine; a GiB to the bucket costs 0.02."""
    return records.offer("west-a", price=0.6, network="west", transfer_price_per_gib=0.02)


def reclaimed(records, offer, gib):
    """A job of one node that has committed so many GiB every half hour for two hours, and was reclaimed."""
    at = 2 * HOUR
    launch = records.launch(
        1,
        intent=records.intent(1, offer=offer),
        certificates={"i-1-0": records.certificate("i-1-0", end_reason="reclaimed", ended=at + 10.0)},
    )
    return records.history(
        launch,
        generations=(records.generation(1, at=0.0),),
        commits=tuple(records.commit(1, 100 * n, at=n * HOUR / 2, size=int(gib * GIB)) for n in range(1, 5)),
    )


def test_a_job_without_a_commit_is_not_known_to_move_anything(records):
    assert traffic_of(records.history()) == NO_TRAFFIC
    launch = records.launch(1)
    assert traffic_of(records.history(launch, generations=(records.generation(1),))) == NO_TRAFFIC


def test_a_node_uploads_its_share_and_downloads_all(records):
    launch = records.launch(1, intent=records.intent(num_nodes=2))
    history = records.history(
        launch,
        # The second begins an hour after the last commit, which no checkpoint has filled.
        generations=(
            records.generation(1, ranks=(0, 1), at=0.0),
            records.generation(2, ranks=(0, 1), at=2 * HOUR),
        ),
        commits=(
            records.commit(1, 10, at=0.5 * HOUR, size=4 * GIB),
            records.commit(1, 20, at=1.0 * HOUR, size=4 * GIB),
            records.commit(2, 30, at=3.0 * HOUR, size=6 * GIB),
        ),
    )
    assert traffic_of(history) == Traffic(bytes_per_hour=(2 + 2 + 3) / 2 * GIB, restored_bytes=6 * GIB)


def test_a_fork_has_not_measured_what_it_began_with(records):
    assert traffic_of(records.history(commits=(records.commit(0, 10, at=0.0, size=GIB),))) == NO_TRAFFIC


def test_the_price_of_an_hour_has_its_checkpoints_and_a_restore_for_each_expected_loss(records, home, away):
    traffic = Traffic(bytes_per_hour=10 * GIB, restored_bytes=4 * GIB)
    assert price_with_transfer(home, traffic, NOTHING_KNOWN) == 1.0
    assert price_with_transfer(away, NO_TRAFFIC, NOTHING_KNOWN) == 0.6
    kept = records.change(away, market=Market.ON_DEMAND)
    assert price_with_transfer(kept, traffic, NOTHING_KNOWN) == pytest.approx(0.6 + 10 * 0.02)
    with_losses = price_with_transfer(away, traffic, NOTHING_KNOWN)
    # Spot machines are usually lost after 2.2 hours.
    assert with_losses == pytest.approx(0.6 + (10 + 4 / 2.2) * 0.02, abs=0.005)


@pytest.mark.parametrize(("gib", "wins"), [(0.1, True), (5.0, True), (30.0, False)])
def test_the_cheap_region_loses_to_large_checkpoints(records, home, away, gib, wins):
    history = reclaimed(records, home, gib)
    found = choose_offer(records.spec(), history, (home, away), records.at(2 * HOUR + 20.0))
    assert found == (away if wins else home)
    assert found.price_per_hour in {0.6, 1.0}, "what is billed stays the machine's own price"


@pytest.mark.parametrize(("gib", "wins"), [(0.1, True), (30.0, False)])
def test_on_demand_machines_are_compared_alike(records, home, away, gib, wins):
    offers = [records.change(one, market=Market.ON_DEMAND) for one in (home, away)]
    spec = records.spec(spot={"policy": "on-demand"})
    found = choose_offer(spec, reclaimed(records, home, gib), offers, records.at(2 * HOUR + 20.0))
    assert found == offers[wins]


@pytest.mark.parametrize(("gib", "moves"), [(0.1, True), (100.0, False)])
def test_nodes_on_demand_do_not_return_to_spot_where_transfer_costs_more(records, away, gib, moves):
    at = 2 * HOUR
    held = records.offer("east-a", "on-demand", 3.0, network="east")
    launch = records.launch(
        1,
        intent=records.intent(1, offer=held),
        slots={0: records.slot("i-1-0", at=300.0)},
        heartbeats={0: records.heartbeat(at=at, step=100, steps_total=1000, restored_step=0)},
    )
    history = records.history(
        launch,
        generations=(records.generation(1, at=300.0),),
        commits=tuple(records.commit(1, 25 * n, at=n * HOUR / 2, size=int(gib * GIB)) for n in range(1, 5)),
    )
    found = offer_instead(records.spec(), history, held, (away, held), records.at(at))
    assert (found is not None) is moves
    if found is not None:
        assert found[1].startswith("0.605"), found[1]


def test_a_move_by_hand_takes_the_cheapest_with_its_transfer(records, home, away):
    on_demand = records.offer("east-b", "on-demand", 3.0)
    launch = records.launch(1, intent=records.intent(1, offer=on_demand))
    commits = (records.commit(1, 100, at=HOUR, size=60 * GIB),)
    history = records.history(launch, generations=(records.generation(1, at=0.0),), commits=commits)
    found = plan_move(records.spec(), history, [home, away], records.at(1e4), Target(market=Market.SPOT))
    assert found.offer == home
