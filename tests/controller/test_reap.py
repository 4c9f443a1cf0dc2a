import pytest

from cloudspot.controller.actions import Terminate
from cloudspot.controller.reap import reapable
from cloudspot.jobstore.delivering import CLOSED_GRACE_SECONDS, EXIT_GRACE_SECONDS
from cloudspot.jobstore.records import Ending


def reap(records, history, *instances, **known):
    return reapable(history, records.observed(*instances, **known))


def test_the_machines_of_an_open_launch_are_left_alone(records):
    launch = records.launch(intent=records.intent(num_nodes=2), slots={0: records.slot("i-1-0")})
    instances = (records.instance(), records.instance("i-1-1", rank=1))
    assert reap(records, records.history(launch), *instances) == ()


def test_a_machine_whose_rank_another_one_owns_is_ended(records):
    launch = records.launch(intent=records.intent(num_nodes=2), slots={0: records.slot("i-1-0")})
    found = reap(records, records.history(launch), records.instance("i-double"), records.instance())
    assert found == (Terminate(("i-double",), "rank 0 of launch 1 is taken"),)


def test_a_machine_whose_rank_is_void_is_ended(records):
    launch = records.launch(slots={0: records.slot(None, detail="capacity: none")})
    found = reap(records, records.history(launch), records.instance())
    assert found == (Terminate(("i-1-0",), "rank 0 of launch 1 is void"),)


def test_a_machine_of_unknown_rank_is_ended_when_all_ranks_are_owned(records):
    history = records.history(records.launch())
    found = reap(records, history, records.instance("i-x", rank=None))
    assert found == (Terminate(("i-x",), "all ranks of launch 1 belong to other machines"),)


def test_a_machine_of_unknown_rank_is_left_while_a_rank_is_free(records):
    launch = records.launch(intent=records.intent(num_nodes=2), slots={0: records.slot("i-1-0")})
    assert reap(records, records.history(launch), records.instance("i-x", rank=None)) == ()


@pytest.mark.parametrize("launch", [0, 9])
def test_a_machine_of_no_launch_is_ended(records, launch):
    found = reap(records, records.history(records.launch()), records.instance("i-9", launch=launch))
    assert found == (Terminate(("i-9",), f"launch {launch} is not in the journal"),)


@pytest.mark.parametrize("state", ["pending", "running", "shutting-down"])
def test_a_machine_of_a_launch_that_was_void_is_ended_at_once(records, state):
    history = records.history(records.capacity(1, at=100.0))
    found = reap(records, history, records.instance(state=state))
    assert found == (Terminate(("i-1-0",), "launch 1 is closed"),)


def test_a_machine_that_has_trained_may_flush_its_logs_first(records):
    history = records.history(records.launch(outcome="succeeded", closed_at=100.0))

    def after(seconds):
        return reap(records, history, records.instance(), ending_seconds={Ending(1): seconds})

    assert after(CLOSED_GRACE_SECONDS - 1) == ()
    assert after(CLOSED_GRACE_SECONDS) == (Terminate(("i-1-0",), "launch 1 is closed"),)


@pytest.mark.parametrize("closed_at", [-9000.0, 9000.0])
def test_the_grace_of_a_closed_launch_does_not_depend_on_the_clock_of_whoever_closed_it(records, closed_at):
    history = records.history(records.launch(outcome="succeeded", closed_at=closed_at))
    assert reap(records, history, records.instance()) == ()


def test_without_a_listing_nothing_is_ended(records):
    history = records.history(records.launch(outcome="succeeded"))
    assert reapable(history, records.observed(instances=None, ending_seconds={Ending(1): 9000.0})) == ()


def test_a_node_that_has_said_its_last_word_and_stays_is_ended(records):
    launch = records.launch(intent=records.intent(num_nodes=2), exits={0: records.exit("failed", at=100)})
    history = records.history(launch)
    instances = (records.instance(), records.instance("i-1-1", rank=1))

    def after(seconds):
        return reap(records, history, *instances, ending_seconds={Ending(1, 0): seconds})

    assert after(EXIT_GRACE_SECONDS - 1) == ()
    why = "node 0 of launch 1 has ended its work and still runs"
    assert after(EXIT_GRACE_SECONDS) == (Terminate(("i-1-0",), why),)


def test_ended_machines_and_those_of_other_jobs_are_none_of_our_business(records):
    history = records.history(records.launch(outcome="lost"))
    other = records.change(records.instance(), job_id="other")
    known = {"ending_seconds": {Ending(1): 9000.0}}
    assert reap(records, history, records.instance(state="ended"), other, **known) == ()
    assert len(reap(records, history, records.instance(), **known)) == 1
