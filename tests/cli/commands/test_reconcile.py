"""``cloudspot reconcile``."""

from datetime import datetime, timedelta, timezone

import pytest

from cloudspot.cli.commands import reconcile as reconcile_module
from cloudspot.cli.commands.reconcile import is_long_over
from cloudspot.controller.reconcile import Reconciler, Unlisted
from cloudspot.errors import AuthError, ObjectMissing, TransientError
from cloudspot.jobstore.jobs.job_lists import list_live
from cloudspot.jobstore.jobs.reader import HistoryReader, read_summary
from cloudspot.jobstore.layout import keys


def unfinished(jobs, job_id):
    """A job whose nodes have ended it, while no controller was there."""
    jobs.reclaimed_and_finished(job_id)
    jobs.delete_end(job_id)
    return job_id


def test_a_pass_ends_what_the_nodes_have_ended_and_says_so(jobs):
    unfinished(jobs, "done-1")
    lines = jobs.run("reconcile").stdout.splitlines()
    assert [line[21:] for line in lines] == ["done-1    job succeeded", "done-1    succeeded, step 100/100"]
    assert HistoryReader(jobs.store, "done-1").read().finished.outcome == "succeeded"
    assert read_summary(jobs.store, "done-1").state == "succeeded"


def test_a_job_that_ended_before_is_not_told_of(jobs):
    jobs.reclaimed_and_finished("done-1")
    assert jobs.run("reconcile").output == ""


def test_a_job_that_goes_on_is_told_of_in_a_line(jobs):
    jobs.running("going-1")
    line = jobs.run("reconcile").stdout
    assert line[21:] == "going-1   running, step 17/100 (launch 1: local in local-a (spot))\n"


@pytest.mark.full
def test_one_job_alone_by_a_beginning_of_its_id(jobs):
    unfinished(jobs, "done-1")
    unfinished(jobs, "done-2")
    jobs.run("reconcile", "--job", "done-2")
    assert HistoryReader(jobs.store, "done-1").read().finished is None
    assert HistoryReader(jobs.store, "done-2").read().finished is not None


def test_an_error_of_one_job_does_not_keep_the_others(jobs):
    jobs.submit("bad-1")
    jobs.store.put(keys.journal("bad-1", 1), b"{")
    unfinished(jobs, "done-1")
    result = jobs.run("reconcile", status=1)
    assert result.stderr.startswith("error: bad-1: jobs/bad-1/journal/00000001 is malformed")
    assert HistoryReader(jobs.store, "done-1").read().finished is not None


def test_a_submission_that_was_cut_short_is_no_error(jobs):
    jobs.store.put(keys.index("half-1"), b"")
    assert jobs.run("reconcile").output == ""


def test_asking_for_a_job_that_was_cut_short_is_one(jobs):
    jobs.store.put(keys.index("half-1"), b"")
    assert "half-1" in jobs.run("reconcile", "--job", "half-1", status=5).stderr


def test_watching_one_job_ends_with_it(jobs, monkeypatch):
    unfinished(jobs, "done-1")
    slept = []
    monkeypatch.setattr(reconcile_module.time, "sleep", slept.append)
    jobs.run("reconcile", "--watch", "--job", "done-1")
    assert HistoryReader(jobs.store, "done-1").read().finished is not None
    assert slept in ([], [reconcile_module.WATCH_SECONDS])


def test_watching_a_store_goes_on_until_it_is_interrupted(jobs, monkeypatch):
    passes = []

    def sleep(_seconds):
        passes.append(jobs.store)
        if len(passes) == 1:
            unfinished(jobs, "done-1")
        if len(passes) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(reconcile_module.time, "sleep", sleep)
    result = jobs.run("reconcile", "--watch", status=130)
    assert result.stdout.count("job succeeded") == 1
    assert result.stdout.count("done-1    succeeded") == 1


@pytest.mark.parametrize(("hours", "is_over"), [(0.1, False), (21.5, True)])
def test_a_job_that_finished_long_ago_is_left_alone(jobs, hours, is_over):
    # It ended some three hours ago.
    jobs.reclaimed_and_finished("done-1")
    now = datetime.now(timezone.utc) + timedelta(hours=hours)
    assert is_long_over(jobs.store, "done-1", now) is is_over
    jobs.store.put(keys.journal_prefix("done-1") + "notes", b"{")  # no record, whoever put it there
    assert is_long_over(jobs.store, "done-1", now) is is_over


