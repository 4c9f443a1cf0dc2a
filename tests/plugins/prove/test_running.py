"""The steps of a run, one after the other, from wherever it was cut short; and the report of what they found."""

import json

import pytest

from cloudspot.errors import QuotaError
from cloudspot_prove import running
from cloudspot_prove.bench import Bench, StepFailed, StepSkipped
from cloudspot_prove.reporting import page_of, report_of, save, shown_lines
from cloudspot_prove.run_record import JobIntended, RunRecord, Saved, StepBegan, new_run, unfinished_run

PLANTED = ("123456789012", "acme-research", "203.0.113.77", "wJalrXUtnFEMI")


class Recorder:
    step = ""


class Killed(BaseException):
    pass


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CLOUDSPOT_LOCAL_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def record(home):
    return begin()


def begin(*, steps=("check", "price", "launch", "resume", "notice")):
    return new_run(
        "aws",
        f"file:///{PLANTED[1]}/jobs/",
        settings=(f'providers.aws.tags={{owner="{PLANTED[3]}"}}',),
        max_cost=2.0,
        currency="USD",
        train_seconds=60.0,
        steps=steps,
        image_has_torch=False,
        gpu=None,
        other_region=None,
    )


@pytest.fixture
def taken(monkeypatch):
    """Let each step note its name and do what the test sets for it."""
    names, deeds = [], {}

    def take(name):
        def step(bench):
            names.append(name)
            bench.facts["seen"] = name
            deeds.get(name, lambda: None)()

        return step

    monkeypatch.setattr(running, "STEPS", {name: take(name) for name in running.STEPS})
    return names, deeds


def fail(error):
    def deed():
        raise error

    return deed


def work(record):
    running.work_through(record, Recorder(), record.began.steps)


def test_the_steps_are_taken_in_their_order_and_each_once(record, taken):
    work(record)
    work(RunRecord(record.directory))
    assert taken[0] == ["check", "price", "launch", "resume", "notice"]
    assert [one.status for one in record.ended.values()] == ["passed"] * 5
    assert record.ended["launch"].facts == {"seen": "launch"}


def test_a_step_that_fails_keeps_no_other_from_being_taken(record, taken):
    taken[1]["launch"] = fail(StepFailed("it did not"))
    taken[1]["resume"] = fail(StepSkipped("no money"))
    work(record)
    told = {name: (one.status, one.why) for name, one in record.ended.items()}
    assert told["launch"] == ("failed", "it did not")
    assert told["resume"] == ("skipped", "no money")
    assert told["notice"] == ("passed", "")


def test_nothing_is_bought_where_the_account_is_not_ready(record, taken):
    taken[1]["check"] = fail(StepFailed("not ready: image"))
    work(record)
    assert taken[0] == ["check"]
    assert record.ended["launch"].status == "skipped"
    assert record.ended["launch"].why == "the step check has not passed"
    assert not running.may_buy(record)


def test_an_errors_own_words_are_not_in_the_record(record, taken):
    taken[1]["launch"] = fail(QuotaError(f"account {PLANTED[0]} has no quota"))
    work(record)
    assert record.ended["launch"].why == "QuotaError"
    assert PLANTED[0] not in (record.directory / "run.jsonl").read_text()


def test_a_run_that_is_killed_in_a_step_begins_that_step_again(record, taken):
    taken[1]["resume"] = fail(Killed())
    with pytest.raises(Killed):
        work(record)
    del taken[1]["resume"]
    found = unfinished_run("aws")
    assert found.began == record.began
    work(found)
    assert taken[0] == ["check", "price", "launch", "resume", "resume", "notice"]
    assert sum(isinstance(one, StepBegan) and one.step == "resume" for one in found.events) == 2


def test_the_jobs_of_a_step_that_was_cut_short_are_ended_before_it_begins_again(record, taken, monkeypatch):
    settled = []
    monkeypatch.setattr(running, "_settle", lambda bench, job_id: settled.append(job_id))
    monkeypatch.setattr(running, "_summary", lambda bench, job_id: {"id": job_id, "state": "stopped"})

    def cut():
        record.write(JobIntended(step="launch", job_id="prove-x-launch-1", max_cost=0.1))
        raise Killed

    taken[1]["launch"] = cut
    with pytest.raises(Killed):
        work(record)
    del taken[1]["launch"]
    work(unfinished_run("aws"))
    assert settled == ["prove-x-launch-1"]


def test_a_line_that_a_kill_has_cut_short_counts_as_not_written(record):
    record.write(StepBegan(step="check", at=1.0))
    path = record.directory / "run.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    again = RunRecord(record.directory)
    assert [type(one).__name__ for one in again.events] == ["Began"]
    again.write(StepBegan(step="check", at=2.0))
    assert [type(one).__name__ for one in RunRecord(record.directory).events] == ["Began", "StepBegan"]


def test_a_run_is_over_once_its_report_is_saved(record):
    assert unfinished_run("aws") is not None
    assert unfinished_run("gcp") is None
    record.write(Saved())
    assert unfinished_run("aws") is None


def test_its_directory_is_closed_to_others(record):
    assert record.directory.stat().st_mode & 0o777 == 0o700
    assert record.recordings.stat().st_mode & 0o777 == 0o700


def test_a_job_that_the_rest_of_the_money_has_no_room_for_is_not_submitted(record, taken, monkeypatch):
    work(record)
    bench = Bench(record)
    bench.step = "launch"
    monkeypatch.setattr(bench, "spent", lambda: 1.9999)
    with pytest.raises(StepSkipped, match=r"--max-cost leaves 0\.0001, but this step may cost 0\.0010"):
        bench.new_job()
    assert record.jobs() == []


def test_each_job_has_the_share_of_its_machines_and_an_id_of_its_own(record, monkeypatch):
    record.write(running.StepEnded(step="price", status="passed", facts={"most_per_hour": 0.1}))
    bench = Bench(record)
    bench.step = "two-nodes"
    monkeypatch.setattr(bench, "spent", lambda: 0.0)
    first, second = bench.new_job(num_machines=2), bench.new_job(num_machines=2)
    run = record.began.run
    assert (first, second) == (f"prove-{run}-two-nodes-1", f"prove-{run}-two-nodes-2")
    # Half an hour of boots and twice a minute of training, for two machines and a replacement.
    assert record.jobs()[0].max_cost == pytest.approx(0.1 * (1800 + 120) / 3600 * 3)


def test_the_report_has_each_question_and_nothing_of_the_account(record, taken, home):
    work(record)
    report = report_of(record)
    saved = save(report, record, home)
    assert [path.suffix for path in saved] == [".html", ".json", ".jsonl"]
    texts = [*(path.read_text() for path in saved), *shown_lines(report)]
    assert [one for one in PLANTED if any(one in text for text in texts)] == []
    assert json.loads(saved[1].read_text())["questions"].keys() == report["questions"].keys()
    page = saved[0].read_text()
    assert all(name in page for name in report["questions"])
    assert "Content-Security-Policy" in page


def test_what_a_page_shows_runs_nothing(record, taken):
    work(record)
    report = report_of(record)
    report["steps"]["check"]["why"] = "<script>alert(1)</script>"
    assert "<script>" not in page_of(report)
