import pytest

from cloudspot.jobstore.layout.records import Phase
from cloudspot.model import Billing
from cloudspot.story.ledger import PURPOSES, bill, pieces_of, purposes


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


def test_a_machine_that_is_kept_after_its_last_word_is_billed_on(records):
    history = records.failed_and_kept(beat=1000.0)
    ledger = bill(history, records.at(1010.0))
    assert (ledger.lines[0].ended, ledger.machine_seconds) == (None, 1000.0)
    # When its time is over without a word of its end, or it is silent, it is billed until it was heard of last.
    assert bill(history, records.at(1901.0)).machine_seconds == 990.0
    assert bill(records.failed_and_kept(beat=200.0), records.at(1010.0)).machine_seconds == 190.0
    launch = records.change(
        history.launches[0], certificates=proofs(records.certificate(started=5.0, ended=1805.0))
    )
    history = records.change(history, launches=(launch,))
    (paid,) = purposes(history, bill(history, records.at(9999.0)), records.at(9999.0))
    assert paid["kept"].seconds == 1705.0  # since it was said to be kept
    assert sum(one.seconds for one in paid.values()) == 1800.0


def test_a_machine_that_runs_is_billed_from_its_claim_until_now(records):
    ledger = bill(records.history(records.launch()), records.at(3610.0))
    assert ledger.spent == pytest.approx(1.0)
    assert ledger.lines[0].ended is None


def test_each_second_is_billed_at_the_price_of_its_time(records):
    """The price at the launch was charged for ever; spot prices have doubled within a day."""
    prices = (
        records.repriced(2.0, at=1810.0),
        records.repriced(0.5, at=1800.0),
        records.repriced(4.0, at=7210.0),
    )
    launch = records.change(records.launch(), prices=prices)
    ledger = bill(records.history(launch), records.at(3610.0))
    assert ledger.spent == pytest.approx(0.5 * 1.0 + 0.5 * 0.5)  # a clock that was behind turns nothing back
    assert ledger.lines[0].price_per_hour == 4.0
    ended = records.certificate("i-1-0", started=10.0, ended=5410.0)
    launch = records.change(launch, certificates=proofs(ended))
    assert bill(records.history(launch), records.at(9999.0)).spent == pytest.approx(
        0.5 + 0.5 * 0.5 + 0.5 * 0.5
    )


def test_a_listing_tells_when_the_machines_really_started_and_ended(records):
    history = records.history(records.launch())
    listed = records.instance(state="ended", launched=0.0, ended_at=records.at(1800.0))
    (line,) = bill(history, records.at(9999.0), instances=(listed,)).lines
    assert (line.started, line.ended, line.seconds) == (records.at(0), records.at(1800), 1800.0)


def test_a_machine_in_an_unknown_state_is_billed_until_its_end_is_known(records):
    history = records.history(records.launch(outcome="left", ended=1800.0))
    history = records.history(records.change(history.launches[0], certificates={}))
    listed = records.instance(state="hibernating", launched=0.0)
    (line,) = bill(history, records.at(3600.0), instances=(listed,)).lines
    assert (line.started, line.ended, line.seconds) == (records.at(0), None, 3600.0)


def test_a_machine_that_nobody_lists_and_nobody_hears_is_billed_until_its_last_heartbeat(records):
    """It died while no driver ran, and its cloud forgot it: the bill went on until the first look."""
    beating = records.launch(heartbeats={0: records.heartbeat(at=1805.0)})
    put = records.at(1809.0), 512
    for launch, end in (
        (records.launch(), 10.0),
        (beating, 1805.0),
        (records.change(beating, beats_listed={0: put}), 1809.0),
    ):
        history = records.history(launch)
        for now, instances, ended in (
            (end + 600.0, (), None),
            (end + 601.0, (), records.at(end)),
            (end + 601.0, None, None),
            (end + 601.0, (records.instance(),), None),
        ):
            (line,) = bill(history, records.at(now), instances=instances).lines
            assert line.ended == ended


