import pytest

from cloudspot.controller.actions import Postpone
from cloudspot.controller.supply.policy import (
    MAX_REFUSALS_IN_A_ROW,
    NoOffer,
    choose_offer,
    in_order,
    offer_instead,
)
from cloudspot.controller.supply.refusals import (
    CAPACITY_COOL_SECONDS,
    MAX_CAPACITY_COOL_SECONDS,
    QUOTA_COOL_SECONDS,
)
from cloudspot.controller.supply.spot_market import DEFAULT_MAX_WAIT_SECONDS


def choose(records, history, *offers, at=0.0, **spot):
    return choose_offer(records.spec(spot=spot), history, offers, records.at(at))


@pytest.fixture
def cheap(records):
    return records.offer("a", price=1.0)


@pytest.fixture
def dear(records):
    return records.offer("b", price=1.5)


@pytest.fixture
def on_demand(records):
    return records.offer("a", market="on-demand", price=3.0)


def test_the_cheapest_spot_offer_comes_first(records, cheap, dear, on_demand):
    assert choose(records, records.history(), on_demand, dear, cheap) == cheap


@pytest.mark.parametrize("policy", ["spot", "spot-then-on-demand", "on-demand"])
def test_an_offer_on_an_unknown_market_is_never_bought(records, policy):
    cheapest = records.offer("a", market="capacity-block", price=0.1)
    assert in_order(records.spec(spot={"policy": policy}), [cheapest]) == ()
    assert isinstance(choose(records, records.history(), cheapest, policy=policy), NoOffer)


def test_an_offer_without_capacity_gives_way_to_the_next(records, cheap, dear, on_demand):
    history = records.history(records.capacity(1, at=0.0, offer=cheap))
    assert choose(records, history, cheap, dear, on_demand, at=CAPACITY_COOL_SECONDS - 1) == dear
    assert choose(records, history, cheap, dear, on_demand, at=CAPACITY_COOL_SECONDS) == cheap


def test_the_cool_down_doubles_with_each_refusal_in_a_row_up_to_its_maximum(records, cheap, dear):
    twice = records.history(
        records.capacity(1, at=0.0, offer=cheap), records.capacity(2, at=100.0, offer=cheap)
    )
    assert choose(records, twice, cheap, dear, at=219.0) == dear
    assert choose(records, twice, cheap, dear, at=220.0) == cheap
    often = records.history(*(records.capacity(n, at=0.0, offer=cheap) for n in range(1, 12)))
    assert choose(records, often, cheap, dear, at=MAX_CAPACITY_COOL_SECONDS) == cheap


def test_an_offer_that_worked_since_its_refusal_is_not_cooling(records, cheap, dear):
    worked = records.launch(2, outcome="reclaimed", intent=records.intent(2, offer=cheap))
    history = records.history(records.capacity(1, at=0.0, offer=cheap), worked)
    assert choose(records, history, cheap, dear, at=1.0) == cheap


def test_a_quota_cools_for_longer(records, cheap, dear):
    history = records.history(records.capacity(1, at=0.0, offer=cheap, outcome="quota"))
    assert choose(records, history, cheap, dear, at=QUOTA_COOL_SECONDS - 1) == dear
    assert choose(records, history, cheap, dear, at=QUOTA_COOL_SECONDS) == cheap


def test_a_wait_for_a_quota_is_called_one(records, cheap, dear):
    refused = records.capacity(1, at=0.0, offer=cheap, outcome="quota")
    assert choose(records, records.history(refused), cheap, at=1.0) == Postpone(
        QUOTA_COOL_SECONDS - 1, "a quota is reached"
    )
    both = records.history(refused, records.capacity(2, at=0.0, offer=dear))
    assert choose(records, both, cheap, dear, at=1.0).why == "no offer has capacity now"


def test_after_a_reclaim_another_zone_of_the_same_price_is_tried(records, cheap):
    other = records.offer("z", price=1.0)
    history = records.history(records.launch(1, outcome="reclaimed", intent=records.intent(1, offer=cheap)))
    assert choose(records, history, cheap, other) == other
    both = records.history(
        *history.launches, records.launch(2, outcome="reclaimed", intent=records.intent(2, offer=other))
    )
    assert choose(records, both, cheap, other) == cheap


def test_after_a_reclaim_the_same_zone_is_taken_where_others_cost_more(records, cheap, dear):
    history = records.history(records.launch(1, outcome="reclaimed", intent=records.intent(1, offer=cheap)))
    assert choose(records, history, cheap, dear) == cheap


def test_with_all_spot_cooling_the_job_waits_until_the_first_is_ready(records, cheap, on_demand):
    history = records.history(records.capacity(1, at=100.0, offer=cheap))
    assert choose(records, history, cheap, on_demand, at=110.0) == Postpone(50.0, "no offer has capacity now")


