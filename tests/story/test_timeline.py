"""Where a job's time went, of histories with known answers."""

import itertools
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudspot.jobstore.layout.records import CheckpointId, Phase
from cloudspot.story.progress import StepsLost
from cloudspot.story.spans import Span, between
from cloudspot.story.timeline import timeline

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Story:
    """Writes histories in seconds after the submission."""

    def __init__(self, records):
        self.records = records

    def beat(self, launch, *phases, rank=0, **fields):
        """A heartbeat that tells phases: (state, generation, seconds)."""
        told = tuple(Phase(state=s, generation=g, at=self.records.at(at)) for s, g, at in phases)
        return self.records.heartbeat(
            instance_id=f"i-{launch}-{rank}", phases=told, generation=told[-1].generation, **fields
        )


@pytest.fixture
def story(records):
    return Story(records)


def life(generation, *, setup, run, loop=None, over=None, before=0):
    """The phases of one generation on a fresh machine."""
    phases = [("restoring", before, setup), ("running", generation, run)]
    phases += [] if loop is None else [("training", generation, loop)]
    return [*phases, *([] if over is None else [("uploading", generation, over)])]


def seconds(found):
    return {state: value for state, value in found.seconds.items() if value}


def spans(found, records):
    return [
        (one.state, (one.start - records.start).total_seconds(), (one.end - records.start).total_seconds())
        for one in found.spans
    ]


def reclaimed_once(records, story, *, notice=50, **changes):
    """Drained at 53 s and over at 54 s; on the next machine from 80 s to 180 s; ended at 182 s, which is
    written down at 185 s.
    """
    beats = life(1, setup=15, run=20, loop=25, over=54)
    one = records.launch(
        1,
        outcome="reclaimed",
        ended=60,
        intent=records.intent(1, at=2),
        heartbeats={0: story.beat(1, *beats, step=40)},
        exits={0: records.exit("drained", at=56, step=40)},
        notices={0: records.notice(at=notice, step=38)},
    )
    two = records.launch(
        2,
        outcome="succeeded",
        ended=184,
        intent=records.intent(2, at=62),
        slots={0: records.slot("i-2-0", at=70)},
        heartbeats={0: story.beat(2, *life(2, setup=71, run=75, loop=80, over=180), step=100)},
        exits={0: records.exit("succeeded", instance_id="i-2-0", launch=2, generation=2, at=182, step=100)},
    )
    fields = {
        "generations": (
            records.generation(1, at=20),
            records.generation(2, launch=2, restored=(1, 40), at=74),
        ),
        "commits": (records.commit(1, 40, sealed=53, at=55), records.commit(2, 100, at=181)),
        "finished": records.finished(at=185),
    }
    return records.history(one, two, **{**fields, **changes})


def test_what_the_inputs_cost_beyond_the_setup_has_a_state_of_its_own(records, story):
    beats = [("staging", 0, 12), *life(1, setup=15, run=20, loop=25, over=54)]
    one = records.launch(1, intent=records.intent(1, at=2), heartbeats={0: story.beat(1, *beats, step=40)})
    history = records.history(one, generations=(records.generation(1, at=20),))
    found = timeline(history, records.at(54))
    assert spans(found, records)[:5] == [
        ("queued", 0, 2),
        ("launching", 2, 10),
        ("setup", 10, 12),
        ("staging", 12, 15),
        ("restoring", 15, 20),
    ]
    states = [(span.state, (span.start - records.start).total_seconds()) for span in found.nodes[0].spans]
    assert states[:4] == [("launching", 2), ("setup", 10), ("staging", 12), ("restoring", 15)]


def test_the_setup_of_one_node_and_the_inputs_of_another_are_a_setup(records, story):
    """The state is that of the node that is the furthest behind."""
    beats = {0: story.beat(1, ("staging", 0, 12)), 1: story.beat(1, ("staging", 0, 18), rank=1)}
    slots = {rank: records.slot(f"i-1-{rank}", at=10) for rank in (0, 1)}
    one = records.launch(1, intent=records.intent(1, at=2, num_nodes=2), slots=slots, heartbeats=beats)
    found = timeline(records.history(one, generations=()), records.at(30))
    assert spans(found, records)[2:] == [("setup", 10, 18), ("staging", 18, 30)]


