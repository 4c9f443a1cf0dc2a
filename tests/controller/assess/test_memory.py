import pytest

from cloudspot.controller.assess.memory import MAX_GAP_SECONDS, Memory
from cloudspot.controller.assess.observed import CreateFailure
from cloudspot.controller.assess.observed_duration import BEGUN
from cloudspot.jobstore.layout.records import Ending, KnownEnding, ObservedDuration, Seat, Suspect, Suspicions
from cloudspot.model import InstanceState


@pytest.fixture
def look(records):
    def look(memory, history, *, monotonic, at=0.0):
        return memory.observed(
            records.assess(history, at=at),
            monotonic=monotonic,
            token_seconds=600.0,
            absence_proves_after_seconds=60.0,
        )

    return look


def test_an_absence_counts_from_the_first_listing_without_the_machine(records, look):
    memory, history = Memory(), records.history(records.launch())
    memory.note_listing([records.instance()], 0.0)
    memory.note_listing([], 50.0)
    assert look(memory, history, monotonic=50.0).absent_seconds == {"i-1-0": 0.0}
    memory.note_listing([], 75.0)
    assert look(memory, history, monotonic=99.0).absent_seconds == {"i-1-0": 25.0}


def test_a_machine_that_shows_up_again_was_not_absent(records, look):
    memory, history = Memory(), records.history(records.launch())
    for monotonic, seen in enumerate(([records.instance()], [], [records.instance()], [])):
        memory.note_listing(seen, 30.0 * monotonic)
    assert look(memory, history, monotonic=90.0).absent_seconds == {"i-1-0": 0.0}


def test_the_start_of_a_machine_is_known_when_a_listing_of_ended_ones_has_forgotten_it(records, look):
    memory, history = Memory(), records.history(records.launch())
    memory.note_listing([records.instance(launched=7)], 0.0)
    memory.note_listing([records.instance(state="ended", launched=None)], 50.0)
    (seen,) = look(memory, history, monotonic=50.0).instances
    assert (seen.state, seen.launched_at) == (InstanceState.ENDED, records.at(7))


def test_an_absence_does_not_count_while_listings_fail(records, look):
    memory, history = Memory(), records.history(records.launch())
    memory.note_listing([records.instance()], 0.0)
    memory.note_listing([], 10.0)
    memory.note_listing(None, 20.0)
    assert look(memory, history, monotonic=20.0).instances is None
    memory.note_listing([], 110.0)
    assert look(memory, history, monotonic=110.0).absent_seconds == {"i-1-0": 0.0}
    memory.note_listing([], 115.0)
    assert look(memory, history, monotonic=115.0).absent_seconds == {"i-1-0": 5.0}


def test_a_controller_that_slept_has_not_watched(records, look):
    memory, history = Memory(), records.history(records.launch())
    memory.note_listing([records.instance()], 0.0)
    memory.note_listing([], 1.0)
    memory.note_listing([], 9000.0)
    assert look(memory, history, monotonic=9000.0).absent_seconds == {"i-1-0": MAX_GAP_SECONDS}


def test_a_machine_that_only_a_slot_names_is_watched_from_then_on(records, look):
    memory, history = Memory(), records.history(records.launch())
    memory.note_listing([], 0.0)
    memory.note_history(history, 1.0)
    memory.note_listing([], 30.0)
    memory.note_listing([], 60.0)
    assert look(memory, history, monotonic=60.0).absent_seconds == {"i-1-0": 30.0}


def test_a_machine_that_our_create_returned_is_watched_from_then_on(records, look):
    memory, history = Memory(), records.history(records.launch(claimed=False))
    memory.note_history(history, 0.0)
    memory.note_created(1, [records.instance()], 1.0)
    memory.note_listing([], 10.0)
    memory.note_listing([], 35.0)
    observed = look(memory, history, monotonic=40.0)
    assert (observed.created, observed.absent_seconds) == ({1: (records.instance(),)}, {"i-1-0": 25.0})
    assert observed.vanished == (records.instance(),)
    assert observed.known_seconds == {"i-1-0": 39.0}


def test_answers_of_create_are_forgotten_with_their_launch(records, look):
    memory = Memory()
    memory.note_history(records.history(records.launch(claimed=False)), 0.0)
    memory.note_created(1, [records.instance()], 1.0)
    memory.note_failure(CreateFailure(1, "capacity", ""))
    history = records.history(records.capacity(1, at=5.0), records.launch(2, claimed=False))
    memory.note_history(history, 10.0)
    memory.note_failure(CreateFailure(2, "capacity", "none"))
    observed = look(memory, history, monotonic=10.0)
    assert (observed.created, list(observed.create_failures)) == ({}, [2])


def test_the_token_ages_by_the_intents_time_or_by_first_sight_whichever_is_more(records, look):
    memory, history = Memory(), records.history(records.launch(intent=records.intent(at=0.0)))
    memory.note_history(history, 1000.0)
    assert look(memory, history, monotonic=1050.0, at=400.0).intent_seconds == {1: 400.0}
    assert look(memory, history, monotonic=1050.0, at=-400.0).intent_seconds == {1: 50.0}


