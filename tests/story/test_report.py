import json

import pytest

from cloudspot.jobstore.journal.lineage import head
from cloudspot.jobstore.layout.records import CheckpointId, Final, Phase, Skipped
from cloudspot.story.progress import StepsLost, steps_lost, steps_lost_by
from cloudspot.story.report import show_json, summarise


@pytest.fixture
def reclaimed_once(records):
    """Return a job that drained at step 40, resumed there, and succeeded at step 100."""
    first = records.launch(
        1,
        outcome="reclaimed",
        exits={0: records.exit("drained", step=40, committed=CheckpointId(1, 40), at=1810.0)},
        notices={0: records.notice(at=1800.0, step=37)},
        heartbeats={0: records.heartbeat(step=37, steps_total=100, metrics={"loss": 2.0})},
        certificates={"i-1-0": records.certificate(started=0.0, ended=1800.0, end_reason="reclaimed")},
    )
    last_word = records.exit(
        "succeeded",
        instance_id="i-2-0",
        launch=2,
        generation=2,
        restored_step=40,
        step=100,
        final=Final(step=100, weights_sha256="ab" * 32, metrics={"accuracy": 0.9}),
    )
    second = records.launch(
        2,
        outcome="succeeded",
        intent=records.intent(2, at=1820.0, offer=records.offer("b", price=2.0), why="reclaimed"),
        exits={0: last_word},
        heartbeats={0: records.heartbeat(instance_id="i-2-0", generation=2, step=99, steps_total=100)},
        certificates={"i-2-0": records.certificate("i-2-0", launch=2, started=1900.0, ended=3700.0)},
    )
    return records.history(
        first,
        second,
        generations=(records.generation(1), records.generation(2, launch=2, restored=(1, 40))),
        commits=(records.commit(1, 20), records.commit(1, 40), records.commit(2, 100)),
        finished=records.finished(at=3701.0),
    )


def test_show_tells_the_whole_story_of_a_job(records, reclaimed_once):
    report = show_json(reclaimed_once, records.at(9999.0))
    assert {key: report[key] for key in ("id", "name", "provider", "state", "exit_code")} == {
        "id": "digits-1",
        "name": "digits",
        "provider": "sim",
        "state": "succeeded",
        "exit_code": 0,
    }
    assert [(one["launch"], one["zone"], one["outcome"], one["why"]) for one in report["launches"]] == [
        (1, "a", "reclaimed", "first"),
        (2, "b", "succeeded", "reclaimed"),
    ]
    assert [(node["name"], node["state"], node["outcome"], node["spent"]) for node in report["nodes"]] == [
        ("1.0", "ended", "drained", 0.5),
        ("2.0", "ended", "succeeded", 1.0),
    ]
    assert [(one["node"], one["launch"], one["step"]) for one in report["notices"]] == [("1.0", 1, 37)]
    assert (report["step"], report["steps_total"], report["steps_lost"]) == (100, 100, 0)
    assert report["steps_lost_is_exact"] is True
    assert report["last_commit"] == {
        "generation": 2,
        "step": 100,
        "verified": None,
        "bytes": 1000,
        "shared_bytes": 0,
        "evidence": None,
        "rescue": None,
    }
    assert report["cost"] == {
        "spent": 1.5,
        "on_demand_equivalent": 3.0,
        "currency": "USD",
        "others": {},
        "machine_seconds": 3600.0,
        "purposes": {
            "starting": {"seconds": 20.0, "spent": 0.005556},
            "standby": {"seconds": 0.0, "spent": 0.0},
            "holding": {"seconds": 0.0, "spent": 0.0},
            "training": {"seconds": 3580.0, "spent": 1.494444},
            "lost": {"seconds": 0.0, "spent": 0.0},
            "kept": {"seconds": 0.0, "spent": 0.0},
            "transfer": {"seconds": 0.0, "spent": 0.0},
        },
    }
    assert report["final"] == {
        "step": 100,
        "weights_sha256": "ab" * 32,
        "are_weights_sharded": False,
        "metrics": {"accuracy": 0.9},
    }
    assert report["metrics"] == {"accuracy": 0.9}
    assert report["warnings"] == []
    assert report["generations"][1]["restored"] == {"generation": 1, "step": 40}
    assert json.loads(json.dumps(report)) == report