def test_each_second_of_a_reclaimed_job_is_accounted_for(records, story):
    found = timeline(reclaimed_once(records, story), records.at(1000))
    assert spans(found, records) == [
        ("queued", 0, 2),
        ("launching", 2, 10),
        ("setup", 10, 15),
        ("restoring", 15, 20),
        ("starting", 20, 25),
        ("training", 25, 53),
        ("saving", 53, 54),
        ("saving", 54, 56),
        ("waiting", 56, 62),
        ("launching", 62, 70),
        ("setup", 70, 71),
        ("restoring", 71, 75),
        ("starting", 75, 80),
        ("training", 80, 180),
        ("saving", 180, 182),
    ]
    assert sum(found.seconds.values()) == found.total_seconds == 182
    assert found.goodput == pytest.approx(128 / 182)
    assert [one.seat for one in found.nodes] == [(1, 0), (2, 0)]
    assert [one.state for one in found.nodes[0].spans] == [
        "launching", "setup", "restoring", "starting", "training", "saving", "saving",
    ]  # fmt: skip


def test_a_notice_is_answered_by_the_checkpoint_from_which_the_next_generation_resumed(records, story):
    [answer] = timeline(reclaimed_once(records, story), records.at(1000)).answers
    assert (answer.rank, answer.commit, answer.commit_seconds) == (0, CheckpointId(1, 40), 5.0)


def test_a_commit_from_before_the_notice_answers_nothing(records, story):
    [answer] = timeline(reclaimed_once(records, story, notice=55.5), records.at(1000)).answers
    assert (answer.commit, answer.commit_seconds) == (None, None)


def test_a_notice_before_any_training_is_answered_by_nothing(records, story):
    [answer] = timeline(reclaimed_once(records, story, notice=12), records.at(1000)).answers
    assert (answer.commit, answer.commit_seconds) == (None, None)


def test_the_newest_generations_notice_is_answered_by_its_newest_commit(records, story):
    history = reclaimed_once(records, story)
    second = records.change(history.launches[1], notices={0: records.notice(launch=2, at=170)})
    history = records.change(history, launches=(history.launches[0], second))
    answer = timeline(history, records.at(1000)).answers[1]
    assert (answer.commit, answer.commit_seconds) == (CheckpointId(2, 100), 11.0)
    before = (history.commits[0], records.commit(2, 95, at=169))
    history = records.change(history, commits=before, head=CheckpointId(2, 95))
    assert timeline(history, records.at(1000)).answers[1].commit is None


def killed(records, story, *, restored=(1, 40)):
    """Killed at 60 s without a word, having begun step 47; resumed elsewhere; still going at 100 s."""
    one = records.launch(
        1,
        outcome="lost",
        ended=60,
        heartbeats={0: story.beat(1, *life(1, setup=15, run=20, loop=25), step=47)},
    )
    two = records.launch(
        2,
        intent=records.intent(2, at=66),
        slots={0: records.slot("i-2-0", at=70)},
        heartbeats={0: story.beat(2, *life(2, setup=71, run=75, loop=80), step=50)},
    )
    generations = (
        records.generation(1, at=20),
        records.generation(2, launch=2, at=74, restored=restored),
    )
    return records.history(one, two, generations=generations, commits=(records.commit(1, 40, sealed=48),))


def test_what_a_killed_machine_did_after_its_last_checkpoint_is_lost(records, story):
    found = timeline(killed(records, story), records.at(100))
    assert spans(found, records)[2:] == [
        ("restoring", 15, 20),
        ("starting", 20, 25),
        ("training", 25, 48),
        ("lost", 48, 60),
        ("waiting", 60, 66),
        ("launching", 66, 70),
        ("setup", 70, 71),
        ("restoring", 71, 75),
        ("starting", 75, 80),
        ("training", 80, 100),
    ]
    first, second = found.stretches
    lost = StepsLost(7, is_exact=False)
    assert (first.last_step, first.steps_lost, first.was_drained) == (47, lost, False)
    assert (second.last_step, second.steps_lost) == (50, StepsLost(0, is_exact=True))
    assert [one.state for one in found.nodes[0].spans][-2:] == ["training", "lost"]


def test_without_a_checkpoint_all_of_it_is_lost(records, story):
    found = timeline(killed(records, story, restored=None), records.at(100))
    assert (seconds(found)["lost"], seconds(found)["training"]) == (35, 20)
    assert found.stretches[0].steps_lost == StepsLost(47, is_exact=False)