def test_a_machine_that_has_not_claimed_its_rank_costs_money_too(records):
    history = records.history(records.launch(claimed=False))
    ledger = bill(history, records.at(1805.0), instances=(records.instance(),))
    assert ledger.spent == pytest.approx(0.5)


def test_a_machine_whose_seat_was_given_up_stays_on_the_bill_though_nobody_can_prove_its_end(records):
    """As where its cloud forgets it before the next pass: the bill went down."""
    void = records.change(records.slot(at=1210.0), machines=("i-1-0",))
    launch = records.change(records.launch(claimed=False), slots={0: void})
    (line,) = bill(records.history(launch), records.at(9999.0)).lines
    assert (line.instance_id, line.started, line.ended) == ("i-1-0", launch.intent.at, records.at(1210.0))
    listed = records.instance(state="running", launched=0.0)
    (line,) = bill(records.history(launch), records.at(9999.0), instances=(listed,)).lines
    assert (line.started, line.ended) == (records.at(0.0), None)


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


@pytest.mark.parametrize(("state", "seconds"), [("running", 3600.0), ("shutting-down", 1800.0)])
def test_a_machine_that_is_still_listed_as_running_is_billed_after_its_nodes_last_word(
    records, state, seconds
):
    history = records.history(records.launch(exits={0: records.exit("drained", at=1800.0)}))
    (line,) = bill(
        history, records.at(3600.0), instances=(records.instance(state=state, launched=0.0),)
    ).lines
    assert line.seconds == seconds


def test_a_machine_that_is_listed_as_ended_is_billed_until_then_though_its_node_said_goodbye_before(records):
    """It uploads no more, and is charged until it is gone."""
    history = records.history(records.launch(exits={0: records.exit("drained", at=1800.0)}))
    listed = records.instance(state="ended", launched=0.0, ended_at=records.at(2400.0))
    (line,) = bill(history, records.at(3600.0), instances=(listed,)).lines
    assert (line.ended, line.seconds) == (records.at(2400.0), 2400.0)
    forgotten = records.instance(state="ended", launched=0.0)
    (line,) = bill(history, records.at(3600.0), instances=(forgotten,)).lines
    assert line.ended == records.at(1800.0)


def test_a_clock_that_is_off_never_bills_less_than_nothing(records):
    assert bill(records.history(records.launch()), records.at(-100.0)).spent == 0.0


def test_a_job_that_never_launched_costs_nothing(records):
    ledger = bill(records.history(), records.at(100.0))
    assert (ledger.spent, ledger.currency, ledger.lines) == (0.0, "USD", ())


BY_THE_MINUTE = Billing(minimum_seconds=600.0, increment_seconds=60.0, free_if_reclaimed_seconds=3600.0)


def ran(records, seconds, *, end_reason="self", billing=BY_THE_MINUTE, **changes):
    """Return the only line of the bill of a machine that ran for so long, at 1 an hour on spot."""
    proof = records.certificate("i-1-0", started=0.0, ended=seconds, end_reason=end_reason)
    intent = records.intent(offer=records.offer(billing=billing, **changes))
    (line,) = bill(
        records.history(records.launch(intent=intent, certificates=proofs(proof))), records.at(99999.0)
    ).lines
    return line


@pytest.mark.parametrize(
    ("seconds", "charged"), [(0.0, 600.0), (599.0, 600.0), (600.0, 600.0), (600.5, 660.0), (7200.0, 7200.0)]
)
def test_a_machine_is_charged_its_least_time_and_then_by_the_increment(records, seconds, charged):
    line = ran(records, seconds)
    assert (line.seconds, line.charged_seconds) == (seconds, charged)
    assert (line.spent, line.on_demand_equivalent) == pytest.approx((charged / 3600, 3 * charged / 3600))


def test_who_says_nothing_charges_each_second_that_has_begun(records):
    assert ran(records, 0.0, billing=Billing()).charged_seconds == 0.0
    assert ran(records, 1800.5, billing=Billing()).charged_seconds == 1801.0


