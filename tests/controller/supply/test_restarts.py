import pytest

from cloudspot.controller.actions import Postpone
from cloudspot.controller.supply.restarts import (
    FREE_RECLAIMS,
    MAX_DELAY_SECONDS,
    Buy,
    after_losses,
    made_progress,
)
from cloudspot.story.outcomes import JobEnd


def run(records, *outcomes, at=10_000.0, generations=(), commits=(), max_restarts=3, **last):
    launches = [
        records.launch(number, outcome=outcome, ended=100.0 * number)
        for number, outcome in enumerate(outcomes, start=1)
    ]
    if last:
        launches[-1] = records.change(launches[-1], **last)
    history = records.history(*launches, generations=generations, commits=commits)
    return after_losses(records.spec(limits={"max_restarts": max_restarts}), history, records.at(at))


def test_reclaims_are_relaunched_at_once(records):
    assert run(records, "reclaimed", at=100.0) == Buy("reclaimed")
    assert run(records, *["reclaimed"] * FREE_RECLAIMS, at=300.0) == Buy("reclaimed")


def test_a_launch_that_got_some_of_its_machines_is_followed_by_one_for_the_others(records):
    launch = records.launch(intent=records.intent(num_nodes=2))
    slots = {**launch.slots, 1: records.slot(at=9, detail="capacity: none")}
    history = records.history(records.change(launch, slots=slots))
    assert after_losses(records.spec(), history, records.at(10)) == Buy("capacity")


def test_reclaims_never_end_the_job_but_many_without_a_checkpoint_are_slowed_down(records):
    many = ["reclaimed"] * 20
    assert run(records, *many, at=2000.0) == Postpone(MAX_DELAY_SECONDS, "reclaimed; trying again")
    assert run(records, *many, at=2600.0) == Buy("reclaimed")


@pytest.mark.parametrize("outcome", ["failed", "lost", "voided"])
def test_failures_are_relaunched_after_a_doubling_delay_until_there_are_too_many(records, outcome):
    assert run(records, outcome, at=100.0) == Postpone(10.0, f"{outcome}; trying again")
    assert run(records, outcome, at=110.0) == Buy(outcome)
    assert run(records, outcome, outcome, outcome, at=300.0) == Postpone(40.0, f"{outcome}; trying again")
    end = run(records, outcome, outcome, outcome, outcome)
    said = {"lost": "node 4.0 (i-4-0) vanished"}.get(outcome, outcome)
    assert end == JobEnd("failed", f"failed 4 times in a row: {said}", 1)


def test_without_restarts_the_first_failure_ends_the_job_with_the_scripts_own_status(records):
    end = run(records, "failed", max_restarts=0, exits={0: records.exit("failed", exit_code=7)})
    assert end == JobEnd("failed", "failed 1 times in a row: failed", 7)


def failing_setups(records, *launches):
    """Judge launches that have ended, each given by what its node's exit record differs in; None: it was reclaimed."""
    made = [
        records.launch(
            number,
            outcome="failed" if changes else "reclaimed",
            ended=100.0 * number,
            exits={0: records.exit("failed", instance_id=f"i-{number}-0", **{"generation": 0, **changes})}
            if changes
            else {},
        )
        for number, changes in enumerate(launches, start=1)
    ]
    return after_losses(records.spec(), records.history(*made), records.at(1e6))


NO_PYTHON = {"exit_code": 127, "detail": "setup failed with exit status 127: python: command not found"}
NO_NETWORK = {"exit_code": 1, "detail": "setup failed with exit status 1: no network"}


def test_two_setups_that_fail_with_the_same_error_end_the_job(records):
    """It took four machines to say so."""
    detail = f"failed twice in a row before the training began: {NO_PYTHON['detail']}"
    assert failing_setups(records, NO_PYTHON) == Buy("failed")
    assert failing_setups(records, NO_PYTHON, NO_PYTHON) == JobEnd("failed", detail, 127)
    assert failing_setups(records, NO_PYTHON, None, NO_PYTHON) == JobEnd("failed", detail, 127)