def test_time_that_a_look_itself_took_counts_for_nothing(records, look):
    """A driver that was suspended in the middle of a look does not know which end of it is what it saw."""
    memory, history = Memory(), records.history(records.launch(heartbeats={0: records.heartbeat()}))
    memory.note_listing([records.instance()], 0.0)
    memory.note_listing([], 1.0, answered=100.0)
    memory.note_history(history, 0.0, answered=100.0)
    memory.note_listing([], 101.0, answered=200.0)
    memory.note_history(history, 101.0, answered=200.0)
    observed = look(memory, history, monotonic=200.0)
    assert (observed.absent_seconds, observed.silent_seconds) == ({"i-1-0": 1.0}, {Seat(1, 0): 1.0})


def test_silence_counts_only_while_the_store_answers(records, look):
    memory, history = Memory(), records.history(records.launch(heartbeats={0: records.heartbeat()}))
    memory.note_history(history, 0.0)
    memory.note_history(history, 30.0)
    memory.note_history(None, 60.0)
    memory.note_history(history, 90.0)
    assert look(memory, history, monotonic=90.0).silent_seconds == {Seat(1, 0): 30.0}
    beating = records.history(records.launch(heartbeats={0: records.heartbeat(counter=2)}))
    memory.note_history(beating, 95.0)
    assert look(memory, beating, monotonic=95.0).silent_seconds == {Seat(1, 0): 0.0}


# --- from pass to pass ----------------------------------------------------------------------------


def left(records, *, silent=None, absent=None, counter=1, launch=1):
    seat = Seat(launch, 0)
    node = Suspect(seat=seat, instance_id="i-1-0", counter=counter, silent=silent, absent=absent)
    return Suspicions(suspects=(node,), at=records.at(0), writer="w")


def pass_by(records, memory, history, *, listed=(), at=1000.0, monotonic=5.0):
    memory.note_listing(listed, monotonic)
    memory.note_history(history, monotonic)
    found = memory.suspicions(history, records.at(at))
    return () if found is None else found.suspects


@pytest.fixture
def beating(records):
    return records.history(records.launch(heartbeats={0: records.heartbeat(at=990.0)}))


def test_a_healthy_node_is_not_noted(records, beating):
    assert pass_by(records, Memory(), beating, listed=[records.instance()]) == ()


def test_what_a_first_pass_sees_has_only_begun(records, beating):
    (node,) = pass_by(records, Memory(), beating)
    assert (node.instance_id, node.counter, node.silent, node.absent) == ("i-1-0", 1, None, BEGUN)
    (node,) = pass_by(records, Memory(), beating, listed=[records.instance()], at=9000.0)
    assert (node.silent, node.absent) == (BEGUN, None)


def test_what_was_left_counts_where_this_pass_sees_it_too(records, look, beating):
    memory = Memory()
    lasting = ObservedDuration(seconds=40.0, until=records.at(0))
    memory.note_suspicions(left(records, silent=lasting, absent=lasting), records.at(60), 1.0)
    (node,) = pass_by(records, memory, beating)
    observed = look(memory, beating, monotonic=5.0)
    assert observed.absent_seconds == {"i-1-0": 100.0}
    assert observed.silent_seconds == {Seat(1, 0): 100.0}
    longer = ObservedDuration(seconds=100.0, until=records.at(60))
    assert (node.silent, node.absent) == (longer, longer)


def test_what_this_pass_adds_by_its_own_clock_is_not_left_since_the_next_write_holds_it(
    records, look, beating
):
    memory = Memory()
    lasting = ObservedDuration(seconds=40.0, until=records.at(0))
    memory.note_suspicions(left(records, silent=lasting, absent=lasting), records.at(60), 1.0)
    pass_by(records, memory, beating)
    (node,) = pass_by(records, memory, beating, monotonic=12.0)
    observed = look(memory, beating, monotonic=12.0)
    assert observed.absent_seconds == {"i-1-0": 107.0}
    assert observed.silent_seconds == {Seat(1, 0): 107.0}
    assert node.absent == node.silent == ObservedDuration(seconds=100.0, until=records.at(60))


def test_a_machine_that_is_listed_and_a_counter_that_has_moved_make_void_what_was_left(
    records, look, beating
):
    memory = Memory()
    lasting = ObservedDuration(seconds=4000.0, until=records.at(0))
    memory.note_suspicions(left(records, silent=lasting, absent=lasting, counter=0), records.at(60), 1.0)
    assert pass_by(records, memory, beating, listed=[records.instance()]) == ()
    observed = look(memory, beating, monotonic=5.0)
    assert (observed.absent_seconds, observed.silent_seconds) == ({}, {Seat(1, 0): 0.0})
    (node,) = pass_by(records, memory, beating, at=9000.0, monotonic=8.0)
    assert (node.silent, node.absent) == (BEGUN, BEGUN)


def test_what_was_left_of_another_node_says_nothing_of_this_ones_silence(records, look, beating):
    memory = Memory()
    lasting = ObservedDuration(seconds=4000.0, until=records.at(0))
    memory.note_suspicions(left(records, silent=lasting, launch=2), records.at(60), 1.0)
    assert pass_by(records, memory, beating, listed=[records.instance()]) == ()
    assert look(memory, beating, monotonic=5.0).silent_seconds == {Seat(1, 0): 0.0}