def test_a_spot_machine_that_is_taken_back_while_that_is_free_costs_only_what_is_billed_beside_it(records):
    line = ran(records, 3599.0, end_reason="reclaimed", price=1.0, extras_per_hour=0.5)
    assert (line.charged_seconds, line.spent, line.on_demand_equivalent) == (0.0, 0.5, 3.0)
    assert ran(records, 3599.0, end_reason="reclaimed").spent == 0.0


@pytest.mark.parametrize(
    ("seconds", "end_reason", "market"),
    [(3600.0, "reclaimed", "spot"), (1800.0, "self", "spot"), (1800.0, "reclaimed", "on-demand")],
)
def test_nothing_is_free_later_for_another_reason_or_on_demand(records, seconds, end_reason, market):
    line = ran(records, seconds, end_reason=end_reason, market=market)
    assert (line.charged_seconds, line.spent) == (seconds, seconds / 3600)


def test_a_listing_tells_that_a_machine_was_taken_back_and_so_is_free(records):
    intent = records.intent(offer=records.offer(billing=BY_THE_MINUTE))
    history = records.history(records.launch(intent=intent))
    gone = records.instance(state="ended", launched=0.0, ended_at=records.at(1800), end_reason="reclaimed")
    assert bill(history, records.at(9999.0), instances=(gone,)).spent == 0.0
    assert bill(history, records.at(100.0), instances=(records.instance(),)).spent == pytest.approx(1 / 6)


def test_the_least_time_is_shared_out_among_the_purposes(records):
    intent = records.intent(offer=records.offer(billing=BY_THE_MINUTE))
    proof = records.certificate("i-1-0", started=0.0, ended=100.0)
    launch = records.launch(intent=intent, certificates=proofs(proof))
    history = records.history(launch, generations=(records.generation(1, at=25),))
    ledger = bill(history, records.at(9999.0))
    (found,) = purposes(history, ledger, records.at(9999.0))
    assert found["starting"] == pytest.approx((25.0, 150 / 3600))
    assert found["training"] == pytest.approx((75.0, 450 / 3600))


def test_a_machine_that_has_just_begun_has_paid_its_least_time_to_start(records):
    intent = records.intent(offer=records.offer(billing=BY_THE_MINUTE))
    history = records.history(records.launch(intent=intent))
    ledger = bill(history, records.at(10.0))
    (found,) = purposes(history, ledger, records.at(10.0))
    assert found["starting"] == pytest.approx((0.0, 600 / 3600))


def test_each_purposes_money_is_at_the_price_of_its_time(records):
    proof = records.certificate("i-1-0", started=0.0, ended=7200.0)
    launch = records.change(
        records.launch(certificates=proofs(proof)), prices=(records.repriced(4.0, at=3600.0),)
    )
    history = records.history(launch, generations=(records.generation(1, at=3600),))
    ledger = bill(history, records.at(9999.0))
    (found,) = purposes(history, ledger, records.at(9999.0))
    assert (found["starting"].spent, found["training"].spent) == (1.0, 4.0)


def trained(*, generation=1, **at):
    return tuple(Phase(state=state, generation=generation, at=moment) for state, moment in at.items())


def lost_at_100(records, *commits, **changes):
    """Machine i-1-0 trains from 30 s on and is gone at 100 s; i-2-0 goes on from the newest commit."""
    first = records.launch(
        outcome="lost",
        heartbeats={0: records.heartbeat(phases=trained(running=records.at(25), training=records.at(30)))},
    )
    beat = records.heartbeat(
        instance_id="i-2-0",
        generation=2,
        phases=trained(generation=2, running=records.at(160), training=records.at(165)),
    )
    second = records.launch(
        2, intent=records.intent(2, at=110), slots={0: records.slot("i-2-0", at=120)}, heartbeats={0: beat}
    )
    restored = None if not commits else (1, commits[-1].step)
    generations = (
        records.generation(1, at=20),
        records.generation(2, launch=2, at=150, restored=restored),
    )
    return records.history(first, second, generations=generations, commits=commits, **changes)


