import pytest
from msgspec.structs import replace

from cloudspot.jobstore.layout.records import CheckpointId, Idle, Skipped
from cloudspot.jobstore.layout.seals import Rescue
from cloudspot.story.events import EventKind, diff


def texts(events):
    return [event.text for event in events]


def test_a_machine_that_is_kept_is_told_and_what_ends_it(records):
    before = records.history(records.launch())
    kept = records.failed_and_kept()
    told = diff(before, kept)
    assert "node 1.0 is kept for inspection until 2026-01-01 00:31:40 UTC" in texts(told)
    stopped = records.change(kept, stop=records.stop(at=300.0))
    assert texts(diff(kept, stopped)) == [
        "stop requested (user): the machine of node 1.0, which is kept for inspection, ends"
    ]


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
        EventKind.LAUNCH_ENDED,
    ]
    assert texts(events) == [
        "launch 1 (first): 1 x big in a, spot at 1 USD an hour",
        "node 1.0 is up: i-1-0",
        "node 1.0 will be taken in 30 s (sim), at step 37",
        "training starts at step 0 (generation 1, first)",
        "checkpoint at step 40 committed",
        "node 1.0 drained at step 40",
        "launch 1 is over, reclaimed: the provider took back i-1-0 (node 1.0)",
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
    assert texts(events)[1:] == ["node 1.0: running", "node 1.0: slow"]
    assert diff(after, after) == ()


def test_that_a_node_idles_is_told_once_however_long_it_does(records):
    def history(idle):
        return records.history(records.launch(heartbeats={0: records.heartbeat(idle=idle)}))

    busy, idle = history(None), history(Idle(seconds=1800.0, cause="GPUs at 0 %"))
    longer = history(Idle(seconds=1830.0, cause="GPUs at 1 %"))
    told = [(event.kind, event.text) for event in diff(busy, idle)]
    assert told == [(EventKind.WARNED, "node 1.0: idle for 30 min (GPUs at 0 %)")]
    assert diff(idle, longer) == diff(longer, busy) == ()
    assert texts(diff(busy, longer)) == ["node 1.0: idle for 30 min (GPUs at 1 %)"]


def test_a_price_that_changes_is_told_once(records):
    launch = records.launch()
    first = records.change(launch, prices=(records.repriced(1.5, at=700.0),))
    second = records.change(launch, prices=(*first.prices, records.repriced(0.75, at=1400.0)))
    told = diff(records.history(launch), records.history(first))
    assert [(one.kind, one.text, one.at) for one in told] == [
        (EventKind.REPRICED, "launch 1: a node now costs 1.5 USD an hour, 1 before", records.at(700.0))
    ]
    (event,) = diff(records.history(first), records.history(second))
    assert event.text == "launch 1: a node now costs 0.75 USD an hour, 1.5 before"


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


@pytest.mark.parametrize(
    ("rescue", "told"),
    [
        (Rescue(cause="failed", lost=(), is_exact=True), ", after a failure"),
        (Rescue(cause="lost", lost=(1,), kept=(1,), is_exact=True), " by the survivors of rank 1"),
        (
            Rescue(cause="lost", lost=(0, 1), kept=(1,), is_exact=False),
            " by the survivors of rank 0, 1; the random generators of rank 0 are seeded anew",
        ),
    ],
)
def test_a_commit_by_survivors_says_what_is_missing(records, rescue, told):
    before = records.history(records.launch(1), generations=(records.generation(1),))
    commit = replace(records.commit(1, 50), rescue=rescue)
    after = records.change(before, commits=(commit,))
    assert texts(diff(before, after)) == [f"checkpoint at step 50 committed{told}"]


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
        "checkpoint 1-50 did not verify and was skipped: chunk 3 differs",
        "training resumes at step 40 (generation 2, first) on node 2.0",
    ]


def test_a_stop_at_a_limit_is_told_with_its_figures(records):
    [event] = diff(None, records.history(stop=records.stop("max_cost", detail="4 of 5 USD spent")))
    assert event.text == "stop requested (max_cost): the job checkpoints and ends; 4 of 5 USD spent"