def test_the_callers_look_at_the_last_checkpoint_is_shown(records, reclaimed_once):
    report = show_json(reclaimed_once, records.at(9999.0), verified=True)
    assert report["last_commit"] == {
        "generation": 2,
        "step": 100,
        "verified": True,
        "bytes": 1000,
        "shared_bytes": 0,
        "evidence": None,
        "rescue": None,
    }


def test_a_job_that_has_just_been_submitted_has_nothing_to_show(records):
    report = show_json(records.history(), records.at(1.0))
    assert (report["state"], report["exit_code"], report["nodes"]) == ("queued", None, [])
    assert (report["last_commit"], report["final"], report["steps_total"]) == (None, None, None)
    assert report["cost"]["spent"] == 0.0


def test_a_success_that_nobody_has_written_down_has_status_0(records):
    launch = records.launch(exits={0: records.exit("succeeded", step=8)})
    history = records.history(launch, generations=(records.generation(1),))
    report = show_json(history, records.at(200.0))
    assert (report["state"], report["exit_code"]) == ("succeeded", 0)


def test_a_loop_that_the_script_left_is_told_with_its_steps(records):
    final = Final(step=20, weights_sha256="ab" * 32, metrics={}, left_early=True, planned=100)
    other = Final(step=20, weights_sha256=None, metrics={})  # only the node of rank 0 knows
    launch = records.launch(
        1,
        intent=records.intent(num_nodes=2),
        exits={
            0: records.exit("succeeded", step=20, final=other),
            1: records.exit("succeeded", rank=1, instance_id="i-1-1", step=20, final=final),
        },
        heartbeats={0: records.heartbeat(step=20, steps_total=20)},
    )
    report = show_json(
        records.history(
            launch, generations=(records.generation(1, ranks=(0, 1)),), commits=(records.commit(1, 20),)
        ),
        records.at(2000.0),
    )
    assert (report["step"], report["steps_total"]) == (20, 100)
    assert (report["state"], report["detail"]) == (
        "succeeded",
        "the script left its loop after 20 of 100 steps",
    )


def test_a_launch_that_was_refused_has_no_nodes(records):
    history = records.history(records.capacity(1, at=0.0), records.launch(2))
    report = show_json(history, records.at(100.0))
    assert [one["name"] for one in report["nodes"]] == ["2.0"]
    assert [one["outcome"] for one in report["launches"]] == ["capacity", None]


def test_steps_between_the_last_checkpoint_and_a_loss_are_lost(records):
    lost = records.launch(1, outcome="lost", heartbeats={0: records.heartbeat(step=47)})
    history = records.history(
        lost,
        records.launch(2),
        generations=(records.generation(1), records.generation(2, launch=2, restored=(1, 40))),
        commits=(records.commit(1, 40),),
    )
    assert steps_lost(history) == StepsLost(7, is_exact=False)


def test_zero_steps_lost_by_a_machine_that_died_without_a_word_is_told_as_the_least(records):
    """Two steps were made again: the last heartbeat was 5 s old, and of the step of the last checkpoint."""
    lost = records.launch(1, outcome="lost", heartbeats={0: records.heartbeat(step=40)})
    history = records.history(
        lost,
        records.launch(2),
        generations=(records.generation(1), records.generation(2, launch=2, restored=(1, 40))),
        commits=(records.commit(1, 40),),
    )
    report = show_json(history, records.at(200.0))
    assert (report["steps_lost"], report["steps_lost_is_exact"]) == (0, False)
    assert [(one["steps_lost"], one["steps_lost_is_exact"]) for one in report["generations"]] == [
        (0, False),
        (0, True),
    ]