def test_what_differs_from_one_failure_to_the_next_alike_is_the_number_in_it(records):
    first, second = ({"detail": f"setup failed: apt-get: lock held by process {pid}"} for pid in (311, 977))
    assert isinstance(failing_setups(records, first, second), JobEnd)


def test_a_script_that_fails_twice_in_the_same_way_at_the_same_step_ends_the_job_on_any_machine(records):
    """Its node could not try it again, as the others had finished: it took 14 machines to give up."""
    cannot = {
        "exit_code": 7, "generation": 2, "restored_step": 60, "step": 60, "fingerprint": "exit status 7",
        "detail": "the training failed with exit status 7 after node 2.0 had finished",
    }  # fmt: skip
    again = {**cannot, "generation": 3, "detail": cannot["detail"].replace("2.0", "4.0")}
    end = JobEnd("failed", f"failed twice in a row at step 60: {again['detail']}", 7)
    assert failing_setups(records, cannot) == Buy("failed")
    assert failing_setups(records, cannot, again) == end
    assert failing_setups(records, cannot, None, again) == end
    for change in ({"step": 61}, {"fingerprint": "exit status 8"}, {"fingerprint": None}):
        assert failing_setups(records, cannot, {**again, **change}) == Buy("failed")


def test_two_nodes_in_a_row_that_reach_no_other_end_a_job_that_has_got_nowhere(records):
    """As behind a NetworkPolicy: so would the next."""

    def cut_off(number, **changes):
        detail = f"node {number}.1 does not reach node 1.0; a NetworkPolicy may deny it"
        fields = {"generation": number, "is_cut_off": True, "detail": detail, **changes}
        last = records.exit("failed", launch=number, instance_id=f"i-{number}-0", at=100.0 * number, **fields)
        return records.launch(number, ended=100.0 * number, exits={0: last})

    def verdict(*launches, **changes):
        return after_losses(records.spec(), records.history(*launches, **changes), records.at(1e6))

    end = verdict(cut_off(1), cut_off(2))
    assert isinstance(end, JobEnd)
    assert end.detail == (
        "failed twice in a row before the training began: "
        "node 2.1 does not reach node 1.0; a NetworkPolicy may deny it"
    )
    assert verdict(cut_off(1)) == Buy("failed")
    assert verdict(cut_off(1), cut_off(2, is_cut_off=False)) == Buy("failed")
    trained = [records.commit(1, 0, at=50.0)]
    assert verdict(cut_off(1), cut_off(2), commits=trained) == Buy("failed")
    assert verdict(cut_off(1), cut_off(2, step=3)) == Buy("failed"), "its nodes had reached one another"


def failing_boots(records, *causes):
    """Judge launches whose machines have said why they could not run the agent; None: one did not say."""
    made = [
        records.launch(
            number,
            outcome="voided",
            ended=100.0 * number,
            slots={
                0: records.slot(
                    None, detail="voided: it did not come up", cause=cause or "", at=100.0 * number
                )
            },
        )
        for number, cause in enumerate(causes, start=1)
    ]
    return after_losses(records.spec(), records.history(*made), records.at(1e6))


def test_two_machines_that_cannot_run_the_agent_for_the_same_cause_end_the_job(records):
    """Each further one would be paid for, too."""
    denied = "agents/1 cannot be fetched from s3://runs: S3 answered 403 AccessDenied"
    detail = f"failed twice in a row before the training began: {denied}"
    assert failing_boots(records, denied) == Buy("voided")
    assert failing_boots(records, denied, denied) == JobEnd("failed", detail, 1)
    assert failing_boots(records, denied, "no python3") == Buy("voided")
    assert failing_boots(records, None, None) == Buy("voided")


def test_setups_that_fail_with_different_errors_and_trainings_are_tried_on(records):
    assert failing_setups(records, NO_PYTHON, NO_NETWORK, NO_PYTHON) == Buy("failed")
    trained = {**NO_PYTHON, "generation": 1}
    assert failing_setups(records, NO_PYTHON, trained, NO_PYTHON) == Buy("failed")