def test_time_whose_steps_are_made_again_was_lost(records):
    """As ``show`` counts the steps lost: from the moment that the newest commit holds to the loss."""
    found = paid(lost_at_100(records, records.commit(step=40, sealed=60)), records.at(200))
    assert found == {
        "1.0": {"starting": 15, "training": 40, "lost": 40},
        "2.0": {"starting": 30, "training": 50},
    }


def test_without_a_commit_all_training_before_a_loss_was_lost(records):
    assert paid(lost_at_100(records), records.at(200))["1.0"] == {"starting": 15, "training": 10, "lost": 70}


def test_what_no_checkpoint_of_a_failed_job_holds_was_lost_and_what_still_runs_was_not(records):
    beat = records.heartbeat(phases=trained(running=records.at(25), training=records.at(30)))
    going = records.launch(heartbeats={0: beat})
    generations, commits = (records.generation(1, at=20),), (records.commit(step=40, sealed=60),)
    history = records.history(going, generations=generations, commits=commits)
    assert paid(history, records.at(100))["1.0"] == {"starting": 10, "training": 80}
    last = records.exit("failed", step=47)
    failed = records.launch(outcome="failed", heartbeats={0: beat}, exits={0: last})
    history = records.history(
        failed, generations=generations, commits=commits, finished=records.finished("failed", at=101)
    )
    assert paid(history, records.at(200))["1.0"] == {"starting": 15, "training": 40, "lost": 40}


def test_where_no_node_told_when_it_trained_nothing_counts_as_lost(records):
    history = lost_at_100(records)
    silent = records.change(history.launches[0], heartbeats={})
    history = records.change(history, launches=(silent, history.launches[1]))
    assert paid(history, records.at(200))["1.0"] == {"starting": 15, "training": 80}