def test_a_pass_whose_listing_failed_passes_an_absence_on_and_does_not_count_its_gap(records, beating):
    memory = Memory()
    lasting = ObservedDuration(seconds=40.0, until=records.at(0))
    memory.note_suspicions(left(records, absent=lasting), records.at(60), 1.0)
    (node,) = pass_by(records, memory, beating, listed=None)
    assert node.absent == ObservedDuration(seconds=100.0, until=None)
    assert pass_by(records, Memory(), beating, listed=None) == ()


def test_who_has_ended_or_said_a_last_word_is_under_no_suspicion(records, beating):
    ended = [records.instance(state="ended", end_reason="lost")]
    assert pass_by(records, Memory(), beating, listed=ended, at=9000.0) == ()
    said = records.history(records.launch(exits={0: records.exit("failed")}))
    assert pass_by(records, Memory(), said, at=9000.0) == ()


# --- what has ended -------------------------------------------------------------------------------


def test_an_ending_counts_from_the_first_look_at_it_whatever_its_writers_clock_says(records, look):
    launch = records.launch(
        intent=records.intent(num_nodes=4), exits={0: records.exit("drained", at=-9000.0)}
    )
    history = records.history(
        launch,
        stop=records.stop(at=-9000.0),
        generations=(records.generation(1, ranks=range(4)), records.generation(2, ranks=(0, 1, 3))),
        finished=records.finished(at=-9000.0),
    )
    memory = Memory()
    memory.note_listing([records.instance("i-1-1", "ended", rank=1)], 0.0)
    expected = {Ending("stop"), Ending("finished"), over(0), over(1), Ending("excluded", Seat(1, 2))}
    for monotonic, seconds in ((0.0, 0.0), (50.0, 50.0), (9000.0, 50.0 + MAX_GAP_SECONDS)):
        memory.note_history(history, monotonic)
        observed = look(memory, history, monotonic=monotonic)
        assert observed.ending_seconds == dict.fromkeys(expected, seconds)


def over(rank):
    return Ending("over", Seat(1, rank))


def test_an_ending_does_not_count_while_the_store_does_not_answer_and_a_failed_listing_forgets_none(
    records, look
):
    memory, history = Memory(), records.history(records.launch(), stop=records.stop())
    for monotonic, listed, read in (
        (0.0, True, True),
        (30.0, True, True),
        (60.0, True, False),
        (90.0, False, True),
    ):
        memory.note_listing([records.instance(state="ended")] if listed else None, monotonic)
        memory.note_history(history if read else None, monotonic)
    assert look(memory, history, monotonic=90.0).ending_seconds == {Ending("stop"): 30.0, over(0): 30.0}
    memory.note_listing([records.instance(state="ended")], 95.0)
    memory.note_history(history, 95.0)
    assert look(memory, history, monotonic=95.0).ending_seconds == {Ending("stop"): 35.0, over(0): 35.0}


def endings_left(records, memory, history, *listed):
    memory.note_listing(listed, 5.0)
    memory.note_history(history, 5.0)
    found = memory.suspicions(history, records.at(1000.0))
    return {} if found is None else {one.ending: one.known for one in found.endings}


def test_endings_are_left_to_the_next_pass_while_a_machine_runs_that_they_leave_little_time(records):
    said = {0: records.exit("succeeded")}
    done = records.history(records.launch(exits=said), finished=records.finished())
    endings = {Ending("finished"): BEGUN, over(0): BEGUN}
    assert endings_left(records, Memory(), done, records.instance()) == endings
    assert endings_left(records, Memory(), done, records.instance(state="ended")) == {}
    stopping = records.history(
        records.launch(exits={0: records.exit("stopped")}, intent=records.intent(num_nodes=2)),
        stop=records.stop(),
    )
    assert endings_left(records, Memory(), stopping, records.instance("i-1-1", rank=1)) == {
        Ending("stop"): BEGUN,
        over(0): BEGUN,
    }


def test_an_ending_that_was_left_counts_and_is_left_again_longer(records, look):
    history = records.history(records.launch(), stop=records.stop())
    memory = Memory()
    known = KnownEnding(ending=Ending("stop"), known=ObservedDuration(seconds=40.0, until=records.at(0)))
    left_behind = Suspicions(suspects=(), endings=(known,), at=records.at(0), writer="w")
    memory.note_suspicions(left_behind, records.at(40), 1.0)
    memory.note_endings(left_behind, records.at(40), records.at(60))
    longer = ObservedDuration(seconds=100.0, until=records.at(60))
    assert endings_left(records, memory, history, records.instance()) == {Ending("stop"): longer}
    assert look(memory, history, monotonic=5.0).ending_seconds == {Ending("stop"): 100.0}
    memory.note_listing(None, 6.0)
    endings = memory.suspicions(history, records.at(1000.0)).endings
    assert endings == (KnownEnding(ending=Ending("stop"), known=longer),)