def test_the_end_is_told_with_its_reason(records):
    before = records.history(records.launch(1))
    launch = records.launch(1, outcome="failed", detail="exit status 3")
    after = records.history(launch, finished=records.finished("failed", detail="failed 4 times"))
    events = diff(before, after)
    assert [event.kind for event in events] == [
        EventKind.NODE_ENDED,
        EventKind.LAUNCH_ENDED,
        EventKind.JOB_FINISHED,
    ]
    assert texts(events)[1:] == ["launch 1 is over, failed: exit status 3", "job failed: failed 4 times"]


def test_the_last_word_of_a_machine_that_owns_no_rank_is_not_told(records):
    before = records.history(records.launch(1))
    after = records.history(records.launch(1, exits={0: records.exit("failed", instance_id="i-x")}))
    assert diff(before, after) == ()


def test_a_node_whose_steps_nobody_knows_is_said_to_be_at_none(records):
    # As with a script that has no session.
    launch = records.launch(
        1,
        notices={0: records.notice(step=0)},
        exits={0: records.exit("succeeded", step=0, detail="the training finished")},
    )
    told = texts(diff(None, records.history(launch)))
    assert "node 1.0 will be taken in 30 s (sim)" in told
    assert "node 1.0 succeeded: the training finished" in told


def test_a_machine_that_ended_without_a_word_is_told_by_its_certificate_and_only_once(records):
    before, after = records.history(records.launch(1)), records.history(records.launch(1, outcome="lost"))
    assert texts(diff(before, after)) == [
        "node 1.0 (i-1-0) vanished",
        "launch 1 is over, lost",
    ]
    late = records.change(after.launches[0], exits={0: records.exit("drained")})
    assert diff(after, records.history(late)) == ()


def test_why_a_machine_ended_is_told_once_where_its_provider_says_it(records):
    lost = records.launch(1, outcome="lost")
    proofs = {
        name: records.change(one, detail="killed for memory") for name, one in lost.certificates.items()
    }
    after = records.history(records.change(lost, certificates=proofs))
    assert texts(diff(records.history(records.launch(1)), after)) == [
        "node 1.0 (i-1-0) ended: killed for memory",
        "launch 1 is over, lost",
    ]


def several(records, *generations):
    """Two nodes of launch 1, and one of launch 2, which is to take the place of node 1.1; two are needed."""
    principals = records.intent(2, at=30, why="notice", stands_in_for=((1, 1),))
    spec = {"name": "digits", "run": {"entrypoint": "train.py"}, "nodes": {"min": 2, "max": 3}}
    return records.history(
        records.launch(1, intent=records.intent(num_nodes=2)),
        records.launch(2, intent=records.change(principals, detail="one of two is about to go")),
        submission=records.change(records.history().submission, spec=spec),
        generations=generations,
    )


def test_nodes_are_called_by_their_names_through_all_changes(records):
    both = records.generation(1, ranks=(0, 1))
    after = records.generation(2, seats=[(1, 0), (2, 0)], why="joined")
    told = texts(diff(None, several(records, both, after)))
    assert told[3:5] == [
        (
            "launch 2 (notice): 1 x big in a, spot at 1 USD an hour, to take the place of node 1.1: "
            "one of two is about to go"
        ),
        "node 2.0 is up: i-2-0",
    ]
    assert told[5:] == [
        "training starts at step 0 (generation 1, first) on nodes 1.0 and 1.1",
        (
            "training starts at step 0, as no checkpoint was committed before (generation 2, joined), with node "
            "2.0 and without node 1.1"
        ),
    ]


def test_a_generation_of_too_few_nodes_holds(records):
    both, rest = records.generation(1, ranks=(0, 1)), records.generation(2, ranks=(0,), why="regrouped")
    [event] = diff(several(records, both), several(records, both, rest))
    assert event.kind is EventKind.HOLDING
    assert event.text == "node 1.0 waits: the training needs 2 nodes (generation 2, regrouped)"
