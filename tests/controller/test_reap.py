import pytest

from cloudspot.controller.actions import Terminate
from cloudspot.controller.reap import reapable
from cloudspot.jobstore.layout.records import Ending, Seat
from cloudspot.jobstore.nodes.delivering import (
    BEATING_SECONDS,
    DELIVERY_GRACE_SECONDS,
    END_GRACE_SECONDS,
    EXIT_GRACE_SECONDS,
    SILENT_LIMIT_SECONDS,
    SILENT_NEWCOMER_SECONDS,
    STOP_GRACE_SECONDS,
)
from cloudspot.jobstore.nodes.seats import seats_of

NODE = Seat(1, 0)


def reap(records, history, *instances, **known):
    seats = seats_of(history.launches, history.generations)
    return reapable(history, seats, records.observed(*instances, **known), records.at(0))


def test_the_machines_of_live_seats_are_left_alone(records):
    launch = records.launch(intent=records.intent(num_nodes=2), slots={0: records.slot("i-1-0")})
    instances = (records.instance(), records.instance("i-1-1", rank=1))
    assert reap(records, records.history(launch), *instances) == ()


def test_a_machine_whose_seat_another_one_owns_may_take_one_that_is_open_and_is_ended_when_none_is(records):
    """All machines of a spot request may have index 0: those that come late are no doubles."""
    double = records.instance("i-double")
    slots = {0: records.slot("i-1-0")}
    launch = records.launch(intent=records.intent(num_nodes=2), slots=slots)
    assert reap(records, records.history(launch), double, records.instance()) == ()
    launch = records.launch(intent=records.intent(num_nodes=2), slots={**slots, 1: records.slot("i-1-1")})
    found = reap(records, records.history(launch), double, records.instance())
    assert found == (Terminate(("i-double",), "all seats of launch 1 are void or belong to other machines"),)


@pytest.mark.parametrize("state", ["pending", "running", "shutting-down"])
def test_a_machine_whose_seat_is_void_is_ended_at_once_and_the_launchs_others_are_not(records, state):
    slots = {0: records.slot(None, detail="capacity: none"), 1: records.slot("i-1-1")}
    history = records.history(records.launch(intent=records.intent(num_nodes=2), slots=slots))
    found = reap(records, history, records.instance(state=state), records.instance("i-1-1", rank=1))
    assert found == (Terminate(("i-1-0",), "seat 1.0 is void"),)


def test_a_machine_of_unknown_rank_is_ended_when_all_seats_are_taken(records):
    history = records.history(records.launch())
    found = reap(records, history, records.instance("i-x", rank=None))
    assert found == (Terminate(("i-x",), "all seats of launch 1 are void or belong to other machines"),)


def test_a_machine_of_unknown_rank_is_left_while_a_seat_is_free(records):
    launch = records.launch(intent=records.intent(num_nodes=2), slots={0: records.slot("i-1-0")})
    assert reap(records, records.history(launch), records.instance("i-x", rank=None)) == ()


@pytest.mark.parametrize("launch", [0, 9])
def test_a_machine_of_no_launch_is_ended(records, launch):
    found = reap(records, records.history(records.launch()), records.instance("i-9", launch=launch))
    assert found == (Terminate(("i-9",), f"launch {launch} is not in the journal"),)


def test_a_node_that_has_said_its_last_word_and_stays_is_ended(records):
    launch = records.launch(intent=records.intent(num_nodes=2), exits={0: records.exit("failed", at=100)})
    history = records.history(launch)
    instances = (records.instance(), records.instance("i-1-1", rank=1))

    def after(seconds):
        return reap(records, history, *instances, ending_seconds={Ending("over", NODE): seconds})

    assert after(EXIT_GRACE_SECONDS - 1) == ()
    why = "node 1.0 has ended its work and still runs"
    assert after(EXIT_GRACE_SECONDS) == (Terminate(("i-1-0",), why),)


def test_a_node_that_the_training_goes_on_without_and_that_stays_is_ended(records):
    generations = (records.generation(1, ranks=(0, 1)), records.generation(2, ranks=(1,)))
    history = records.history(records.launch(intent=records.intent(num_nodes=2)), generations=generations)
    instances = (records.instance(), records.instance("i-1-1", rank=1))

    def after(seconds):
        return reap(records, history, *instances, ending_seconds={Ending("excluded", NODE): seconds})

    assert after(EXIT_GRACE_SECONDS - 1) == ()
    assert after(EXIT_GRACE_SECONDS) == (Terminate(("i-1-0",), "the training goes on without node 1.0"),)


def test_a_notice_is_no_reason(records):
    launch = records.launch(notices={0: records.notice()})
    history = records.history(launch, records.launch(2), generations=(records.generation(1),))
    assert reap(records, history, records.instance(), records.instance("i-2-0", launch=2)) == ()


