"""What a job lacks, and when it is bought (protocol P2)."""

import pytest

from cloudspot.controller.supply.needs import DAY_SECONDS, Need, expected_seconds_to_loss, need, room
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.nodes.seats import seats_of


@pytest.fixture
def look(records):
    """``look(*launches, nodes=(2, 4), generations=...)``: what is needed at second 10,000."""

    def look(*launches, nodes, at=10_000.0, **changes):
        history = records.history(*launches, **changes)
        seats = seats_of(history.launches, history.generations)
        spec = records.spec(nodes={"min": nodes[0], "max": nodes[1]})
        return need(spec, history, seats, records.at(at))

    return look


def launch(records, number, num_nodes, *, gone=(), noticed=(), **changes):
    """Return a claimed launch; ``gone`` have provably ended, ``noticed`` have a notice."""
    proofs = {
        f"i-{number}-{rank}": records.certificate(
            f"i-{number}-{rank}", launch=number, rank=rank, end_reason="reclaimed"
        )
        for rank in gone
    }
    notices = {rank: records.notice(launch=number, rank=rank) for rank in noticed}
    intent = changes.pop("intent", None) or records.intent(number, num_nodes=num_nodes)
    return records.launch(number, intent=intent, certificates=proofs, notices=notices, **changes)


def beats(records, number, *ranks, **changes):
    return {rank: records.heartbeat(instance_id=f"i-{number}-{rank}", **changes) for rank in ranks}


def test_with_nothing_live_all_is_bought_and_the_fewest_that_train_will_do(look):
    assert look(nodes=(2, 4)) == Need(num_nodes=4, min_nodes=2, why="lost")


def test_a_job_that_has_all_its_nodes_needs_none(records, look):
    four = launch(records, 1, 4)
    assert look(four, nodes=(4, 4), generations=(records.generation(1, ranks=range(4)),)) is None


def test_below_min_the_missing_are_bought_at_once(records, look):
    survivors = launch(records, 1, 4, gone=[0])
    generations = (records.generation(1, ranks=range(4)),)
    assert look(survivors, nodes=(4, 4), generations=generations) == Need(
        num_nodes=1, min_nodes=1, why="lost"
    )


def test_a_seat_that_nobody_has_claimed_yet_counts(records, look):
    survivors = launch(records, 1, 4, gone=[0])
    coming = launch(records, 2, 1, claimed=False)
    assert look(survivors, coming, nodes=(4, 4), generations=(records.generation(1, ranks=range(4)),)) is None


def test_a_node_with_a_notice_is_replaced_while_it_still_trains(records, look):
    generations = (records.generation(1, ranks=range(4)),)
    doomed = launch(records, 1, 4, noticed=[3])
    assert look(doomed, nodes=(4, 4), generations=generations) == Need(num_nodes=1, min_nodes=1, why="notice")
    assert look(doomed, nodes=(1, 4), generations=generations) == Need(num_nodes=1, min_nodes=1, why="notice")


def test_a_job_of_one_node_buys_its_successor_at_the_notice(records, look):
    doomed = launch(records, 1, 1, noticed=[0])
    found = look(doomed, nodes=(1, 1), generations=(records.generation(1),))
    assert found == Need(num_nodes=1, min_nodes=1, why="notice")
    assert look(doomed, launch(records, 2, 1), nodes=(1, 1), generations=(records.generation(1),)) is None


def test_a_node_that_the_others_have_left_out_is_replaced_though_its_machine_runs(records, look):
    generations = (records.generation(1, ranks=(0, 1)), records.generation(2, ranks=(0,)))
    found = look(launch(records, 1, 2), nodes=(2, 2), generations=generations)
    assert found == Need(num_nodes=1, min_nodes=1, why="lost")


def test_a_silent_node_that_nobody_has_left_out_is_not_replaced(records, look):
    """A job of one node has nobody who could: its machine has to be proven dead first."""
    assert look(launch(records, 1, 1), nodes=(1, 1), generations=(records.generation(1),)) is None


def test_never_more_than_max_are_there_to_stay_nor_twice_as_many_in_all(records):
    spec = records.spec(nodes=2)
    doomed = launch(records, 1, 2, noticed=[0, 1])
    both = records.history(doomed, launch(records, 2, 2, noticed=[0]), generations=(records.generation(1),))
    seats = seats_of(both.launches, both.generations)
    assert (len(seats.staying), len(seats.live)) == (1, 4)
    assert room(spec, seats) == 0
    assert room(spec, seats_of((doomed,), ())) == 2


