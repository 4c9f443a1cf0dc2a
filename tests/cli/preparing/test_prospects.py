"""What is said of a job before anything is bought, and what is refused: by real commands."""

import pytest
from support.records.jobclock import at

from cloudspot.controller.supply.experience import leave_experience
from cloudspot.jobstore.jobs.reader import HistoryReader, write_summary
from cloudspot.jobstore.layout import keys
from cloudspot.story.report import summarise

LONG = ["--set", "spot.length=48h"]
UNTOLD = "expected: unknown, because no job 'digits' has trained on such machines yet; for an estimate, set spot.length"


@pytest.fixture
def saving(jobs):
    """Jobs whose script has a session."""
    (jobs.job_file.parent / "train.py").write_text("import cloudspot.train\n")
    return jobs


def expected(jobs, *arguments):
    lines = jobs.run("plan", str(jobs.job_file), *arguments).stdout.splitlines()
    (found,) = [line for line in lines if line.startswith("expected: ")]
    return found


def test_a_job_of_which_nothing_is_known_is_told_how_to_say_its_length(saving):
    assert expected(saving) == UNTOLD
    assert saving.run_json("plan", str(saving.job_file))["forecast"] is None


@pytest.mark.full
def test_a_job_that_says_its_length_has_a_forecast_within_its_bounds(saving):
    line = expected(saving, *LONG)
    assert " USD (on demand: 48), ends in 2d " in line
    assert line.endswith("by 2d 00h of training (spot.length) and a usual market")
    found = saving.run_json("plan", str(saving.job_file), *LONG)["forecast"]
    assert 48 * 0.3 < found["cost_low"] < found["cost_high"] < found["on_demand_cost"]
    assert found["on_demand_cost"] == pytest.approx(48 + 5 / 60, abs=0.01)
    assert 48 * 3600 < found["end_seconds_low"] < found["end_seconds_high"]
    assert (found["earlier_job"], found["num_jobs"], found["late_share"]) == (None, 0, 0.0)


def test_on_demand_the_forecast_is_one_figure(saving):
    line = expected(saving, *LONG, "--set", "spot.policy=on-demand", "--set", "nodes=2")
    assert line.startswith("expected: 96 USD (on demand: 96), ends in 2d 00h, on demand for 2d 00h; ")


@pytest.mark.full
def test_an_earlier_job_of_the_name_tells_the_length(saving):
    job_id = saving.reclaimed_and_finished()
    history = HistoryReader(saving.store, job_id).read()
    write_summary(saving.store, summarise(history, at(13)))
    assert leave_experience(saving.store, history, "local", at(13)) is None
    line = expected(saving)
    # It trained from minute 1.2 to 5.1 and from 7.2 to 11.5.
    assert line.endswith("by 8m 12s of training (job digits-7k3f) and the market of 1 job")
    found = saving.run_json("plan", str(saving.job_file))["forecast"]
    assert (found["earlier_job"], found["length_seconds"], found["start_seconds"]) == (job_id, 492.0, 60.0)
    assert expected(saving, "--set", "spot.length=1h").endswith(
        "by 1h 00m of training (spot.length) and the market of 1 job"
    )
    assert expected(saving, "--set", "nodes=2") == UNTOLD


def test_where_nothing_outlives_a_machine_the_cost_is_not_known(jobs):
    assert expected(jobs, *LONG) == "expected: unknown, because nothing of the work outlives its machine"
    assert "expected: 48 USD" in expected(jobs, *LONG, "--set", "spot.policy=on-demand")


@pytest.mark.full
def test_run_says_it_before_it_launches(saving):
    result = saving.run("run", str(saving.job_file), "--detach", *LONG)
    first, buys, says, limit, *others = result.stdout.splitlines()
    assert first.startswith("submitted job ")
    assert buys == "buys 1 x local in local-a (spot), 0.3000 USD an hour in all"
    assert says.startswith("expected: ")
    assert limit == "no limit; set one with limits.max_cost"
    assert any("launch 1" in line for line in others)
    assert list(saving.run_json("run", str(saving.job_file), "--detach")) == ["id", "store", "launched"]


