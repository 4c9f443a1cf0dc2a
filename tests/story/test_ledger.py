import pytest

from cloudspot.jobstore.records import Phase
from cloudspot.story.ledger import PURPOSES, bill, purposes


def proofs(*certificates):
    return {one.instance_id: one for one in certificates}


def test_machines_that_have_ended_are_billed_by_their_certificates(records):
    certificates = proofs(
        records.certificate("i-1-0", started=0.0, ended=3600.0),
        records.certificate("i-1-1", started=0.0, ended=1800.0, rank=1),
    )
    intent = records.intent(offer=records.offer(price=2.0), num_nodes=2)
    history = records.history(records.launch(intent=intent, certificates=certificates))
    ledger = bill(history, records.at(9999.0))
    assert (ledger.spent, ledger.on_demand_equivalent) == (3.0, 4.5)
    assert (ledger.machine_seconds, ledger.run_seconds) == (5400.0, 3600.0)
    assert [(line.instance_id, line.spent, line.ended) for line in ledger.lines] == [
        ("i-1-0", 2.0, records.at(3600.0)),
        ("i-1-1", 1.0, records.at(1800.0)),
    ]


def test_a_machine_that_runs_is_billed_from_its_claim_until_now(records):
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


def test_a_surplus_machine_is_billed_as_listed_and_then_by_its_certificate(records):
    launch = records.launch(exits={0: records.exit("succeeded", at=1800.0)})
    surplus = records.instance("i-9", "ended", launched=0.0, ended_at=records.at(900.0))
    owner = records.instance("i-1-0", "ended", launched=0.0, ended_at=records.at(1800.0))
    listed = bill(records.history(launch), records.at(1800.0), instances=(surplus, owner))
    certificates = proofs(
        records.certificate("i-9", rank=None, started=0.0, ended=900.0),
        records.certificate("i-1-0", started=0.0, ended=1800.0),
    )
    proven = bill(records.history(records.change(launch, certificates=certificates)), records.at(9999.0))
    for ledger in (listed, proven):
        assert [(line.instance_id, line.rank, line.seconds) for line in ledger.lines] == [
            ("i-1-0", 0, 1800.0),
            ("i-9", None, 900.0),
        ]
        assert ledger.spent == pytest.approx(0.75)


@pytest.mark.parametrize(("state", "seconds"), [("running", 300.0), ("ended", 200.0)])
def test_a_machine_that_came_after_its_launch_was_over_is_billed_as_long_as_it_is_listed(
    records, state, seconds
):
    certificates = proofs(records.certificate("i-1-0", started=0.0, ended=100.0))
    history = records.history(records.launch(certificates=certificates))
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


def paid(history, now):
    ledger = bill(history, now)
    found = purposes(history, ledger, now)
    assert [sum(one.values()) for one in found] == pytest.approx([line.seconds for line in ledger.lines])
    return {
        f"{line.launch}.{line.rank}": {name: one[name] for name in PURPOSES if one[name]}
        for line, one in zip(ledger.lines, found, strict=True)
    }


def handed_over(records, *, ready=300.0, **changes):
    """Node 1.1 is lost at 200 s, so that 1.0 holds until 2.0, which is ready at 300 s, joins it at 400 s."""
    first = records.launch(
        1,
        intent=records.intent(num_nodes=2),
        certificates=proofs(records.certificate("i-1-1", rank=1, started=10, ended=200)),
    )
    phases = (
        Phase(state="restoring", generation=0, at=records.at(280)),
        Phase(state="ready", generation=0, at=records.at(ready)),
    )
    beat = records.heartbeat(instance_id="i-2-0", generation=0, phases=phases)
    second = records.launch(
        2,
        intent=records.intent(2, at=210),
        slots={0: records.slot("i-2-0", at=250)},
        heartbeats={0: beat},
    )
    submission = records.change(
        records.history().submission, spec={"name": "digits", "run": {"entrypoint": "t.py"}, "nodes": 2}
    )
    generations = (
        records.generation(1, ranks=(0, 1), at=50),
        records.generation(2, ranks=(0,), at=220, why="regrouped"),
        records.generation(3, seats=[(1, 0), (2, 0)], at=400, why="joined"),
    )
    fields = {"submission": submission, "generations": generations, **changes}
    return records.history(first, second, **fields)


def test_each_machines_time_is_split_by_what_it_was_paid_for(records):
    assert paid(handed_over(records), records.at(500)) == {
        "1.0": {"starting": 40, "training": 170 + 100, "holding": 180},
        "1.1": {"starting": 40, "training": 150},
        "2.0": {"starting": 50, "standby": 100, "training": 100},
    }


def test_a_newcomer_that_has_not_joined_yet_starts_or_stands_by(records):
    history = handed_over(records)
    before = records.change(history, generations=history.generations[:2])
    assert paid(before, records.at(290))["2.0"] == {"starting": 40}
    assert paid(before, records.at(330))["2.0"] == {"starting": 50, "standby": 30}


def test_clocks_that_disagree_bill_no_second_twice(records):
    # By its own clock the newcomer was ready only after it had joined.
    assert paid(handed_over(records, ready=450.0), records.at(500))["2.0"] == {
        "starting": 200,
        "training": 50,
    }


def test_a_machine_without_a_seat_has_never_done_anything_but_start(records):
    certificates = proofs(records.certificate("i-9", rank=None, started=0.0, ended=900.0))
    history = records.history(records.launch(claimed=False, certificates=certificates))
    assert paid(history, records.at(1000)) == {"1.None": {"starting": 900}}