def test_the_last_word_of_a_node_makes_the_steps_lost_exact(records):
    said = records.exit("failed", step=45, reached_step=46, generation=1)
    history = records.history(
        records.launch(1, outcome="failed", exits={0: said}, heartbeats={0: records.heartbeat(step=41)}),
        records.launch(2),
        generations=(records.generation(1), records.generation(2, launch=2, restored=(1, 40))),
        commits=(records.commit(1, 40),),
    )
    assert steps_lost(history) == StepsLost(6, is_exact=True), "the step under way is made again too"
    elsewhere = records.change(said, generation=2)
    other = records.change(history.launches[0], exits={0: elsewhere})
    history = records.change(history, launches=(other, history.launches[1]))
    assert steps_lost(history) == StepsLost(1, is_exact=False)


def regrouped(records, *exits, **beats):
    """Return a job of three nodes that went on at step 40 in their launch; ``n0=47``: node 0 had reached 47."""
    told = {}
    for name, reached_step in beats.items():
        phases = (
            Phase(state="running", generation=1, at=records.at(1)),
            Phase(state="uploading", generation=1, reached_step=reached_step, at=records.at(2)),
            Phase(state="running", generation=2, at=records.at(3)),
        )
        instance_id = f"i-1-{name[1:]}"
        told[int(name[1:])] = records.heartbeat(instance_id=instance_id, generation=2, step=60, phases=phases)
    return records.history(
        records.launch(
            1,
            intent=records.intent(num_nodes=3),
            heartbeats=told,
            exits={one.rank: one for one in exits},
        ),
        generations=(records.generation(1, ranks=(0, 1, 2)), records.generation(2, restored=(1, 40))),
        commits=(records.commit(1, 40),),
    )


def test_nodes_that_go_on_say_themselves_how_far_they_were(records):
    assert steps_lost(regrouped(records, n0=47, n1=48, n2=47)) == StepsLost(8, is_exact=True)


def test_a_member_that_has_told_nothing_may_have_been_ahead_of_the_others(records):
    assert steps_lost(regrouped(records, n0=47, n1=48)) == StepsLost(8, is_exact=False)
    said = records.exit("failed", rank=2, instance_id="i-1-2", step=48, reached_step=49)
    assert steps_lost(regrouped(records, said, n0=47, n1=48)) == StepsLost(9, is_exact=True)
    other = records.change(said, instance_id="i-other")
    assert steps_lost(regrouped(records, other, n0=47, n1=48)) == StepsLost(8, is_exact=False)


def test_a_generation_that_never_trained_has_lost_nothing(records):
    """A node that left it while it restored reports the restored step, not that of the generation before."""
    history = regrouped(records, n0=47, n1=47, n2=47)
    left = records.exit("left", generation=2, restored_step=40, step=40, reached_step=40)
    launch = records.change(history.launches[0], exits={0: left})
    history = records.change(
        history,
        launches=(launch, records.launch(2)),
        generations=(*history.generations, records.generation(3, launch=2, restored=(1, 40))),
    )
    assert [steps_lost_by(history, number) for number in (1, 2)] == [
        StepsLost(7, is_exact=True),
        StepsLost(0, is_exact=True),
    ]


def test_steps_lost_add_up_over_restarts_and_start_from_what_was_restored(records):
    crashed = records.launch(
        1, outcome="failed", exits={0: records.exit("failed", generation=2, restored_step=40, step=45)}
    )
    history = records.history(
        crashed,
        records.launch(2),
        generations=(
            records.generation(1),
            records.generation(2, restored=(1, 40)),
            records.generation(3, launch=2, restored=None),
        ),
        commits=(records.commit(1, 40), records.commit(1, 50)),
    )
    # Generation 1 committed 50 and went on from 40; generation 2 reached 45, and 3 starts anew.
    assert steps_lost(history) == StepsLost(10 + 45, is_exact=False)