def test_a_job_that_is_removed_during_the_look_is_left_to_the_pass(jobs, monkeypatch):
    """ObjectMissing ended ``reconcile --watch``, and with it the driver of every other job."""
    jobs.reclaimed_and_finished("done-1")

    def get(key):
        raise ObjectMissing(f"no object {key}")

    monkeypatch.setattr(jobs.store, "get", get)
    assert not is_long_over(jobs.store, "done-1", datetime.now(timezone.utc))


def test_a_job_that_goes_on_is_never_long_over(jobs):
    jobs.submit("new-1")
    jobs.running("going-1")
    late = datetime.now(timezone.utc) + timedelta(days=9)
    assert not is_long_over(jobs.store, "new-1", late)
    assert not is_long_over(jobs.store, "going-1", late)


def test_a_complaint_is_said_once_for_each_region_and_again_when_it_changes_and_when_it_is_over(
    jobs, monkeypatch
):
    """Two regions' texts took turns, and nothing said that a provider answered again."""
    expired, throttled = AuthError("the token has expired"), AuthError("slow down")
    east, west = 'region = "a"', "region = b"
    passes = iter([
        [Unlisted("aws", expired, east), Unlisted("aws", throttled, west)],
        [Unlisted("aws", throttled, west), Unlisted("aws", expired, east)],
        [Unlisted("aws", throttled, east), Unlisted("aws", throttled, west)],
        [Unlisted("aws", throttled, west)],
        [],
        [Unlisted("aws", expired, east)],
        KeyboardInterrupt,
    ])  # fmt: skip

    def run_pass(self, **_options):
        told = next(passes)
        if told is KeyboardInterrupt:
            raise KeyboardInterrupt
        return iter(told)

    monkeypatch.setattr(Reconciler, "run_pass", run_pass)
    monkeypatch.setattr(reconcile_module.time, "sleep", lambda seconds: None)
    said = jobs.run("reconcile", "--watch", status=130).stderr.splitlines()
    assert [line for line in said if "aws" in line] == [
        'error: the machines of aws (region = "a"): the token has expired',
        "error: the machines of aws (region = b): slow down",
        'error: the machines of aws (region = "a"): slow down',
        'no longer an error: the machines of aws (region = "a")',
        "no longer an error: the machines of aws (region = b)",
        'error: the machines of aws (region = "a"): the token has expired',
    ]


def test_a_store_that_answers_again_is_said_to(jobs, monkeypatch):
    passes = iter([TransientError("no answer"), TransientError("no answer"), None, KeyboardInterrupt()])

    def run_pass(self, **_options):
        error = next(passes)
        if error is not None:
            raise error
        return iter(())

    monkeypatch.setattr(Reconciler, "run_pass", run_pass)
    monkeypatch.setattr(reconcile_module.time, "sleep", lambda seconds: None)
    said = jobs.run("reconcile", "--watch", status=130).stderr.splitlines()
    assert said[:2] == [f"error: {jobs.store.url}: no answer", f"no longer an error: {jobs.store.url}"]


@pytest.mark.full
def test_jobs_that_are_not_marked_live_are_found_on_request(jobs):
    for job_id in ("done-1", "done-2"):
        unfinished(jobs, job_id)
    jobs.submit("half-1")
    jobs.store.delete(keys.spec("half-1"))
    for meta in list(jobs.store.list_objects(keys.live_prefix())):
        jobs.store.delete(meta.key)
    assert jobs.run("reconcile").output == ""
    lines = jobs.run("reconcile", "--all").stdout.splitlines()
    assert [line[21:] for line in lines if "job succeeded" in line] == [
        "done-1    job succeeded",
        "done-2    job succeeded",
    ]
    assert list_live(jobs.store) == {}


@pytest.mark.full
def test_a_request_for_all_jobs_leaves_alone_what_ended_long_ago(jobs, monkeypatch):
    jobs.reclaimed_and_finished("done-1")
    unfinished(jobs, "done-2")
    for meta in list(jobs.store.list_objects(keys.live_prefix())):
        jobs.store.delete(meta.key)
    monkeypatch.setattr(reconcile_module, "LONG_OVER", timedelta(hours=1))
    reconcile_module.mark_all(jobs.store)
    assert set(list_live(jobs.store)) == {"done-2"}


def test_a_request_for_all_jobs_names_one_that_cannot_be_read_from_then_on(jobs):
    jobs.submit("bad-1")
    jobs.store.put(keys.spec("bad-1"), b"{")
    for meta in list(jobs.store.list_objects(keys.live_prefix())):
        jobs.store.delete(meta.key)
    assert jobs.run("reconcile").stderr == ""
    for arguments in (("reconcile", "--all"), ("reconcile",)):
        assert jobs.run(*arguments, status=1).stderr.startswith("error: bad-1: jobs/bad-1/spec is malformed")
