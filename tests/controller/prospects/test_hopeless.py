"""What cannot come to a good end, by figures from a calculation by hand."""

import math

import pytest

from cloudspot.controller.prospects.hopeless import MAX_TRIES, never_saved, past_deadline, past_max_cost
from cloudspot.market.hazards import NUM_AGES, Hazards, Tally
from cloudspot.market.knowledge import Knowledge

HOUR = 3600.0
STEADY = Knowledge(usual=Hazards((0.5,) * NUM_AGES, (2.0,) * NUM_AGES))
"""A loss in two hours, at any age."""


def deadline(records, length, start=HOUR, **spot):
    spot = {"policy": "deadline", "deadline": 12 * HOUR, **spot}
    return past_deadline(records.spec(spot=spot), length_seconds=length, start_seconds=start)


def test_a_deadline_that_the_training_alone_passes_is_refused_with_the_sum(records):
    assert deadline(records, 11.5 * HOUR) == (
        "spot.deadline: 11.5 h of training and 60 min for the start are 12.5 h, on demand too; the deadline is 12 h"
    )
    assert deadline(records, 11 * HOUR) is None
    assert deadline(records, 11 * HOUR, start=HOUR + 1) is not None


def test_without_a_deadline_no_job_is_late(records):
    assert deadline(records, 1e9, policy="spot", deadline=None) is None


def cost(records, limit, length=10 * HOUR, *, offers=None, nodes=1, spent=0.0):
    spec = records.spec(limits={} if limit is None else {"max_cost": limit}, nodes=nodes)
    offers = offers or [records.offer(price=2.0), records.offer(market="on-demand", price=3.0)]
    return past_max_cost(spec, offers, length_seconds=length, spent=spent)


def test_a_limit_below_the_cheapest_hours_of_all_nodes_is_refused_with_the_product(records):
    assert cost(records, 39.99, nodes=2) == (
        "limits.max_cost: 10 h x 2 x 2.0000 USD an hour is 40.00 USD at least; the limit is 39.99 USD"
    )
    assert cost(records, 40.0, nodes=2) is None
    assert cost(records, None, nodes=2) is None


def test_the_cheapest_is_that_of_the_markets_that_the_policy_allows(records):
    assert cost(records, 25.0) is None
    assert "10 h x 1 x 3.0000 USD an hour is 30.00 USD" in cost(
        records, 25.0, offers=[records.offer(market="on-demand", price=3.0)]
    )


def test_what_is_spent_already_counts(records):
    assert cost(records, 25.0, spent=5.0) is None
    assert cost(records, 24.99, spent=5.0) == (
        "limits.max_cost: 10 h x 1 x 2.0000 USD an hour is 20.00 USD at least, and 5.0000 USD is spent; "
        "the limit is 24.99 USD"
    )


def saved(records, unsaved, *, knowledge=STEADY, offers=None, policy="spot", start=0.0):
    return never_saved(
        records.spec(spot={"policy": policy, **({"deadline": "9d"} if policy == "deadline" else {})}),
        offers or [records.offer()],
        knowledge,
        unsaved_seconds=unsaved,
        start_seconds=start,
    )


def test_work_that_one_machine_in_more_than_twenty_saves_is_refused_with_the_chance(records):
    """Of machines that live two hours in the mean, one in e^(t/2) lives for t hours."""
    limit = 2 * math.log(MAX_TRIES) * HOUR
    assert saved(records, limit - 1) is None
    assert saved(records, limit + 1) == (
        "spot.policy: a spot machine lasts 2 h in the mean, and its first work is saved after 5.99 h; "
        "one in 20 lasts so long"
    )
    assert "one in 403 lasts so long" in saved(records, 12 * HOUR)
    assert "none in a million lasts so long" in saved(records, 48 * HOUR)


def test_the_start_is_part_of_what_a_machine_has_to_last(records):
    assert saved(records, 5 * HOUR) is None
    assert "its first work is saved after 6.5 h" in saved(records, 5 * HOUR, start=1.5 * HOUR)


def test_a_pool_in_which_machines_last_is_hope_enough(records):
    """It was watched for 98 hours without a loss: 2 losses in 49 + 2 usual ones, so a factor of 2 / 51."""
    knowledge = Knowledge({"b/big": Tally(up_hours=(0, 0, 0, 98))}, STEADY.usual)
    both = [records.offer("a"), records.offer("b")]
    assert saved(records, 48 * HOUR, knowledge=knowledge, offers=both) is None
    assert saved(records, 48 * HOUR, knowledge=knowledge, offers=both[:1]) is not None
    assert "lasts 51 h in the mean" in saved(records, 400 * HOUR, knowledge=knowledge, offers=both)


@pytest.mark.parametrize("policy", ["spot-then-on-demand", "deadline", "on-demand"])
def test_a_job_that_may_buy_on_demand_is_not_hopeless(records, policy):
    assert saved(records, 1000 * HOUR, policy=policy) is None