SHORT = "spot.policy: a spot machine lasts 2.18 h in the mean, and its first work is saved after "
REFUSED = {
    "deadline": (
        ["spot.policy=deadline", "spot.deadline=40h", "spot.length=48h"],
        "spot.deadline: 48 h of training and 5 min for the start are 48.1 h, on demand too; the deadline is 40 h",
    ),
    "max_cost": (
        ["limits.max_cost=10", "spot.length=48h"],
        "limits.max_cost: 48 h x 1 x 0.3000 USD an hour is 14.40 USD at least; the limit is 10.00 USD",
    ),
    "interval": (
        ["spot.policy=spot", 'checkpoint.directory="out/*"', "checkpoint.interval=24h"],
        f"{SHORT}24.1 h; one in 272 lasts so long",
    ),
    "nothing": (
        ["spot.policy=spot", "spot.length=48h"],
        f"{SHORT}48.1 h; one in 23,494 lasts so long",
    ),
}


@pytest.mark.parametrize("command", [["plan"], ["run", "--dry-run"], ["run", "--detach"]])
@pytest.mark.parametrize("case", REFUSED)
def test_a_job_without_hope_is_refused_in_a_line_and_stores_nothing(jobs, tmp_path, case, command):
    sets, reason = REFUSED[case]
    options = [word for one in sets for word in ("--set", one)]
    result = jobs.run(*command, str(jobs.job_file), *options, status=2)
    assert result.stderr == f"error: {reason}; --anyway submits it regardless\n"
    assert [meta.key for meta in jobs.store.list_objects("")] == [keys.STORE_ID]


@pytest.mark.full
@pytest.mark.parametrize("case", REFUSED)
def test_anyway_makes_a_warning_of_it(jobs, case):
    sets, reason = REFUSED[case]
    options = [word for one in sets for word in ("--set", one)]
    assert f"warning: {reason}\n" in jobs.run("plan", str(jobs.job_file), "--anyway", *options).stderr
    assert "submitted job" in jobs.run("run", str(jobs.job_file), "--detach", "--anyway", *options).stdout


@pytest.mark.parametrize(
    "sets",
    [
        ["spot.policy=deadline", "spot.deadline=49h", "spot.length=48h"],
        ["limits.max_cost=14.41", "spot.length=48h"],
        ["spot.policy=spot", 'checkpoint.directory="out/*"', "checkpoint.interval=6h"],
        [
            "spot.policy=spot",
            'checkpoint.directory="out/*"',
            "checkpoint.interval=24h",
            "checkpoint.on_notice=SIGTERM",
        ],
        ['checkpoint.directory="out/*"', "checkpoint.interval=24h"],
        ["spot.policy=spot"],
    ],
)
def test_a_job_with_hope_is_not_refused(jobs, sets):
    options = [word for one in sets for word in ("--set", one)]
    jobs.run("plan", str(jobs.job_file), *options)


@pytest.mark.full
def test_an_earlier_job_with_other_arguments_is_no_reason_to_refuse(saving):
    job_id = saving.reclaimed_and_finished()
    write_summary(saving.store, summarise(HistoryReader(saving.store, job_id).read(), at(13)))
    late = ["--set", "spot.policy=deadline", "--set", "spot.deadline=5m"]
    refused = saving.run("plan", str(saving.job_file), *late, status=2)
    assert "spot.deadline: 8.2 min of training and 1 min for the start are 9.2 min" in refused.stderr
    line = expected(saving, *late, "--set", 'run.args=["--epochs", "1"]')
    assert ", late in 100% of cases; by 8m 12s of training (job digits-7k3f)" in line


@pytest.mark.full
def test_a_job_that_is_resumed_is_held_to_what_is_left_of_it(jobs):
    job_id = jobs.stopped()
    jobs.add_heartbeat(job_id, 1, step=40, minutes=41, steps_total=640)
    # 40 steps in 40 minutes, so the other 600 take 10 hours; an hour of 0.3 is spent.
    limit = ["--set", "limits.max_cost=2"]
    refused = jobs.run("resume", job_id, "--detach", *limit, status=2)
    assert refused.stderr == (
        "error: limits.max_cost: 10 h x 1 x 0.3000 USD an hour is 3.0000 USD at least, and 0.3000 USD is spent; "
        "the limit is 2.0000 USD; --anyway submits it regardless\n"
    )
    assert "resumed job" in jobs.run("resume", job_id, "--detach", "--anyway", *limit).stdout
    assert not list(jobs.store.list_objects(keys.market_prefix("local")))
