import pytest

from cloudspot.jobstore.layout.records import Final, Phase
from cloudspot.story.outcomes import JobEnd, end_by_nodes
from cloudspot.story.states import ended_at, held_generations, is_over, job_state


def test_the_states_of_a_job_on_its_way(records):
    assert job_state(records.history()) == "queued"
    assert job_state(records.history(records.launch(claimed=False))) == "launching"
    assert job_state(records.history(records.launch())) == "launching"
    training = {"generations": (records.generation(1),)}
    assert job_state(records.history(records.launch(), **training)) == "running"
    assert job_state(records.history(records.launch(notices={0: records.notice()}), **training)) == "draining"
    assert job_state(records.history(records.launch(outcome="reclaimed"))) == "waiting"
    assert job_state(records.history(records.launch(), stop=records.stop())) == "stopping"


def test_a_drained_node_leaves_the_job_waiting_before_its_machine_has_provably_ended(records):
    launch = records.launch(notices={0: records.notice()}, exits={0: records.exit("drained")})
    assert job_state(records.history(launch, generations=(records.generation(1),))) == "waiting"


def test_newcomers_after_the_last_member_make_the_job_launch_again(records):
    first = records.launch(outcome="reclaimed")
    history = records.history(first, records.launch(2), generations=(records.generation(1),))
    assert job_state(history) == "launching"


def test_a_job_whose_first_launch_still_lives_is_not_waiting_for_the_second(records):
    launches = (records.launch(intent=records.intent(num_nodes=2)), records.capacity(2, at=40))
    both, rest = records.generation(1, ranks=(0, 1)), records.generation(2, ranks=(0,))
    assert job_state(records.history(*launches, generations=(both, rest))) == "running"


def with_min(records, num_nodes, *launches, **changes):
    spec = {"name": "digits", "run": {"entrypoint": "train.py"}, "nodes": {"min": num_nodes, "max": 8}}
    return records.history(
        *launches, submission=records.change(records.history().submission, spec=spec), **changes
    )


def test_too_few_nodes_hold_whatever_notices_they_have(records):
    launch = records.launch(intent=records.intent(num_nodes=2), notices={0: records.notice()})
    generations = (records.generation(1, ranks=(0, 1)), records.generation(2))
    history = with_min(records, 2, launch, generations=generations)
    assert job_state(history) == "holding"
    assert held_generations(history) == {2}
    assert held_generations(with_min(records, 1, launch, generations=generations)) == frozenset()


def test_what_a_job_needed_before_it_was_resumed_is_told_by_what_its_nodes_did(records):
    def history(*states):
        phases = tuple(Phase(state=state, generation=1, at=records.at(30)) for state in states)
        first = records.launch(1, outcome="stopped", heartbeats={0: records.heartbeat(phases=phases)})
        resumed = ((1, records.finished("stopped")), (1, records.resumed(1)))
        generations = (records.generation(1), records.generation(2, launch=2))
        return with_min(records, 2, first, records.launch(2), generations=generations, turns=resumed)

    assert held_generations(history("running")) == {2}
    assert held_generations(history("ready")) == {1, 2}


def test_a_job_has_succeeded_when_its_nodes_say_so_though_no_controller_lives(records):
    launch = records.launch(exits={0: records.exit("succeeded")})
    history = records.history(launch, generations=(records.generation(1),))
    assert job_state(history) == "succeeded"
    assert is_over(history)


def test_one_node_of_two_is_not_the_job(records):
    launch = records.launch(intent=records.intent(num_nodes=2), exits={0: records.exit("succeeded")})
    assert job_state(records.history(launch, generations=(records.generation(1, ranks=(0, 1)),))) == "running"