def test_a_refusal_for_capacity_counts_neither_as_failure_nor_as_success(records):
    assert run(records, "failed", "failed", "capacity", "failed", "quota", at=1e6) == Buy("quota")
    assert isinstance(run(records, "failed", "failed", "capacity", "failed", "failed"), JobEnd)


def test_a_new_checkpoint_between_failures_starts_the_count_again(records):
    generations = [records.generation(n, launch=n) for n in range(1, 5)]
    committed = (records.commit(2, 50, at=150.0),)
    assert run(records, *["failed"] * 4, generations=generations, commits=committed) == Buy("failed")
    assert isinstance(run(records, *["failed"] * 5, generations=generations, commits=committed), JobEnd)


@pytest.mark.parametrize(
    ("outcome", "expected"), [("lost", Buy("lost")), ("failed", Postpone(10.0, "failed; trying again"))]
)
def test_a_machine_that_is_lost_after_a_new_checkpoint_is_replaced_at_once_and_counts(
    records, outcome, expected
):
    generations, committed = (records.generation(1),), (records.commit(1, 50),)
    kept = {"generations": generations, "commits": committed}
    assert run(records, outcome, at=100.0, **kept) == expected
    assert isinstance(run(records, outcome, at=100.0, max_restarts=0, **kept), JobEnd)
    # The one after it made none.
    assert run(records, outcome, "lost", at=200.0, **kept) == Postpone(20.0, "lost; trying again")


def test_the_restored_checkpoint_is_no_progress(records):
    generations = (records.generation(1), records.generation(2, launch=2, restored=(1, 50)))
    history = records.history(
        records.launch(1, outcome="reclaimed"),
        records.launch(2, outcome="reclaimed"),
        generations=generations,
        commits=(records.commit(1, 50),),
    )
    assert [made_progress(history, launch) for launch in history.launches] == [True, False]


def test_a_machine_that_was_reclaimed_before_its_claim_is_no_failure(records):
    taken = {"i-1-0": records.certificate(end_reason="reclaimed")}
    assert run(records, "voided", max_restarts=0, certificates=taken) == Buy("voided")


def test_nodes_that_fail_in_one_generation_have_failed_once(records):
    """They may be of several launches, as one took the place of another."""
    together = {0: records.exit("failed", instance_id="i-2-0", launch=2, generation=1, at=101.0)}
    assert run(records, "failed", "failed", exits=together, at=112.0) == Buy("failed")
    apart = {0: records.exit("failed", instance_id="i-2-0", launch=2, generation=2, at=101.0)}
    assert run(records, "failed", "failed", exits=apart, at=112.0) == Postpone(9.0, "failed; trying again")


def test_a_node_that_fails_after_the_others_have_succeeded_is_a_failure(records):
    """Otherwise such launches would follow one another without an end."""

    def half(number, at):
        exits = {
            0: records.exit(
                "succeeded", launch=number, instance_id=f"i-{number}-0", generation=number, at=at
            ),
            1: records.exit(
                *("failed",), launch=number, rank=1, instance_id=f"i-{number}-1", generation=number, at=at
            ),
        }
        slots = {rank: records.slot(f"i-{number}-{rank}", at=at - 40) for rank in (0, 1)}
        intent = records.intent(number, num_nodes=2, at=at - 50)
        return records.launch(number, intent=intent, slots=slots, exits=exits)

    launches = [half(number, 100.0 * number) for number in range(1, 6)]
    generations = tuple(records.generation(number, launch=number, ranks=(0, 1)) for number in range(1, 6))
    spec = records.spec(nodes=2, limits={"max_restarts": 3})
    history = records.history(*launches[:1], generations=generations[:1])
    assert isinstance(after_losses(spec, history, records.at(101.0)), Postpone)
    history = records.history(*launches, generations=generations)
    assert after_losses(spec, history, records.at(2000.0)).outcome == "failed"


def test_a_writers_clock_that_runs_ahead_does_not_stretch_the_delay(records):
    assert run(records, "failed", at=-5000.0) == Postpone(10.0, "failed; trying again")