def paid(history, now):
    ledger = bill(history, now)
    found = purposes(history, ledger, now)
    lines = [(line.seconds, line.spent) for line in ledger.lines]
    assert [tuple(map(sum, zip(*one.values(), strict=True))) for one in found] == [
        pytest.approx(line) for line in lines
    ]
    return {
        f"{line.launch}.{line.rank}": {name: one[name].seconds for name in PURPOSES if one[name].seconds}
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


def moved(records, *, gib, price, ended=60.0):
    """A machine in another region has run for ``ended`` minutes from 0 on, at 1.0 an hour, and moved so much."""
    offer = records.offer(transfer_price_per_gib=price)
    launch = records.launch(
        intent=records.intent(offer=offer),
        heartbeats={0: records.heartbeat(moved_bytes=int(gib * 2**30))},
        certificates=proofs(records.certificate("i-1-0", started=0.0, ended=60.0 * ended)),
    )
    return records.history(launch, generations=(records.generation(1, at=60),))


def test_what_a_machine_has_moved_to_and_from_another_region_is_billed(records):
    history = moved(records, gib=25.0, price=0.02)
    (line,) = bill(history, records.at(9999)).lines
    assert (line.spent, line.transfer_spent, line.transfer_bytes) == (1.5, 0.5, 25 * 2**30)
    assert line.on_demand_equivalent == 3.0
    (of_it,) = purposes(history, bill(history, records.at(9999)), records.at(9999))
    assert of_it["transfer"] == (0.0, pytest.approx(0.5))
    assert sum(one.spent for one in of_it.values()) == pytest.approx(1.5)
    assert sum(one.seconds for one in of_it.values()) == pytest.approx(3600)


def test_within_the_region_moving_costs_nothing(records):
    (line,) = bill(moved(records, gib=25.0, price=0.0), records.at(9999)).lines
    assert (line.spent, line.transfer_spent, line.transfer_bytes) == (1.0, 0.0, 0)


def test_transfer_is_shared_out_among_the_days_of_the_machine(records):
    """What one day has cost is told in the same way tomorrow, as nearly as that can be known."""
    history = moved(records, gib=100.0, price=0.01, ended=48 * 60)
    (pieces,) = pieces_of(history, bill(history, records.at(4e5)), records.at(4e5))
    days = {}
    for one in pieces:
        if one.purpose == "transfer":
            days[one.begun.date()] = days.get(one.begun.date(), 0.0) + one.spent
    assert list(days.values()) == [pytest.approx(0.5), pytest.approx(0.5)]


def test_a_machine_that_is_taken_back_while_that_is_free_pays_for_what_it_has_moved(records):
    offer = records.offer(transfer_price_per_gib=0.02, billing=Billing(free_if_reclaimed_seconds=3600.0))
    proof = records.certificate("i-1-0", started=0.0, ended=1800.0, end_reason="reclaimed")
    launch = records.launch(
        intent=records.intent(offer=offer),
        heartbeats={0: records.heartbeat(moved_bytes=2**30)},
        certificates=proofs(proof),
    )
    assert bill(records.history(launch), records.at(9999)).spent == 0.02


def test_a_machine_without_a_seat_has_never_done_anything_but_start(records):
    certificates = proofs(records.certificate("i-9", rank=None, started=0.0, ended=900.0))
    history = records.history(records.launch(claimed=False, certificates=certificates))
    assert paid(history, records.at(1000)) == {"1.None": {"starting": 900}}


def test_a_copy_of_the_store_which_dates_heartbeats_anew_does_not_lengthen_the_bill(records):
    """Nodes without a certificate were billed until the copy, months later."""
    launch = records.launch(
        slots={0: records.slot("i-1-0", at=10)},
        heartbeats={0: records.heartbeat(at=580)},
        beats_listed={0: (records.at(580), 700)},
        exits={0: records.exit("succeeded", at=584)},
    )
    copied = records.change(launch, beats_listed={0: (records.at(9_000_000), 700)})
    seconds = [bill(records.history(one), records.at(9_000_100)).lines[0].seconds for one in (launch, copied)]
    assert seconds[0] == 574.0
    assert seconds[1] <= 574.0 + 1200.0


def test_a_claim_of_the_second_in_which_the_first_heartbeat_is_listed_is_right(records):
    """Stores round down; the machine was billed from its intent on until the next heartbeat."""
    launch = records.launch(
        slots={0: records.slot("i-1-0", at=600.9)},
        heartbeats={0: records.heartbeat(at=600.9)},
        beats_listed={0: (records.at(600), 700)},
    )
    assert bill(records.history(launch), records.at(700)).lines[0].seconds == pytest.approx(99.1)


def test_no_machine_is_billed_from_before_its_launch_by_a_providers_clock_that_is_behind(records):
    listed = records.instance(launched=-1300.0)
    history = records.history(records.launch())
    assert bill(history, records.at(100), instances=(listed,)).lines[0].seconds == 100.0
    ended = records.instance(launched=-1300.0, state="ended", ended_at=records.at(-1240.0))
    assert bill(history, records.at(100), instances=(ended,)).lines[0].seconds == 60.0, "both by that clock"


@pytest.mark.parametrize("shift", [-86400.0, -3600.0, 3600.0, 86400.0])
def test_a_nodes_clock_does_not_reach_the_bill(records, shift):
    launch = records.launch(
        slots={0: records.slot("i-1-0", at=10 + shift)},
        heartbeats={0: records.heartbeat(at=580 + shift)},
        beats_listed={0: (records.at(580), 700)},
    )
    running = bill(records.history(launch), records.at(600)).lines[0].seconds
    left = records.change(launch, exits={0: records.exit("drained", at=584 + shift)})
    over = bill(records.history(left), records.at(600)).lines[0].seconds
    # It is billed from the intent on, until its last heartbeat at the least, and no more than has passed.
    assert (running, over) == (600.0, 580.0 if shift < 0 else 600.0)