def test_what_all_newer_generations_did_is_lost_where_one_had_to_go_further_back(records, story):
    history = killed(records, story)
    second = records.change(
        history.launches[1],
        certificates={"i-2-0": records.certificate("i-2-0", launch=2, started=66, ended=100)},
    )
    third = records.launch(
        3,
        intent=records.intent(3, at=105),
        slots={0: records.slot("i-3-0", at=106)},
        heartbeats={0: story.beat(3, *life(3, setup=107, run=108, loop=110), step=20)},
    )
    history = records.history(
        history.launches[0],
        second,
        third,
        generations=(*history.generations, records.generation(3, launch=3, at=108, restored=(1, 20))),
        commits=(records.commit(1, 20, sealed=30), *history.commits, records.commit(2, 45, at=95)),
    )
    found = timeline(history, records.at(120))
    assert [(one.state, one.seconds) for one in found.spans if one.state in {"training", "lost"}] == [
        ("training", 5),
        ("lost", 30),
        ("lost", 20),
        ("training", 10),
    ]


def test_an_agent_that_told_no_phases_makes_the_time_unknown_and_not_a_guess(records, story):
    one = records.launch(
        1, outcome="succeeded", ended=101, heartbeats={0: records.heartbeat(step=100)},
        exits={0: records.exit("succeeded", at=100, step=100)},
    )  # fmt: skip
    history = records.history(one, generations=(records.generation(1),), finished=records.finished(at=102))
    found = timeline(history, records.at(1000))
    assert seconds(found) == {"launching": 10, "unknown": 90}
    assert found.goodput == 0


def test_another_machines_phases_count_for_nothing(records, story):
    beats = {0: story.beat(9, *life(1, setup=15, run=20, loop=25))}
    history = records.history(records.launch(1, heartbeats=beats), generations=(records.generation(1),))
    assert seconds(timeline(history, records.at(50))) == {"launching": 10, "unknown": 40}


def test_survivors_that_go_on_restore_from_where_the_first_trainer_was_over(records, story):
    first = [*life(1, setup=12, run=20, loop=25, over=60), ("restoring", 1, 61), ("running", 2, 66)]
    one = records.launch(
        1,
        intent=records.intent(1, num_nodes=2),
        heartbeats={
            0: story.beat(1, *first, ("training", 2, 70), step=55),
            1: story.beat(1, *life(1, setup=15, run=21, loop=26), rank=1, step=50, at=58),
        },
    )
    generations = (
        records.generation(1, ranks=(0, 1), at=20),
        records.generation(2, at=65, restored=(1, 40)),
    )
    commits = (records.commit(1, 40, sealed=50),)
    history = records.history(one, generations=generations, commits=commits)
    found = timeline(history, records.at(90))
    assert spans(found, records) == [
        ("launching", 0, 10),
        ("setup", 10, 15),
        ("restoring", 15, 21),
        ("starting", 21, 26),
        ("training", 26, 50),
        ("lost", 50, 60),  # Node 1 fell silent before; nobody knows when.
        ("saving", 60, 61),
        ("restoring", 61, 66),
        ("starting", 66, 70),
        ("training", 70, 90),
    ]


def failed(records, story, *, step, commits):
    one = records.launch(
        1, outcome="failed", ended=62, exits={0: records.exit("failed", at=61, step=step)},
        heartbeats={0: story.beat(1, *life(1, setup=15, run=20, loop=25, over=60))},
    )  # fmt: skip
    return records.history(
        one,
        generations=(records.generation(1, at=20),),
        commits=commits,
        finished=records.finished("failed", at=63),
    )


@pytest.mark.parametrize(
    ("step", "has_commit", "expected"),
    [
        (47, True, {"training": 25, "lost": 10}),
        (47, False, {"lost": 35}),
        (40, True, {"training": 25, "saving": 11}),
    ],
)
def test_of_a_job_that_failed_what_is_in_no_checkpoint_is_lost(records, story, step, has_commit, expected):
    commits = (records.commit(1, 40, sealed=50, at=51),) if has_commit else ()
    found = seconds(timeline(failed(records, story, step=step, commits=commits), records.at(1000)))
    assert {"saving": 1, **expected} | {
        "launching": 10,
        "setup": 5,
        "restoring": 5,
        "starting": 5,
        "waiting": 2,
    } == found


def test_a_script_without_a_session_trains_from_its_start(records, story):
    beats = {0: story.beat(1, *life(1, setup=15, run=20), has_session=False)}
    history = records.history(records.launch(1, heartbeats=beats), generations=(records.generation(1),))
    assert seconds(timeline(history, records.at(50)))["training"] == 30


def test_launches_that_were_refused_are_launching_and_then_waiting(records):
    history = records.history(records.capacity(1, at=5), records.capacity(2, at=20))
    found = timeline(history, records.at(30))
    assert seconds(found) == {"queued": 5, "waiting": 25}


def test_a_job_before_its_first_launch_is_queued(records):
    found = timeline(records.history(), records.at(30))
    assert (seconds(found), found.goodput) == ({"queued": 30}, 0)
    assert timeline(records.history(), records.at(0)).goodput is None