def test_the_wait_ends_with_max_wait_and_then_on_demand_is_bought(records, cheap, on_demand):
    history = records.history(records.capacity(1, at=100.0, offer=cheap))
    wait = choose(records, history, cheap, on_demand, at=110.0, max_wait=120.0)
    assert wait == Postpone(10.0, "no offer has capacity now")
    assert choose(records, history, cheap, on_demand, at=120.0, max_wait=120.0) == on_demand


def test_without_max_wait_on_demand_is_bought_after_the_default(records, cheap, on_demand):
    at = DEFAULT_MAX_WAIT_SECONDS
    history = records.history(records.capacity(1, at=at - 1, offer=cheap))
    assert choose(records, history, cheap, on_demand, at=at) == on_demand
    assert isinstance(choose(records, history, cheap, on_demand, at=at - 0.5), Postpone)


def test_max_wait_counts_from_when_the_job_last_ran(records, cheap, on_demand):
    ran = records.launch(1, outcome="reclaimed", ended=5000.0)
    history = records.history(ran, records.capacity(2, at=5010.0, offer=cheap))
    assert isinstance(choose(records, history, cheap, on_demand, at=5020.0, max_wait=60.0), Postpone)
    assert choose(records, history, cheap, on_demand, at=5060.0, max_wait=60.0) == on_demand


def test_policy_spot_never_buys_on_demand_and_is_suspended_after_max_wait(records, cheap, on_demand):
    history = records.history(records.capacity(1, at=100.0, offer=cheap))
    spot = {"policy": "spot"}
    assert choose(records, history, cheap, on_demand, at=150.0, **spot) == Postpone(
        10.0, "no offer has capacity now"
    )
    assert choose(records, history, cheap, on_demand, at=150.0, max_wait=120.0, **spot) == Postpone(
        10.0, "no offer has capacity now", suspends="no spot capacity within spot.max_wait of 120 s"
    )
    assert choose(records, history, cheap, on_demand, at=160.0, max_wait=120.0, **spot) == cheap


def test_policy_on_demand_takes_nothing_else_and_waits_for_it(records, cheap, on_demand):
    policy = {"policy": "on-demand"}
    assert choose(records, records.history(), cheap, on_demand, **policy) == on_demand
    history = records.history(records.capacity(1, at=0.0, offer=on_demand))
    assert choose(records, history, cheap, on_demand, at=1.0, **policy) == Postpone(
        59.0, "no offer has capacity now"
    )


def test_where_there_is_no_spot_offer_on_demand_is_bought_at_once(records, on_demand):
    assert choose(records, records.history(), on_demand) == on_demand


@pytest.mark.parametrize("policy", ["spot", "spot-then-on-demand", "on-demand"])
def test_a_job_for_which_there_is_no_offer_at_all_is_given_up(records, policy):
    found = choose(records, records.history(), policy=policy)
    assert found == NoOffer(f"no offer fits resources under spot.policy {policy!r}")


def test_a_refused_offer_is_not_tried_again(records, cheap, dear):
    history = records.history(records.capacity(1, at=0.0, offer=cheap, outcome="refused"))
    assert choose(records, history, cheap, dear, at=9999.0) == dear


def test_the_job_is_given_up_when_every_offer_was_refused(records, cheap):
    history = records.history(records.capacity(1, at=0.0, offer=cheap, outcome="refused"))
    assert choose(records, history, cheap) == NoOffer("every offer was refused: none")


def test_refusals_in_a_row_end_the_job_however_many_offers_there_are(records):
    offers = [records.offer(zone) for zone in "abcdefgh"]
    refusals = [
        records.capacity(n + 1, at=0.0, offer=offers[n], outcome="refused")
        for n in range(MAX_REFUSALS_IN_A_ROW)
    ]
    assert choose(records, records.history(*refusals[:-1]), *offers) == offers[MAX_REFUSALS_IN_A_ROW - 1]
    assert isinstance(choose(records, records.history(*refusals), *offers), NoOffer)


def test_the_dry_run_shows_offers_in_the_order_of_trying(records, cheap, dear, on_demand):
    offers = (on_demand, dear, cheap)
    assert in_order(records.spec(), offers) == (cheap, dear, on_demand)
    assert in_order(records.spec(spot={"policy": "spot"}), offers) == (cheap, dear)
    assert in_order(records.spec(spot={"policy": "on-demand"}), offers) == (on_demand,)


# --- the deadline, and other markets for what runs --------------------------------------------------

HOUR = 3600.0
BOTH_FULL = {"policy": "deadline", "deadline": 10 * HOUR, "length": 8 * HOUR}


@pytest.fixture
def no_spot(records, cheap):
    """A job that has just found no capacity, this many hours after its submission."""
    return lambda hours: records.history(records.capacity(1, at=hours * HOUR - 1, offer=cheap))


@pytest.mark.parametrize(("hours", "waits"), [(0.5, True), (1.0, True), (1.87, False), (4.0, False)])
def test_a_job_with_a_deadline_waits_for_spot_while_that_leaves_time_for_on_demand(
    records, cheap, on_demand, no_spot, hours, waits
):
    """A start takes 300 s, and may take a quarter more; two minutes are kept back: 0.14 of the 2 hours."""
    found = choose(records, no_spot(hours), cheap, on_demand, at=hours * HOUR, **BOTH_FULL)
    assert isinstance(found, Postpone) if waits else found == on_demand


