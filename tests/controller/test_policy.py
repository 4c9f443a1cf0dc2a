import pytest

from cloudspot.controller.actions import Wait
from cloudspot.controller.policy import (
    CAPACITY_COOL_SECONDS,
    DEFAULT_MAX_WAIT_SECONDS,
    MAX_CAPACITY_COOL_SECONDS,
    MAX_REFUSALS_IN_A_ROW,
    QUOTA_COOL_SECONDS,
    GiveUp,
    choose_offer,
    in_order,
)


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
    assert choose(records, history, cheap, on_demand, at=110.0) == Wait(50.0, "no offer has capacity now")


def test_the_wait_ends_with_max_wait_and_then_on_demand_is_bought(records, cheap, on_demand):
    history = records.history(records.capacity(1, at=100.0, offer=cheap))
    wait = choose(records, history, cheap, on_demand, at=110.0, max_wait=120.0)
    assert wait == Wait(10.0, "no offer has capacity now")
    assert choose(records, history, cheap, on_demand, at=120.0, max_wait=120.0) == on_demand


def test_without_max_wait_on_demand_is_bought_after_the_default(records, cheap, on_demand):
    at = DEFAULT_MAX_WAIT_SECONDS
    history = records.history(records.capacity(1, at=at - 1, offer=cheap))
    assert choose(records, history, cheap, on_demand, at=at) == on_demand
    assert isinstance(choose(records, history, cheap, on_demand, at=at - 0.5), Wait)


def test_max_wait_counts_from_when_the_job_last_ran(records, cheap, on_demand):
    ran = records.launch(1, outcome="reclaimed", ended=5000.0)
    history = records.history(ran, records.capacity(2, at=5010.0, offer=cheap))
    assert isinstance(choose(records, history, cheap, on_demand, at=5020.0, max_wait=60.0), Wait)
    assert choose(records, history, cheap, on_demand, at=5060.0, max_wait=60.0) == on_demand


def test_policy_spot_never_buys_on_demand_and_is_suspended_after_max_wait(records, cheap, on_demand):
    history = records.history(records.capacity(1, at=100.0, offer=cheap))
    spot = {"policy": "spot"}
    assert choose(records, history, cheap, on_demand, at=150.0, **spot) == Wait(
        10.0, "no offer has capacity now"
    )
    assert choose(records, history, cheap, on_demand, at=150.0, max_wait=120.0, **spot) == Wait(
        10.0, "no offer has capacity now", suspends="no spot capacity within spot.max_wait of 120 s"
    )
    assert choose(records, history, cheap, on_demand, at=160.0, max_wait=120.0, **spot) == cheap


def test_policy_on_demand_takes_nothing_else_and_waits_for_it(records, cheap, on_demand):
    policy = {"policy": "on-demand"}
    assert choose(records, records.history(), cheap, on_demand, **policy) == on_demand
    history = records.history(records.capacity(1, at=0.0, offer=on_demand))
    assert choose(records, history, cheap, on_demand, at=1.0, **policy) == Wait(
        59.0, "no offer has capacity now"
    )


def test_where_there_is_no_spot_offer_on_demand_is_bought_at_once(records, on_demand):
    assert choose(records, records.history(), on_demand) == on_demand


@pytest.mark.parametrize("policy", ["spot", "spot-then-on-demand", "on-demand"])
def test_a_job_for_which_there_is_no_offer_at_all_is_given_up(records, policy):
    found = choose(records, records.history(), policy=policy)
    assert found == GiveUp(f"no offer fits resources under spot.policy {policy!r}")


def test_a_refused_offer_is_not_tried_again(records, cheap, dear):
    history = records.history(records.capacity(1, at=0.0, offer=cheap, outcome="refused"))
    assert choose(records, history, cheap, dear, at=9999.0) == dear


def test_the_job_is_given_up_when_every_offer_was_refused(records, cheap):
    history = records.history(records.capacity(1, at=0.0, offer=cheap, outcome="refused"))
    assert choose(records, history, cheap) == GiveUp("every offer was refused: none")


def test_refusals_in_a_row_end_the_job_however_many_offers_there_are(records):
    offers = [records.offer(zone) for zone in "abcdefgh"]
    refusals = [
        records.capacity(n + 1, at=0.0, offer=offers[n], outcome="refused")
        for n in range(MAX_REFUSALS_IN_A_ROW)
    ]
    assert choose(records, records.history(*refusals[:-1]), *offers) == offers[MAX_REFUSALS_IN_A_ROW - 1]
    assert isinstance(choose(records, records.history(*refusals), *offers), GiveUp)


def test_a_deadline_that_presses_buys_on_demand(records, cheap, on_demand):
    # 100 of 1000 steps took 990 s from the claim, so 900 more need 8910 s; the rule asks for 11737.5 s.
    beat = records.heartbeat(at=1000.0, step=100, steps_total=1000)
    launch = records.launch(outcome="reclaimed", ended=1000.0, heartbeats={0: beat})
    history = records.history(launch)
    assert choose(records, history, cheap, on_demand, at=1000.0, deadline=12738.0) == cheap
    assert choose(records, history, cheap, on_demand, at=1000.0, deadline=12737.0) == on_demand


def test_a_deadline_of_a_job_of_unknown_length_presses_in_its_last_quarter(records, cheap, on_demand):
    history = records.history(records.launch(outcome="reclaimed"))
    assert choose(records, history, cheap, on_demand, at=750.0, deadline=1000.0) == cheap
    assert choose(records, history, cheap, on_demand, at=751.0, deadline=1000.0) == on_demand


def test_a_deadline_does_not_move_a_job_that_is_spot_only(records, cheap, on_demand):
    found = choose(records, records.history(), cheap, on_demand, at=999.0, deadline=1000.0, policy="spot")
    assert found == cheap


def test_the_dry_run_shows_offers_in_the_order_of_trying(records, cheap, dear, on_demand):
    offers = (on_demand, dear, cheap)
    assert in_order(records.spec(), offers) == (cheap, dear, on_demand)
    assert in_order(records.spec(spot={"policy": "spot"}), offers) == (cheap, dear)
    assert in_order(records.spec(spot={"policy": "on-demand"}), offers) == (on_demand,)