def test_a_notice_tells_of_steps_that_no_heartbeat_knew(records):
    lost = records.launch(
        1,
        outcome="reclaimed",
        heartbeats={0: records.heartbeat(step=41)},
        notices={0: records.notice(step=44)},
    )
    history = records.history(
        lost,
        records.launch(2),
        generations=(records.generation(1), records.generation(2, launch=2, restored=(1, 40))),
        commits=(records.commit(1, 40),),
    )
    assert steps_lost(history) == StepsLost(4, is_exact=False)


@pytest.fixture
def sessionless(records):
    """Return a script's job without a session: lost after checkpoint 175, resumed, and succeeded at 500."""
    first = records.launch(1, outcome="lost", heartbeats={0: records.heartbeat(has_session=False)})
    last_word = records.exit(
        "succeeded", instance_id="i-2-0", launch=2, generation=2, restored_step=175, step=175,
        has_session=False, final=Final(step=None, weights_sha256=None, metrics={}),
    )  # fmt: skip
    return records.history(
        first,
        records.launch(2, outcome="succeeded", exits={0: last_word}),
        generations=(records.generation(1), records.generation(2, launch=2, restored=(1, 175))),
        commits=(records.commit(1, 175), records.commit(2, 500)),
    )


def test_of_a_script_without_a_session_only_its_checkpoints_are_known(records, sessionless):
    report = show_json(sessionless, records.at(9999.0))
    assert (report["step"], report["steps_total"], report["steps_lost"]) == (500, None, None)
    assert report["steps_lost_is_exact"] is False
    assert report["final"] == {
        "step": 500,
        "weights_sha256": None,
        "are_weights_sharded": False,
        "metrics": {},
    }
    assert summarise(sessionless, records.at(9999.0)).steps_total is None


def test_a_script_without_a_session_that_was_never_started_again_has_lost_nothing(records):
    launch = records.launch(heartbeats={0: records.heartbeat(has_session=False)})
    assert steps_lost(records.history(launch, generations=(records.generation(1),))) == StepsLost(
        0, is_exact=True
    )


@pytest.mark.parametrize(
    ("outcome", "steps", "lost"),
    [
        ("stopped", 133, StepsLost(33, is_exact=True)),
        ("failed", 101, StepsLost(1, is_exact=True)),
        ("succeeded", 100, StepsLost(0, is_exact=True)),
    ],
)
def test_steps_in_no_checkpoint_of_a_job_that_is_over_are_lost(records, outcome, steps, lost):
    """A stop that saved nothing was "0 lost"."""
    word = records.exit(outcome, step=steps)
    history = records.history(
        records.launch(outcome=outcome, exits={0: word}),
        generations=(records.generation(1),),
        commits=(records.commit(1, 100),),
        finished=records.finished(outcome),
    )
    assert steps_lost(history) == lost
    silent = records.change(history, launches=(records.change(history.launches[0], exits={}),))
    assert steps_lost(silent) == StepsLost(0, is_exact=outcome == "succeeded")
    word = records.change(word, has_session=False)
    unknown = records.change(history, launches=(records.change(history.launches[0], exits={0: word}),))
    assert steps_lost(unknown) == (lost if outcome == "succeeded" else None)


def test_a_session_that_was_not_yet_opened_again_has_lost_what_it_had_begun(records, sessionless):
    first, second = sessionless.launches
    first = records.change(first, heartbeats={0: records.heartbeat(step=180)})
    assert steps_lost(records.change(sessionless, launches=(first, second))) == StepsLost(5, is_exact=False)


def test_the_last_checkpoint_is_the_one_resumed_from_and_not_a_later_one_that_was_passed_over(records):
    commits = (records.commit(1, 40), records.commit(1, 90))
    first, second = records.generation(1), records.generation(2, launch=2, restored=(1, 40))
    history = records.history(
        records.launch(1, outcome="lost"),
        records.launch(2),
        generations=(first, second),
        commits=commits,
        head=head((first, *commits, second)),
    )
    last = show_json(history, records.at(200.0))["last_commit"]
    assert (last["generation"], last["step"]) == (1, 40)