@pytest.mark.parametrize(("hours", "taken"), [(0.5, "spot"), (1.85, "on-demand"), (4.0, "on-demand")])
def test_a_job_with_a_deadline_takes_no_spot_whose_loss_would_make_it_late(
    records, cheap, on_demand, hours, taken
):
    found = choose(records, records.history(), cheap, on_demand, at=hours * HOUR, **BOTH_FULL)
    assert found.market.value == taken


@pytest.mark.parametrize(("hours", "waits"), [(1.0, True), (2.4, False)])
def test_a_job_of_unknown_length_is_taken_to_need_three_quarters_of_its_deadline(
    records, cheap, on_demand, no_spot, hours, waits
):
    spot = {"policy": "deadline", "deadline": 10 * HOUR}
    found = choose(records, no_spot(hours), cheap, on_demand, at=hours * HOUR, **spot)
    assert isinstance(found, Postpone) if waits else found == on_demand


def underway(records, offer, *, hours, step):
    """A job that has trained its 1000 steps of 36 s on the offer until now, the newest in a commit."""
    at = hours * HOUR
    beat = records.heartbeat(at=at, step=step, steps_total=1000, restored_step=0)
    launch = records.launch(
        1,
        intent=records.intent(1, offer=offer, at=at - 36.0 * step - 300.0),
        slots={0: records.slot("i-1-0", at=at - 36.0 * step)},
        heartbeats={0: beat},
    )
    return records.history(
        launch,
        generations=(records.generation(1, at=at - 36.0 * step),),
        commits=(records.commit(1, step, at=at),),
    )


def instead(records, history, held, *offers, hours, **spot):
    found = offer_instead(records.spec(spot=spot), history, held, offers, records.at(hours * HOUR))
    return None if found is None else found[0]


def test_a_job_on_demand_goes_back_to_spot_and_says_what_it_saves(records, cheap, on_demand):
    history = underway(records, on_demand, hours=2.0, step=100)
    found = offer_instead(records.spec(), history, on_demand, (cheap, on_demand), records.at(2 * HOUR))
    assert found == (cheap, "1 instead of 3 USD an hour")


def test_a_job_on_demand_stays_there_for_its_last_minutes(records, cheap, on_demand):
    """What it would save in two steps is less than what the restart and the start beside it cost."""
    assert (
        instead(records, underway(records, on_demand, hours=10.0, step=998), on_demand, cheap, hours=10.0)
        is None
    )
    assert (
        instead(records, underway(records, on_demand, hours=10.0, step=900), on_demand, cheap, hours=10.0)
        == cheap
    )


def test_a_job_on_demand_stays_where_spot_costs_as_much(records, on_demand):
    dear = records.offer("a", price=2.99)
    assert (
        instead(records, underway(records, on_demand, hours=2.0, step=100), on_demand, dear, hours=2.0)
        is None
    )


def test_a_spot_offer_that_cools_down_moves_nobody(records, cheap, on_demand):
    before = underway(records, on_demand, hours=2.0, step=100)
    refused = records.capacity(2, at=2 * HOUR - 1, offer=cheap)
    history = records.history(
        *before.launches,
        refused,
        generations=before.generations,
        commits=(records.commit(1, 100, at=7200.0),),
    )
    assert instead(records, history, on_demand, cheap, hours=2.0) is None


@pytest.mark.parametrize(("deadline", "moves"), [(11.5, False), (10.05, True)])
def test_a_spot_machine_is_left_when_its_loss_would_make_the_job_late(
    records, cheap, on_demand, deadline, moves
):
    """After 5 of its 10 hours of work; a start on demand takes five minutes after a loss, a move one."""
    history = underway(records, cheap, hours=5.0, step=500)
    spot = {"policy": "deadline", "deadline": deadline * HOUR}
    found = instead(records, history, cheap, cheap, on_demand, hours=5.0, **spot)
    assert found == (on_demand if moves else None)


def test_a_job_that_only_takes_spot_is_moved_nowhere(records, cheap, on_demand):
    history = underway(records, cheap, hours=5.0, step=500)
    assert instead(records, history, cheap, cheap, on_demand, hours=5.0, policy="spot") is None


def test_the_policy_of_a_plugin_chooses_with_the_options_of_the_job_file(records, cheap, dear, on_demand):
    def wants(share, *offers):
        return choose(records, records.history(), *offers, policy="capped", options={"max_share": share})

    assert wants(0.4, dear, cheap, on_demand) == cheap
    assert isinstance(wants(0.3, dear, cheap, on_demand), Postpone)
    due = {"policy": "capped", "deadline": 3600.0, "length": 3500.0}
    assert choose(records, records.history(), cheap, on_demand, **due) == on_demand