def test_a_stand_in_is_counted_in_its_principals_place(records):
    spec = records.spec(nodes=2)
    old = launch(records, 1, 2)
    intent = records.intent(2, num_nodes=2, stands_in_for=((1, 0), (1, 1)))
    seats = seats_of((old, launch(records, 2, 2, intent=intent)), (records.generation(1, ranks=(0, 1)),))
    assert len(seats.staying) == 2
    assert (room(spec, seats), room(spec, seats, stands_in_for=2)) == (0, 0)
    dead = launch(records, 2, 2, intent=intent, gone=[0, 1])
    seats = seats_of((old, dead), (records.generation(1, ranks=(0, 1)),))
    assert (room(spec, seats), room(spec, seats, stands_in_for=2)) == (0, 2)


def test_nobody_is_bought_while_a_training_comes_to_its_end(records, look):
    done = {1: records.exit("succeeded", instance_id="i-1-1", rank=1)}
    generations = (records.generation(1, ranks=(0, 1)),)
    assert look(launch(records, 1, 2, exits=done), nodes=(2, 2), generations=generations) is None
    failed = {1: records.exit("failed", instance_id="i-1-1", rank=1)}
    leaving = beats(records, 1, 0, state="ending")
    assert (
        look(launch(records, 1, 2, exits=failed, heartbeats=leaving), nodes=(2, 2), generations=generations)
        is None
    )
    staying = beats(records, 1, 0, state="ready")
    found = look(
        launch(records, 1, 2, exits=failed, heartbeats=staying), nodes=(2, 2), generations=generations
    )
    assert found == Need(num_nodes=1, min_nodes=1, why="lost")


# --- growth ---------------------------------------------------------------------------------------


def own(records):
    """A commit of the newest generation."""
    return (records.commit(2, 50, at=9_000.0),)


def test_a_job_grows_when_more_nodes_earn_more_than_the_restart_costs_and_says_why(records, look):
    two = launch(records, 1, 4, gone=[2, 3])
    generations = (records.generation(1, ranks=range(4)), records.generation(2, ranks=(0, 1)))
    found = look(two, nodes=(2, 4), generations=generations, commits=own(records))
    assert (found.num_nodes, found.min_nodes, found.why) == (2, 1, "growth")
    assert found.detail == (
        "2 more nodes train for 3.7 h until the next loss is expected: 7.39 node-hours; "
        "a restart of 2 nodes takes 60 s: 0.03 node-hours"
    )


def test_a_job_does_not_grow_for_its_last_minutes(records, look):
    def at_step(step):
        words = beats(records, 1, 0, step=step, steps_total=10_000, at=10_000.0)
        two = launch(records, 1, 4, gone=[2, 3], heartbeats=words)
        generations = (records.generation(1, ranks=range(4)), records.generation(2, ranks=(0, 1)))
        return look(two, nodes=(2, 4), generations=generations, commits=own(records))

    assert at_step(9_900) is None
    assert "until the end of the job" in at_step(5_000).detail


def test_a_job_does_not_grow_while_a_newcomer_is_on_its_way(records, look):
    two = launch(records, 1, 4, gone=[2, 3])
    generations = (records.generation(1, ranks=range(4)), records.generation(2, ranks=(0, 1)))
    assert (
        look(two, launch(records, 2, 1), nodes=(2, 4), generations=generations, commits=own(records)) is None
    )


def test_growth_that_was_refused_is_tried_again_ever_later(records, look):
    two = launch(records, 1, 4, gone=[2, 3])
    generations = (records.generation(1, ranks=range(4)), records.generation(2, ranks=(0, 1)))

    def refused(number, at):
        intent = records.intent(number, at=at, num_nodes=2, why="growth")
        return records.launch(number, outcome="capacity", ended=at, intent=intent)

    once = (two, refused(2, 9_000.0))
    assert look(*once, nodes=(2, 4), generations=generations, commits=own(records), at=9_059.0) is None
    assert look(*once, nodes=(2, 4), generations=generations, commits=own(records), at=9_060.0) is not None
    twice = (*once, refused(3, 9_100.0))
    assert look(*twice, nodes=(2, 4), generations=generations, commits=own(records), at=9_219.0) is None
    assert look(*twice, nodes=(2, 4), generations=generations, commits=own(records), at=9_220.0) is not None