def test_warnings_name_skipped_checkpoints_and_what_nodes_say_each_once(records):
    skipped = (Skipped(checkpoint=CheckpointId(1, 50), reason="chunk 3 differs"),)
    history = records.history(
        records.launch(heartbeats={0: records.heartbeat(warnings=("uploads are slow", "uploads are slow"))}),
        generations=(records.generation(1, skipped=skipped),),
    )
    assert show_json(history, records.at(100.0))["warnings"] == [
        "checkpoint 1-50 did not verify and was skipped: chunk 3 differs",
        "uploads are slow",
    ]


def test_the_summary_is_what_ps_needs(records, reclaimed_once):
    summary = summarise(reclaimed_once, records.at(9999.0))
    assert (summary.job_id, summary.provider, summary.state) == ("digits-1", "sim", "succeeded")
    assert (summary.step, summary.steps_total, summary.starts) == (100, 100, 2)
    assert (summary.spent, summary.currency, summary.metrics) == (1.5, "USD", {"accuracy": 0.9})
    assert (summary.submitted_at, summary.at) == (records.at(0), records.at(9999.0))


def test_the_detail_says_where_an_open_launch_is_and_why_a_closed_one_ended(records):
    assert summarise(records.history(records.launch()), records.at(1)).detail == "launch 1: big in a (spot)"
    closed = records.history(records.launch(outcome="failed", detail="exit status 3"))
    assert summarise(closed, records.at(1)).detail == "launch 1 failed: exit status 3"


def test_a_machine_that_only_ends_the_script_hides_no_metrics(records, reclaimed_once):
    """The loop had ended on the machine before; the last one resumed after its last step, and logged nothing."""
    first, second = reclaimed_once.launches
    final = Final(step=100, weights_sha256="ab" * 32, metrics={})
    last = records.change(second.exits[0], final=final)
    history = records.change(reclaimed_once, launches=(first, records.change(second, exits={0: last})))
    report = show_json(history, records.at(9999.0))
    assert report["metrics"] == report["final"]["metrics"] == {"loss": 2.0}


def test_what_ended_a_job_is_told_before_any_driver_has_written_it_down(records):
    last_word = records.exit("failed", permanent=True, detail="train.py ended with 3", exit_code=3)
    failed = show_json(records.history(records.launch(exits={0: last_word})), records.at(200))
    assert [failed[key] for key in ("state", "detail", "exit_code")] == ["failed", "train.py ended with 3", 3]
    stopped = records.history(
        records.launch(exits={0: records.exit("stopped")}),
        stop=records.stop("max_cost", detail="4 of 5 spent"),
    )
    told = show_json(stopped, records.at(200))
    assert [told[key] for key in ("state", "detail", "exit_code", "stop_detail")] == [
        "stopped",
        "limits.max_cost was reached: 4 of 5 spent",
        1,
        "4 of 5 spent",
    ]


def test_a_launchs_money_is_that_of_all_its_machines_also_of_one_too_many(records):
    certificates = {
        "i-1-0": records.certificate("i-1-0", started=0.0, ended=3600.0),
        "i-stray": records.certificate("i-stray", rank=None, started=0.0, ended=1800.0),
    }
    value = show_json(records.history(records.launch(certificates=certificates)), records.at(9999))
    assert [one["spent"] for one in value["launches"]] == [1.5]
    assert [(one["name"], one["seconds"], one["spent"]) for one in value["nodes"]] == [("1.0", 3600.0, 1.0)]
    assert [(one["instance_id"], one["node"]) for one in value["ledger"]] == [
        ("i-1-0", "1.0"),
        ("i-stray", None),
    ]


