"""Suspensions and resumptions in a job's story: its state, its events and its time."""

from cloudspot.story.events import EventKind, diff
from cloudspot.story.states import ended_at, job_state
from cloudspot.story.timeline import timeline


def resumed(records, *launches, at=300.0, ended=200.0, **changes):
    first = records.launch(1, outcome="stopped", ended=ended)
    turns = ((1, records.finished("stopped", at=ended)), (1, records.resumed(at=at)))
    return records.history(first, *launches, turns=turns, **changes)


def test_what_was_before_a_resumption_does_not_say_how_the_job_is(records):
    assert job_state(resumed(records)) == "queued"
    assert ended_at(resumed(records)) is None
    assert job_state(resumed(records, records.launch(2))) == "launching"


def test_a_job_is_suspended_until_it_runs_again_or_is_stopped(records):
    refused = records.capacity(1, at=10)
    suspended = {"turns": ((1, records.suspended(at=20)),)}
    assert job_state(records.history(refused, **suspended)) == "suspended"
    assert job_state(records.history(refused, records.capacity(2, at=30), **suspended)) == "suspended"
    assert job_state(records.history(refused, records.launch(2), **suspended)) == "launching"
    lost = records.launch(2, outcome="lost", ended=90)
    assert job_state(records.history(refused, lost, **suspended)) == "waiting"
    assert job_state(records.history(refused, stop=records.stop(), **suspended)) == "stopped"
    assert job_state(records.history(turns=((0, records.suspended()), (0, records.resumed())))) == "queued"


def test_each_turn_is_told_once(records):
    before, after = resumed(records), resumed(records, records.launch(2))
    kinds = [event.kind for event in diff(None, before)]
    assert kinds[-2:] == [EventKind.JOB_FINISHED, EventKind.RESUMED]
    told = {event.kind for event in diff(before, after)}
    assert not told & {EventKind.JOB_FINISHED, EventKind.RESUMED}
    (event,) = diff(None, records.history(turns=((0, records.suspended(detail="no spot capacity")),)))
    assert (event.kind, event.text) == (EventKind.SUSPENDED, "job suspended: no spot capacity")


def test_the_time_between_an_end_and_the_resumption_is_not_the_jobs(records):
    found = timeline(resumed(records), records.at(500))
    assert found.seconds["ended"] == 100
    assert found.seconds["queued"] == 0 + 200
    assert found.total_seconds == 500
    training = resumed(records, at=1200, generations=(records.generation(1),))
    assert timeline(training, records.at(1300)).seconds["ended"] == 1000


def test_a_suspended_job_waits(records):
    history = records.history(records.capacity(1, at=10), turns=((1, records.suspended(at=20)),))
    assert timeline(history, records.at(50)).seconds["suspended"] == 30
