"""What a stop takes and costs, and what may be bought below ``limits.max_cost``."""

import pytest

from cloudspot.controller.assess.limits import (
    DEFAULT_STOP_SECONDS,
    Reached,
    check_affordable,
    new_budget,
    stop_seconds,
)
from cloudspot.errors import SpecError
from cloudspot.jobstore.layout.records import Phase
from cloudspot.model import Billing

BY_THE_HOUR = Billing(minimum_seconds=3600.0, increment_seconds=3600.0)


def spec_of(records, max_cost=10.0, **limits):
    return records.spec(limits={"max_cost": max_cost, **limits})


def assess(records, history, at, instances=None, **limits):
    return records.assess(history, instances, at=at, spec=spec_of(records, **limits))


def trained(records, *, steps=10, seconds=100.0, **changes):
    """Return the heartbeat of a node that has trained for so long."""
    phases = (Phase(state="training", generation=1, at=records.at(60 - seconds)),)
    return records.heartbeat(step=steps, phases=phases, **changes)


# --- how long a stop takes ------------------------------------------------------------------------


def test_before_anything_was_measured_a_stop_takes_five_minutes(records):
    assert stop_seconds(records.history()) == DEFAULT_STOP_SECONDS == 300.0
    assert stop_seconds(records.history(records.launch())) == 300.0


def test_two_steps_are_waited_for_at_the_boundary(records):
    """30 s to look, two steps of 10 s, and the defaults of the save and the machine's end."""
    history = records.history(records.launch(heartbeats={0: trained(records)}))
    assert stop_seconds(history) == 30 + 20 + 120 + 120


def test_the_steps_of_a_node_that_has_left_were_made_until_its_training_ended(records):
    phases = (
        Phase(state="training", generation=1, at=records.at(10)),
        Phase(state="uploading", generation=1, at=records.at(40)),
    )
    beat = records.heartbeat(step=10, phases=phases, state="ending", at=500)
    history = records.history(records.launch(heartbeats={0: beat}))
    assert stop_seconds(history) == 30 + 6 + 120 + 120


@pytest.mark.parametrize("at", [-86400.0, -3500.0])
def test_a_node_whose_clock_lags_does_not_make_a_stop_longer(records, at):
    """One an hour behind made a job of 0.5 USD stop at 0.0053: its stop was taken to cost an hour."""
    launch = records.launch(
        heartbeats={0: records.heartbeat(at=at)},
        beats_listed={0: (records.at(95), 700)},
        exits={0: records.exit("drained", at=at)},
        certificates={"i-1-0": records.certificate("i-1-0", ended=110.0)},
    )
    assert stop_seconds(records.history(launch)) == 30 + 30 + 120 + 15


@pytest.mark.parametrize("changes", [{"steps": 0}, {"generation": 2}])
def test_a_node_that_has_counted_no_step_of_its_generation_tells_nothing(records, changes):
    history = records.history(records.launch(heartbeats={0: trained(records, **changes)}))
    assert stop_seconds(history) == 300.0


def test_the_longest_save_and_the_longest_end_that_were_seen_count(records):
    launch = records.launch(
        intent=records.intent(num_nodes=3),
        heartbeats={
            0: records.heartbeat(upload_seconds=7.0, stall_seconds=0.5),
            1: records.heartbeat(instance_id="i-1-1", upload_seconds=9.0),
            2: records.heartbeat(instance_id="i-9-9", upload_seconds=500.0),  # another machine's
        },
        exits={
            0: records.exit("drained", at=100),
            1: records.exit("drained", instance_id="i-1-1", rank=1, at=100),
        },
        certificates={
            "i-1-0": records.certificate("i-1-0", ended=115.0),
            "i-1-1": records.certificate("i-1-1", rank=1, ended=100.0),  # the provider told no end
        },
    )
    assert stop_seconds(records.history(launch)) == 30 + 30 + 9 + 15


# --- what is spent, and what a stop costs ---------------------------------------------------------


def test_without_a_limit_there_is_no_budget(records):
    assert records.assess(records.history()).budget is None
    assert new_budget(records.spec(), "USD") is None


def test_a_stop_costs_what_the_machines_that_live_cost_until_they_have_ended(records):
    proof = {"i-1-1": records.certificate("i-1-1", rank=1, started=0.0, ended=360.0)}
    launch = records.launch(intent=records.intent(num_nodes=2), certificates=proof)
    listed = (records.instance(launched=0.0),)
    found = assess(records, records.history(launch), 3600, listed).budget
    assert (found.spent, found.stop_cost) == pytest.approx((1.1, 300 / 3600))