@pytest.mark.parametrize(
    ("second", "end"),
    [
        (20, JobEnd("succeeded", "", 0)),
        (None, JobEnd("succeeded", "", 0)),  # it has no session
        (21, JobEnd("failed", "the nodes made 20 to 21 steps: the last state is in no checkpoint", 1)),
    ],
)
def test_nodes_that_come_to_the_end_after_different_numbers_of_steps_are_no_success(records, second, end):
    first, other = (Final(step=step, weights_sha256=None, metrics={}) for step in (20, second))
    exits = {0: records.exit("succeeded", final=first)}
    exits[1] = records.exit("succeeded", rank=1, instance_id="i-1-1", final=other)
    launch = records.launch(intent=records.intent(num_nodes=2), exits=exits)
    history = records.history(launch, generations=(records.generation(1, ranks=(0, 1)),))
    assert end_by_nodes(history) == end
    assert (job_state(history), is_over(history)) == (end.outcome, True)


def test_a_job_is_stopped_when_its_nodes_obeyed_though_no_controller_lives(records):
    launch = records.launch(exits={0: records.exit("stopped")})
    assert job_state(records.history(launch, stop=records.stop())) == "stopped"
    assert job_state(records.history(stop=records.stop())) == "stopped"


def test_a_permanent_failure_is_a_failed_job_and_another_one_is_not(records):
    for permanent, state in ((True, "failed"), (False, "waiting")):
        launch = records.launch(exits={0: records.exit("failed", permanent=permanent)})
        assert job_state(records.history(launch)) == state


def test_the_journals_last_record_has_the_last_word(records):
    launch = records.launch(outcome="failed")
    history = records.history(launch, finished=records.finished("failed"))
    assert job_state(history) == "failed"
    assert not is_over(records.history(launch))


def test_a_node_that_was_taken_without_a_last_word_does_not_drain_for_ever(records):
    launch = records.launch(intent=records.intent(num_nodes=2), notices={1: records.notice(rank=1)})
    both, rest = records.generation(1, ranks=(0, 1)), records.generation(2, ranks=(0,))
    assert job_state(records.history(launch, generations=(both,))) == "draining"
    assert job_state(records.history(launch, generations=(both, rest))) == "running"


def test_a_job_ended_when_its_nodes_did_however_late_a_driver_writes_it_down(records):
    launch = records.launch(outcome="succeeded", ended=9000, exits={0: records.exit("succeeded", at=100)})
    trained = {"generations": (records.generation(1),)}
    for finished in (None, records.finished(at=9001)):
        assert ended_at(records.history(launch, finished=finished, **trained)) == records.at(100)
    # A newcomer that came too late to take part ends when it will.
    late = records.launch(2, intent=records.intent(2, at=99))
    assert ended_at(records.history(launch, late, **trained)) == records.at(100)
    stopped = records.launch(exits={0: records.exit("stopped", at=100)})
    assert ended_at(records.history(stopped, stop=records.stop(at=50))) == records.at(100)
    # Nothing ran any more when the stop was asked for.
    assert ended_at(records.history(stopped, stop=records.stop(at=150))) == records.at(150)
    assert ended_at(records.history(stop=records.stop(at=5), finished=records.finished(at=9))) == records.at(
        5
    )


def test_a_job_that_a_driver_has_given_up_ended_when_it_did(records):
    launch = records.launch(outcome="failed", exits={0: records.exit("failed", at=100)})
    assert ended_at(records.history(launch)) is None
    assert ended_at(records.history(launch, finished=records.finished("failed", at=130))) == records.at(130)


def test_a_clock_that_is_ahead_ends_no_job_after_its_last_record(records):
    launch = records.launch(outcome="succeeded", exits={0: records.exit("succeeded", at=5000)})
    history = records.history(launch, generations=(records.generation(1),), finished=records.finished(at=200))
    assert ended_at(history) == records.at(200)
    # Nor does one that is behind end it before its last launch began.
    behind = records.launch(intent=records.intent(at=30), exits={0: records.exit("succeeded", at=-500)})
    assert ended_at(records.history(behind, generations=(records.generation(1),))) == records.at(30)
