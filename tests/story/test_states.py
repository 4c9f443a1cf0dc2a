from cloudspot.story.states import ended_at, is_over, job_state


def test_the_states_of_a_job_on_its_way(records):
    assert job_state(records.history()) == "queued"
    assert job_state(records.history(records.launch(claimed=False))) == "launching"
    assert job_state(records.history(records.launch())) == "running"
    assert job_state(records.history(records.launch(notices={0: records.notice()}))) == "draining"
    assert job_state(records.history(records.launch(outcome="reclaimed"))) == "waiting"
    assert job_state(records.history(records.launch(), stop=records.stop())) == "stopping"


def test_a_drained_node_leaves_the_job_waiting_before_anyone_closes_the_launch(records):
    launch = records.launch(notices={0: records.notice()}, exits={0: records.exit("drained")})
    assert job_state(records.history(launch)) == "waiting"


def test_a_job_has_succeeded_when_its_nodes_say_so_though_no_controller_lives(records):
    history = records.history(records.launch(exits={0: records.exit("succeeded")}))
    assert job_state(history) == "succeeded"
    assert is_over(history)


def test_one_node_of_two_is_not_the_job(records):
    launch = records.launch(intent=records.intent(num_nodes=2), exits={0: records.exit("succeeded")})
    assert job_state(records.history(launch)) == "running"


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
    launch = records.launch(outcome="succeeded", closed_at=9000, exits={0: records.exit("succeeded", at=100)})
    for finished in (None, records.finished(at=9001)):
        assert ended_at(records.history(launch, finished=finished)) == records.at(100)
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
    assert ended_at(records.history(launch, finished=records.finished(at=200))) == records.at(200)
    # Nor does one that is behind end it before its last launch began.
    behind = records.launch(intent=records.intent(at=30), exits={0: records.exit("succeeded", at=-500)})
    assert ended_at(records.history(behind)) == records.at(30)