def test_a_node_is_told_with_its_state_and_how_it_ended(records):
    launch = records.launch(
        1,
        intent=records.intent(num_nodes=5),
        slots={
            **{rank: records.slot(f"i-1-{rank}") for rank in range(4)},
            4: records.slot(detail="voided: late"),
        },
        heartbeats={1: records.heartbeat(instance_id="i-1-1", state="ready")},
        exits={2: records.exit("left", rank=2, instance_id="i-1-2", at=90, detail="too few")},
        certificates={"i-1-3": records.certificate("i-1-3", rank=3, ended=80, end_reason="reclaimed")},
    )
    nodes = show_json(records.history(launch), records.at(200))["nodes"]
    assert [(one["name"], one["state"], one["outcome"], one["detail"]) for one in nodes] == [
        ("1.0", "claimed", None, ""),
        ("1.1", "ready", None, ""),
        ("1.2", "ended", "left", "too few"),
        ("1.3", "ended", "reclaimed", ""),
    ]
    assert [one["ended"] for one in nodes[2:]] == [records.at(90).isoformat(), records.at(80).isoformat()]


def test_a_launch_is_told_with_why_it_was_made_and_for_whom(records):
    intent = records.intent(2, num_nodes=2, why="moved", stands_in_for=(None, (1, 0)))
    intent = records.change(intent, detail="spot is back at 0.3")
    [_, launch] = show_json(
        records.history(records.launch(1), records.launch(2, intent=intent)), records.at(50)
    )["launches"]
    assert {name: launch[name] for name in ("num_nodes", "stands_in_for", "why", "detail")} == {
        "num_nodes": 2,
        "stands_in_for": [None, "1.0"],
        "why": "moved",
        "detail": "spot is back at 0.3",
    }
    assert (launch["outcome"], launch["outcome_detail"], launch["ended"]) == (None, "", None)


def test_too_few_nodes_are_said_to_hold(records):
    spec = {"name": "digits", "run": {"entrypoint": "train.py"}, "nodes": {"min": 2, "max": 3}}
    history = records.history(
        records.launch(1, intent=records.intent(num_nodes=2)),
        submission=records.change(records.history().submission, spec=spec),
        generations=(records.generation(1, ranks=(0, 1)), records.generation(2, ranks=(0,), at=30)),
    )
    value = show_json(history, records.at(100))
    assert (value["state"], value["nodes_min"], value["nodes_max"]) == ("holding", 2, 3)
    assert value["detail"] == ("1 of the 2 nodes that the training needs; launch 1: big in a (spot)")
    assert [one["is_holding"] for one in value["generations"]] == [False, True]
    assert [one["steps_lost_is_exact"] for one in value["generations"]] == [False, True]
    assert value["cost"]["purposes"]["holding"]["seconds"] == 70.0
    summary = summarise(history, records.at(100))
    assert (summary.starts, summary.num_nodes, summary.max_nodes) == (2, 1, 3)


def test_the_metrics_are_the_first_members_and_not_a_newcomers(records):
    told = {0: records.heartbeat(metrics={"loss": 1.0})}
    other = {0: records.heartbeat(instance_id="i-2-0", metrics={"loss": 9.0})}
    history = records.history(
        records.launch(1, heartbeats=told),
        records.launch(2, heartbeats=other),
        generations=(records.generation(1, seats=[(1, 0), (2, 0)]),),
    )
    assert show_json(history, records.at(100))["metrics"] == {"loss": 1.0}


def test_money_of_several_providers_is_told_apart_and_added_up_by_currency(records):
    yuan = records.offer(price=7.2, currency="CNY")
    histories = [
        records.launch(1, certificates={"i-1-0": records.certificate(started=0, ended=3600)}),
        records.launch(
            2,
            intent=records.intent(2, offer=yuan),
            certificates={"i-2-0": records.certificate("i-2-0", launch=2, started=0, ended=1800)},
        ),
    ]
    history = records.history(*histories)
    cost = show_json(history, records.at(9000))["cost"]
    assert (cost["spent"], cost["currency"], cost["others"]) == (3.6, "CNY", {"USD": 1.0})
    assert cost["machine_seconds"] == 5400
    summary = summarise(history, records.at(9000))
    assert (summary.spent, summary.currency, summary.others) == (3.6, "CNY", {"USD": 1.0})
    assert [line["currency"] for line in show_json(history, records.at(9000))["ledger"]] == ["USD", "CNY"]