def test_an_hour_that_has_begun_is_spent_and_the_stop_within_it_is_free(records):
    launch = records.launch(intent=records.intent(offer=records.offer(billing=BY_THE_HOUR)))
    listed, history = (records.instance(launched=0.0),), records.history(launch)
    early = assess(records, history, 600, listed).budget
    late = assess(records, history, 3400, listed).budget
    assert (early.spent, early.stop_cost, late.spent, late.stop_cost) == (1.0, 0.0, 1.0, 1.0)


def test_machines_that_may_come_count_with_what_they_may_have_run_by_now(records):
    launch = records.launch(claimed=False, intent=records.intent(num_nodes=2, at=0.0))
    history = records.history(launch)
    found = assess(records, history, 60).budget
    assert (found.spent, found.stop_cost) == pytest.approx((0.0, 2 * 360 / 3600))
    seen = assess(records, history, 60, (records.instance(launched=60.0),)).budget
    assert (seen.spent, seen.stop_cost) == pytest.approx((0.0, (360 + 300) / 3600))
    never = assess(records, history, 9999).budget
    assert never.stop_cost == pytest.approx(2 * 600 / 3600)  # no more than was reckoned when they were bought


def test_the_limit_is_reached_where_the_stop_would_pass_it(records):
    history, listed = records.history(records.launch()), (records.instance(launched=0.0),)
    assert assess(records, history, 3299, listed, max_cost=1.0).reached is None
    reached = assess(records, history, 3300, listed, max_cost=1.0).reached
    assert reached == Reached(
        "max_cost",
        "0.9167 USD of 1.0000 USD spent, and the stop, which takes up to 300 s, may cost 0.0833 USD",
    )


def test_where_nothing_runs_a_stop_costs_nothing(records):
    history = records.history(records.launch(outcome="reclaimed", ended=3605.0))
    assert assess(records, history, 9999, max_cost=1.01).reached is None
    found = assess(records, history, 9999, max_cost=1.0).reached
    assert found == Reached("max_cost", "1.0000 USD of 1.0000 USD spent")


def test_another_save_away_from_the_bucket_counts_as_part_of_the_stop(records):
    away = records.offer(transfer_price_per_gib=0.02)
    beat = records.heartbeat(moved_bytes=25 * 2**30)
    launch = records.launch(intent=records.intent(offer=away), heartbeats={0: beat})
    history = records.history(launch, commits=(records.commit(size=5 * 2**30),))
    found = assess(records, history, 3600, (records.instance(launched=0.0),)).budget
    assert (found.spent, found.stop_cost) == pytest.approx((1.5, found.stop_seconds / 3600 + 0.1))
    for_time = found.start_seconds + found.stop_seconds
    assert found.cost_of(away, 2) == pytest.approx(2 * for_time / 3600 + 3 * 0.1), "two restores and a save"
    assert found.cost_of(records.offer(), 2) == pytest.approx(2 * for_time / 3600)


def test_only_the_currency_of_the_limit_counts(records):
    intent = records.intent(offer=records.offer(currency="CNY"))
    history, listed = records.history(records.launch(intent=intent)), (records.instance(launched=0.0),)
    other = assess(records, history, 3600, listed, currency="USD").budget
    assert (other.spent, other.stop_cost, other.currency) == (0.0, 0.0, "USD")
    own = assess(records, history, 3600, listed).budget
    assert (own.spent, own.stop_cost, own.currency) == (1.0, pytest.approx(300 / 3600), "CNY")


# --- what may be bought ---------------------------------------------------------------------------


def test_a_job_that_cannot_start_and_stop_below_its_limit_is_refused_before_there_is_one(records):
    dear, cheap = records.offer("a", price=9.0), records.offer("b", price=3.0)
    check_affordable(new_budget(spec_of(records, 1.01), "USD"), [dear, cheap], 2)
    with pytest.raises(SpecError) as error:
        check_affordable(new_budget(spec_of(records, 1.0), "USD"), [dear, cheap], 2)
    assert str(error.value) == (
        "limits.max_cost of 1.0000 USD has no room for 2 x big (spot), whose start and stop alone "
        "cost 1.0000 USD; raise the limit with --set limits.max_cost=..."
    )


def test_a_job_that_is_resumed_is_told_what_it_has_spent(records):
    history = records.history(records.launch(outcome="stopped", ended=3605.0))
    budget = assess(records, history, 9999, max_cost=1.1).budget
    with pytest.raises(SpecError, match=r"cost 0\.1667 USD, and 1\.0000 USD is spent; raise the limit with"):
        check_affordable(budget, [records.offer()], 1)
