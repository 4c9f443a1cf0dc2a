"""``cloudspot ps``."""

from datetime import datetime, timezone

from cloudspot.controller.report import summarise
from cloudspot.jobstore import keys
from cloudspot.jobstore.reader import HistoryReader, write_summary


def test_an_empty_store_has_no_jobs(jobs):
    assert jobs.run("ps").stdout == f"no jobs in {jobs.store.url}\n"
    assert jobs.run_json("ps") == []


def test_unfinished_jobs_come_first_with_their_progress_and_cost(jobs):
    jobs.reclaimed_and_finished("done-1")
    jobs.failed("broken-1")
    jobs.running("going-1")
    jobs.submit("new-1")
    shown = {job["id"]: job for job in jobs.run_json("ps")}
    assert set(list(shown)[:2]) == {"going-1", "new-1"}
    assert [shown[name]["state"] for name in ("new-1", "going-1", "done-1", "broken-1")] == [
        "queued",
        "running",
        "succeeded",
        "failed",
    ]
    assert (shown["going-1"]["step"], shown["going-1"]["steps_total"]) == (17, 100)
    assert shown["going-1"]["metrics"] == {"loss": 0.5}
    assert shown["done-1"]["attempts"] == 2
    assert shown["done-1"]["cost"] == {"spent": 0.06, "currency": "USD"}
    assert shown["done-1"]["metrics"] == {"accuracy": 0.975}
    assert shown["broken-1"]["detail"] == "train.py ended with 3"
    lines = jobs.run("ps").stdout.splitlines()
    assert lines[0].split() == ["ID", "STATE", "STEP", "ATTEMPTS", "COST", "SUBMITTED", "DETAIL"]
    done = next(line for line in lines if line.startswith("done-1"))
    assert done.split()[1:6] == ["succeeded", "100/100", "2", "0.0600", "USD"]


def test_the_summary_of_an_ended_job_is_all_that_is_read(jobs):
    jobs.reclaimed_and_finished("done-1")
    write_summary(
        jobs.store, summarise(HistoryReader(jobs.store, "done-1").read(), datetime.now(timezone.utc))
    )
    jobs.store.delete(keys.spec("done-1"))
    assert [job["state"] for job in jobs.run_json("ps")] == ["succeeded"]


def test_a_stale_summary_of_an_unfinished_job_is_not_believed(jobs):
    jobs.running("going-1")
    write_summary(
        jobs.store, summarise(HistoryReader(jobs.store, "going-1").read(), datetime.now(timezone.utc))
    )
    jobs.add_exit("going-1", 1, "succeeded", step=100, minutes=110)
    assert [job["state"] for job in jobs.run_json("ps")] == ["succeeded"]


def test_a_malformed_summary_hides_no_job(jobs):
    jobs.running("going-1")
    jobs.store.put(keys.summary("going-1"), b"{")
    assert [job["state"] for job in jobs.run_json("ps")] == ["running"]


def test_a_malformed_job_is_named_and_hides_no_other(jobs):
    jobs.running("going-1")
    jobs.submit("bad-1")
    jobs.store.put(keys.spec("bad-1"), b"{")
    result = jobs.run("ps")
    assert "going-1" in result.stdout
    assert result.stderr.startswith("warning: job bad-1: ")


def test_a_submission_that_was_cut_short_is_no_job(jobs):
    jobs.store.put(keys.index("half-1"), b"")
    assert jobs.run_json("ps") == []


def test_only_the_newest_ended_jobs_are_shown_unless_all_are_asked_for(jobs, monkeypatch):
    monkeypatch.setattr("cloudspot.cli.ps.NEWEST", 1)
    jobs.reclaimed_and_finished("done-1")
    jobs.failed("broken-1")
    jobs.running("going-1")
    result = jobs.run("ps")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["ID", "going-1", "broken-1"]
    assert result.stderr == "1 older jobs are not shown; see them with --all\n"
    assert len(jobs.run_json("ps", "--all")) == 3