def test_a_job_in_its_setup(records, story):
    one = records.launch(1, heartbeats={0: records.heartbeat(state="setup", generation=0)})
    assert seconds(timeline(records.history(one), records.at(30))) == {"launching": 10, "setup": 20}


def test_nodes_that_are_all_over_end_the_job_where_no_controller_saw_it(records, story):
    history = reclaimed_once(records, story, finished=None)
    launches = (history.launches[0], records.change(history.launches[1], certificates={}))
    found = timeline(records.change(history, launches=launches), records.at(5000))
    assert found.total_seconds == 182


def several(records, story, *launches, least=1, **changes):
    spec = {"name": "digits", "run": {"entrypoint": "train.py"}, "nodes": {"min": least, "max": 4}}
    return records.history(
        *launches, submission=records.change(records.history().submission, spec=spec), **changes
    )


def handed_over(records, story, *, generations=3, least=1):
    """Node 1.0 trains from 25 s. Node 2.0, bought at 40 s, joins at 80 s; 1.0 is drained for good at 120 s."""
    joining = [("uploading", 1, 72), ("restoring", 1, 74), ("running", 2, 81), ("training", 2, 85)]
    first = [*life(1, setup=15, run=20, loop=25), *joining, ("uploading", 2, 120)]
    second = [
        ("setup", 0, 55), ("restoring", 0, 60), ("ready", 0, 65), ("running", 2, 82), ("training", 2, 86),
        ("uploading", 2, 121), ("restoring", 2, 123), ("running", 3, 126), ("training", 3, 130),
    ]  # fmt: skip
    one = records.launch(
        1,
        intent=records.intent(1, at=2),
        heartbeats={0: story.beat(1, *first, step=40)},
        exits={0: records.exit("drained", at=124, generation=2, step=60)},
    )
    two = records.launch(
        2,
        intent=records.intent(2, at=40),
        slots={0: records.slot("i-2-0", at=50)},
        heartbeats={0: story.beat(2, *second, step=70)},
    )
    written = (
        records.generation(1, at=20),
        records.generation(2, seats=[(1, 0), (2, 0)], restored=(1, 40), at=80),
        records.generation(3, launch=2, restored=(2, 60), at=125),
    )
    commits = (records.commit(1, 40, sealed=71, at=73), records.commit(2, 60, sealed=119, at=122))
    return several(
        records,
        story,
        one,
        two,
        least=least,
        generations=written[:generations],
        commits=commits[:generations],
    )


def test_while_nodes_train_the_job_trains_whatever_newcomers_do(records, story):
    found = timeline(handed_over(records, story), records.at(150))
    assert spans(found, records) == [
        ("queued", 0, 2),
        ("launching", 2, 10),
        ("setup", 10, 15),
        ("restoring", 15, 20),
        ("starting", 20, 25),
        ("training", 25, 71),
        ("lost", 71, 72),
        ("saving", 72, 74),
        ("restoring", 74, 82),
        ("starting", 82, 86),
        ("training", 86, 119),
        ("lost", 119, 120),
        ("saving", 120, 123),
        ("restoring", 123, 126),
        ("starting", 126, 130),
        ("training", 130, 150),
    ]
    newcomer = found.nodes[1]
    assert newcomer.seat == (2, 0)
    assert [(one.state, one.seconds) for one in newcomer.spans][:4] == [
        ("launching", 10), ("setup", 10), ("restoring", 5), ("standby", 17),
    ]  # fmt: skip


def test_too_few_nodes_hold_until_there_are_enough(records, story):
    first = [*life(1, setup=15, run=20, loop=25, over=60), ("restoring", 1, 62), ("ready", 1, 64)]
    third = [("running", 3, 111), ("training", 3, 115)]
    one = records.launch(
        1,
        intent=records.intent(1, num_nodes=2),
        heartbeats={
            0: story.beat(1, *first, *third, step=55),
            1: story.beat(1, *life(1, setup=15, run=20, loop=25), rank=1, step=55),
        },
        certificates={"i-1-1": records.certificate("i-1-1", rank=1, ended=59)},
    )
    phases = [("restoring", 0, 90), ("ready", 0, 95), *third]
    two = records.launch(
        2,
        intent=records.intent(2, at=66),
        slots={0: records.slot("i-2-0", at=80)},
        heartbeats={0: story.beat(2, *phases, step=55)},
    )
    generations = (
        records.generation(1, ranks=(0, 1), at=20),
        records.generation(2, restored=(1, 50), at=65, why="regrouped"),
        records.generation(3, seats=[(1, 0), (2, 0)], restored=(1, 50), at=110, why="joined"),
    )
    history = several(
        records,
        story,
        one,
        two,
        least=2,
        generations=generations,
        commits=(records.commit(1, 50, sealed=58),),
    )
    found = timeline(history, records.at(140))
    assert spans(found, records)[4:] == [
        ("training", 25, 58),
        ("lost", 58, 59),
        ("saving", 59, 62),
        ("restoring", 62, 65),
        ("holding", 65, 111),
        ("starting", 111, 115),
        ("training", 115, 140),
    ]
    held = [(one.state, one.seconds) for one in found.nodes[0].spans]
    assert held[-3:] == [("holding", 46), ("starting", 4), ("training", 25)]
    # While they hold, the job holds, though the newcomer is ready.
    before = timeline(records.change(history, generations=generations[:2]), records.at(100))
    assert spans(before, records)[-1] == ("holding", 65, 100)
    assert before.stretches[1].started is None