def test_a_newcomer_may_be_silent_for_minutes_and_a_member_for_an_hour(records):
    generations = (records.generation(1, seats=[(1, 0)]),)
    history = records.history(records.launch(), records.launch(2), generations=generations)
    instances = (records.instance(), records.instance("i-2-0", launch=2))

    def after(seconds):
        silent = dict.fromkeys((NODE, Seat(2, 0)), seconds)
        return reap(records, history, *instances, silent_seconds=silent)

    assert after(SILENT_NEWCOMER_SECONDS - 1) == ()
    newcomer = Terminate(("i-2-0",), "no heartbeat for 5 minutes")
    assert after(SILENT_NEWCOMER_SECONDS) == after(SILENT_LIMIT_SECONDS - 1) == (newcomer,)
    assert after(SILENT_LIMIT_SECONDS) == (newcomer, Terminate(("i-1-0",), "no heartbeat for 60 minutes"))


def test_after_the_end_a_node_has_a_minute_and_one_that_delivers_an_hour(records):
    launch = records.launch(
        intent=records.intent(num_nodes=2),
        heartbeats={1: records.heartbeat(instance_id="i-1-1", state="uploading")},
    )
    history = records.history(launch, finished=records.finished())
    instances = (records.instance(), records.instance("i-1-1", rank=1))

    def after(seconds):
        return reap(records, history, *instances, ending_seconds={Ending("finished"): seconds})

    assert after(END_GRACE_SECONDS - 1) == ()
    assert after(END_GRACE_SECONDS) == (Terminate(("i-1-0",), "the job is over"),)
    assert after(DELIVERY_GRACE_SECONDS) == (Terminate(("i-1-0", "i-1-1"), "the job is over"),)


def test_a_stopped_job_waits_for_its_nodes_and_ends_them_after_the_grace(records):
    history = records.history(records.launch(), stop=records.stop(at=100))

    def after(seconds):
        return reap(records, history, records.instance(), ending_seconds={Ending("stop"): seconds})

    assert after(STOP_GRACE_SECONDS - 1) == ()
    assert after(STOP_GRACE_SECONDS) == (Terminate(("i-1-0",), "still running 10 minutes after the stop"),)


@pytest.mark.parametrize("state", ["draining", "uploading", "ending"])
def test_a_stopping_node_that_still_delivers_its_checkpoint_has_an_hour(records, state):
    beats = {0: records.heartbeat(state=state), 1: records.heartbeat(instance_id="i-1-1", state="running")}
    launch = records.launch(intent=records.intent(num_nodes=2), heartbeats=beats)
    history = records.history(launch, stop=records.stop(at=100))
    machines = [records.instance(), records.instance("i-1-1", rank=1)]
    silent = {NODE: BEATING_SECONDS - 1}
    after = {
        seconds: reap(
            records,
            history,
            *machines,
            silent_seconds=silent,
            ending_seconds={Ending("stop"): float(seconds)},
        )
        for seconds in (599, 600, 3599, int(DELIVERY_GRACE_SECONDS))
    }
    assert after == {
        599: (),
        600: (Terminate(("i-1-1",), "still running 10 minutes after the stop"),),
        3599: (Terminate(("i-1-1",), "still running 59 minutes after the stop"),),
        3600: (Terminate(("i-1-0", "i-1-1"), "still running 60 minutes after the stop"),),
    }


def test_a_stopping_node_that_fell_silent_has_no_longer_grace(records):
    launch = records.launch(heartbeats={0: records.heartbeat(state="uploading")})
    history = records.history(launch, stop=records.stop(at=100), generations=(records.generation(1),))
    known = {
        "silent_seconds": {NODE: BEATING_SECONDS},
        "ending_seconds": {Ending("stop"): STOP_GRACE_SECONDS},
    }
    found = reap(records, history, records.instance(), **known)
    assert found == (Terminate(("i-1-0",), "still running 10 minutes after the stop"),)


def test_without_a_listing_nothing_is_ended(records):
    history = records.history(records.launch(outcome="succeeded"))
    observed = records.observed(instances=None, ending_seconds={Ending("over", NODE): 9000.0})
    assert reapable(history, seats_of(history.launches, ()), observed, records.at(0)) == ()


def test_ended_machines_and_those_of_other_jobs_are_none_of_our_business(records):
    history = records.history(records.launch(outcome="lost"))
    other = records.change(records.instance(), job_id="other")
    known = {"ending_seconds": {Ending("over", NODE): 9000.0}}
    assert reap(records, history, records.instance(state="ended"), other, **known) == ()
    assert len(reap(records, history, records.instance(), **known)) == 1
