import pytest

from cloudspot.controller.actions import CloseLaunch
from cloudspot.controller.decide import decide
from cloudspot.story.ledger import bill


def test_closed_launches_are_billed_by_their_closing_records(records):
    machines = (
        records.machine("i-1-0", started=0.0, ended=3600.0, rank=0),
        records.machine("i-1-1", started=0.0, ended=1800.0, rank=1),
    )
    intent = records.intent(offer=records.offer(price=2.0))
    history = records.history(records.launch(outcome="reclaimed", intent=intent, machines=machines))
    ledger = bill(history, records.at(9999.0))
    assert (ledger.spent, ledger.on_demand_equivalent) == (3.0, 4.5)
    assert (ledger.machine_seconds, ledger.run_seconds) == (5400.0, 3600.0)
    assert [(line.instance_id, line.spent, line.ended) for line in ledger.lines] == [
        ("i-1-0", 2.0, records.at(3600.0)),
        ("i-1-1", 1.0, records.at(1800.0)),
    ]


def test_the_open_launch_is_billed_from_its_claims_until_now(records):
    ledger = bill(records.history(records.launch()), records.at(3610.0))
    assert ledger.spent == pytest.approx(1.0)
    assert ledger.lines[0].ended is None


def test_a_listing_tells_when_the_machines_really_started_and_ended(records):
    history = records.history(records.launch())
    listed = records.instance(state="ended", launched=0.0, ended_at=records.at(1800.0))
    (line,) = bill(history, records.at(9999.0), instances=(listed,)).lines
    assert (line.started, line.ended, line.seconds) == (records.at(0), records.at(1800), 1800.0)


def test_a_machine_that_has_not_claimed_its_rank_costs_money_too(records):
    history = records.history(records.launch(claimed=False))
    ledger = bill(history, records.at(1805.0), instances=(records.instance(),))
    assert ledger.spent == pytest.approx(0.5)


def test_a_surplus_machine_is_billed_while_its_launch_is_open_and_in_the_closing_record(records):
    launch = records.launch(exits={0: records.exit("succeeded", at=1800.0)})
    surplus = records.instance("i-9", "ended", launched=0.0, ended_at=records.at(900.0))
    owner = records.instance("i-1-0", "ended", launched=0.0, ended_at=records.at(1800.0))
    ledger = bill(records.history(launch), records.at(1800.0), instances=(surplus, owner))
    assert [(line.instance_id, line.rank, line.seconds) for line in ledger.lines] == [
        ("i-1-0", 0, 1800.0),
        ("i-9", None, 900.0),
    ]
    assert ledger.spent == pytest.approx(0.75)
    (close,) = (
        action
        for action in decide(
            records.spec(), records.history(launch), records.observed(surplus, owner), records.at(1800.0)
        )
        if isinstance(action, CloseLaunch)
    )
    assert [(one.instance_id, one.ended_at) for one in close.machines] == [
        ("i-1-0", records.at(1800.0)),
        ("i-9", records.at(900.0)),
    ]


@pytest.mark.parametrize(("state", "seconds"), [("running", 300.0), ("ended", 200.0)])
def test_a_machine_that_came_after_its_launch_was_closed_is_billed_as_long_as_it_is_listed(
    records, state, seconds
):
    machines = (records.machine("i-1-0", started=0.0, ended=100.0, rank=0),)
    history = records.history(records.launch(outcome="voided", closed_at=100.0, machines=machines))
    known = records.instance("i-1-0", "ended", launched=0.0, ended_at=records.at(100.0))
    ended_at = records.at(700.0) if state == "ended" else None
    late = records.instance("i-9", state, launched=500.0, ended_at=ended_at)
    ledger = bill(history, records.at(800.0), instances=(late, known))
    assert [(line.instance_id, line.seconds) for line in ledger.lines] == [
        ("i-1-0", 100.0),
        ("i-9", seconds),
    ]


def test_a_node_that_has_ended_its_work_is_billed_until_then(records):
    history = records.history(records.launch(exits={0: records.exit("drained", at=1810.0)}))
    assert bill(history, records.at(9999.0)).spent == pytest.approx(0.5)


def test_a_clock_that_is_off_never_bills_less_than_nothing(records):
    assert bill(records.history(records.launch()), records.at(-100.0)).spent == 0.0


def test_a_job_that_never_launched_costs_nothing(records):
    ledger = bill(records.history(), records.at(100.0))
    assert (ledger.spent, ledger.currency, ledger.lines) == (0.0, "USD", ())
