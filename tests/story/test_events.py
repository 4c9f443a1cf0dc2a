from cloudspot.jobstore.records import CheckpointId, Skipped
from cloudspot.story.events import EventKind, diff


def texts(events):
    return [event.text for event in events]


def test_nothing_new_is_no_event(records):
    history = records.history(records.launch(heartbeats={0: records.heartbeat()}))
    assert diff(history, history) == ()


def test_a_first_look_tells_all_that_has_happened_in_order(records):
    launch = records.launch(
        1,
        outcome="reclaimed",
        notices={0: records.notice(step=37)},
        exits={0: records.exit("drained", step=40)},
    )
    history = records.history(launch, generations=(records.generation(1),), commits=(records.commit(1, 40),))
    events = diff(None, history)
    assert [event.kind for event in events] == [
        EventKind.LAUNCHED,
        EventKind.CLAIMED,
        EventKind.NOTICED,
        EventKind.STARTED,
        EventKind.COMMITTED,
        EventKind.NODE_ENDED,
        EventKind.LAUNCH_CLOSED,
    ]
    assert texts(events) == [
        "launch 1 (first): 1 x big in a, spot at 1 USD an hour",
        "node 0 is up: i-1-0",
        "node 0 will be taken in 30 s (sim), at step 37",
        "training starts from the start (generation 1, first)",
        "checkpoint at step 40 committed",
        "node 0 drained at step 40",
        "launch 1 is over, reclaimed",
    ]


def test_only_what_is_new_is_told(records):
    before = records.history(records.launch(heartbeats={0: records.heartbeat(state="setup")}))
    after = records.history(
        records.launch(heartbeats={0: records.heartbeat(state="running", warnings=("slow",))}),
        stop=records.stop(),
    )
    events = diff(before, after)
    assert [event.kind for event in events] == [
        EventKind.STOP_REQUESTED,
        EventKind.NODE_STATE,
        EventKind.WARNED,
    ]
    assert texts(events)[1:] == ["node 0: running", "node 0: slow"]
    assert diff(after, after) == ()


def test_each_commit_is_told_once(records):
    before = records.history(
        records.launch(1), generations=(records.generation(1),), commits=(records.commit(1, 40),)
    )
    after = records.change(before, commits=(*before.commits, records.commit(1, 50), records.commit(1, 60)))
    assert texts(diff(before, after)) == [
        "checkpoint at step 50 committed",
        "checkpoint at step 60 committed",
    ]
    assert diff(after, after) == ()


def test_a_restart_says_from_where_and_what_was_passed_over(records):
    skipped = (Skipped(checkpoint=CheckpointId(1, 50), reason="chunk 3 differs"),)
    first, second = records.launch(1, outcome="lost"), records.launch(2)
    before = records.history(first, second, generations=(records.generation(1),))
    after = records.change(
        before,
        generations=(
            records.generation(1),
            records.generation(2, launch=2, restored=(1, 40), skipped=skipped),
        ),
    )
    assert texts(diff(before, after)) == [
        "checkpoint 1-50 did not verify and was passed over: chunk 3 differs",
        "training starts from the checkpoint at step 40 (generation 2, first)",
    ]


def test_the_end_is_told_with_its_reason(records):
    before = records.history(records.launch(1))
    launch = records.launch(1, outcome="failed", detail="exit status 3")
    after = records.history(launch, finished=records.finished("failed", detail="failed 4 times"))
    events = diff(before, after)
    assert [event.kind for event in events] == [EventKind.LAUNCH_CLOSED, EventKind.JOB_FINISHED]
    assert texts(events) == ["launch 1 is over, failed: exit status 3", "job failed: failed 4 times"]


def test_the_last_word_of_a_machine_that_owns_no_rank_is_not_told(records):
    before = records.history(records.launch(1))
    after = records.history(records.launch(1, exits={0: records.exit("failed", instance_id="i-other")}))
    assert diff(before, after) == ()


def test_a_node_whose_steps_nobody_knows_is_said_to_be_at_none(records):
    # As with a script that has no session.
    launch = records.launch(
        1,
        notices={0: records.notice(step=0)},
        exits={0: records.exit("succeeded", step=0, detail="the training finished")},
    )
    told = texts(diff(None, records.history(launch)))
    assert "node 0 will be taken in 30 s (sim)" in told
    assert "node 0 succeeded: the training finished" in told