def test_losses_are_expected_at_the_jobs_own_rate_and_at_first_one_for_each_node_and_day(records):
    assert expected_seconds_to_loss(records.history(), 4, records.at(0)) == DAY_SECONDS / 4
    history = records.history(launch(records, 1, 4, gone=[0, 1, 2, 3]))
    node_seconds = 4 * 90.0  # each from its claim to its end
    expected = (DAY_SECONDS + node_seconds) / 2 / 4
    assert expected_seconds_to_loss(history, 4, records.at(500)) == expected


# --- stand-ins for nodes that the provider may take soon ------------------------------------------


def at_risk(records, number, num_nodes, *ranks, **changes):
    """Return a claimed launch of which these nodes report that the provider may take them."""
    said = beats(records, number, *ranks, at_risk=True)
    return launch(records, number, num_nodes, heartbeats=said, **changes)


def test_a_member_at_risk_gets_a_stand_in_although_the_job_has_all_its_nodes(records, look):
    generations = (records.generation(1, ranks=(0, 1)),)
    found = look(at_risk(records, 1, 2, 1), nodes=(2, 2), generations=generations, commits=own(records))
    assert found == Need(num_nodes=1, min_nodes=1, why="rebalance", stands_in_for=(Seat(1, 1),))


def test_a_member_that_has_a_stand_in_gets_no_other(records, look):
    generations = (records.generation(1, ranks=(0, 1)),)
    intent = records.intent(2, stands_in_for=(Seat(1, 1),), why="rebalance")
    stand_in = launch(records, 2, 1, intent=intent, claimed=False)
    assert (
        look(at_risk(records, 1, 2, 1), stand_in, nodes=(2, 2), generations=generations, commits=own(records))
        is None
    )


def test_a_notice_comes_before_a_hint(records, look):
    generations = (records.generation(1, ranks=(0, 1)),)
    found = look(
        at_risk(records, 1, 2, 0, 1, noticed=[0]), nodes=(2, 2), generations=generations, commits=own(records)
    )
    assert found == Need(num_nodes=1, min_nodes=1, why="notice")


def test_there_are_never_more_machines_than_twice_max_for_a_hint_either(records, look):
    generations = (records.generation(1, ranks=(0, 1)),)
    doomed = at_risk(records, 1, 2, 0, 1, noticed=[1])
    coming = launch(records, 2, 1, claimed=False)
    found = look(doomed, coming, nodes=(2, 2), generations=generations, commits=own(records))
    assert found == Need(num_nodes=1, min_nodes=1, why="rebalance", stands_in_for=(Seat(1, 0),))
    more = launch(records, 3, 1, claimed=False, intent=records.intent(3, stands_in_for=(Seat(2, 0),)))
    assert look(doomed, coming, more, nodes=(2, 2), generations=generations, commits=own(records)) is None


def test_stand_ins_that_nobody_sells_are_asked_for_less_and_less_often(records, look):
    generations = (records.generation(1, ranks=(0,)),)
    refused = []
    for number, wait in ((2, 60), (3, 120), (4, 240)):
        intent = records.intent(number, why="rebalance", stands_in_for=(Seat(1, 0),), at=1000 * number)
        refused.append(records.launch(number, outcome="capacity", ended=1000 * number, intent=intent))
        member = at_risk(records, 1, 1, 0)
        early, due = 1000 * number + wait - 1, 1000 * number + wait
        assert (
            look(member, *refused, nodes=(1, 1), generations=generations, commits=own(records), at=early)
            is None
        )
        assert (
            look(member, *refused, nodes=(1, 1), generations=generations, commits=own(records), at=due).why
            == "rebalance"
        )


def test_a_job_does_not_grow_before_its_generation_has_made_a_commit(records, look):
    """Nobody is taken in before that, and how long the rest takes is not known."""
    two = launch(records, 1, 4, gone=[2, 3])
    generations = (records.generation(1, ranks=range(4)), records.generation(2, ranks=(0, 1)))
    assert look(two, nodes=(2, 4), generations=generations, commits=(records.commit(1, 50),)) is None
    assert look(two, nodes=(2, 4), generations=generations, commits=own(records)) is not None