def test_between_generations_without_a_node_in_common_the_newcomers_tell_what_the_job_does(records, story):
    """Node 1.0 is lost at 60 s while 2.0, bought ahead, still boots; a third launch is refused meanwhile."""
    one = records.launch(
        1,
        outcome="lost",
        ended=60,
        heartbeats={0: story.beat(1, *life(1, setup=15, run=20, loop=25), step=40)},
    )
    two = records.launch(
        2,
        intent=records.intent(2, at=40),
        slots={0: records.slot("i-2-0", at=70)},
        heartbeats={0: story.beat(2, *life(2, setup=80, run=90, loop=95), step=50)},
    )
    history = several(
        records,
        story,
        one,
        two,
        records.capacity(3, at=65),
        generations=(records.generation(1, at=20), records.generation(2, launch=2, at=85)),
    )
    assert spans(timeline(history, records.at(100)), records)[-6:] == [
        ("lost", 25, 60),
        ("launching", 60, 70),
        ("setup", 70, 80),
        ("restoring", 80, 90),
        ("starting", 90, 95),
        ("training", 95, 100),
    ]


def test_a_drain_before_too_few_nodes_held_has_lost_nothing(records, story):
    history = handed_over(records, story)
    phases = [*life(1, setup=15, run=20, loop=25, over=60), ("restoring", 1, 62)]
    exits = {0: records.exit("drained", at=61, step=40, reached_step=40)}
    one = records.change(history.launches[0], heartbeats={0: story.beat(1, *phases, step=40)}, exits=exits)
    generations = (
        records.generation(1, at=20),
        records.generation(2, launch=2, restored=(1, 40), at=65),
        records.generation(3, seats=[(2, 0), (3, 0)], restored=(1, 40), at=90),
    )
    history = several(
        records, story, one, history.launches[1], records.launch(3), least=1,
        generations=generations, commits=(records.commit(1, 40, sealed=55),),
    )  # fmt: skip
    assert timeline(history, records.at(99)).stretches[0].was_drained is False
    spec = {**history.submission.spec, "nodes": {"min": 2, "max": 4}}
    wide = records.change(
        history,
        submission=records.change(history.submission, spec=spec),
        generations=(records.generation(1, seats=[(1, 0), (4, 0)], at=20), *generations[1:]),
        launches=(
            *history.launches,
            records.launch(
                4,
                exits={
                    0: records.exit("drained", launch=4, instance_id="i-4-0", at=61, step=40, reached_step=40)
                },
            ),
        ),
    )
    assert timeline(wide, records.at(99)).stretches[0].was_drained is True


@pytest.mark.full
@given(st.lists(st.integers(0, 100), max_size=20), st.integers(0, 100))
def test_whatever_the_clocks_say_spans_follow_each_other_and_fill_the_time(moments, length):
    def at(seconds):
        return START + timedelta(seconds=seconds)

    marks = [Span("queued", at(0), at(0)), *(Span(str(n), at(m), at(m)) for n, m in enumerate(moments))]
    found = between(marks, at(length))
    assert sum(one.seconds for one in found) == length
    assert all(one.seconds > 0 for one in found)
    assert all(one.end == after.start for one, after in itertools.pairwise(found))


def test_a_finished_jobs_time_does_not_grow_until_a_driver_writes_its_end_down(records, story):
    late = timeline(reclaimed_once(records, story, finished=records.finished(at=90_000)), records.at(99_999))
    assert late == timeline(reclaimed_once(records, story, finished=None), records.at(99_999))
    assert (late.total_seconds, late.goodput) == (182, pytest.approx(128 / 182))
