"""The commands on a job of the provider local that was not submitted from this computer."""

from datetime import datetime, timedelta, timezone

import pytest

from cloudspot.jobstore.jobs import own_jobs
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.state_home import HOME
from cloudspot.jobstore.layout import keys

STRANGE = "strange-1"


@pytest.fixture
def strange(jobs, monkeypatch, tmp_path):
    """A job that trains elsewhere; it was submitted with another state home."""
    jobs.running(STRANGE)
    monkeypatch.setenv(HOME, str(tmp_path / "another-home"))
    return STRANGE


def sha256_of(jobs, job_id):
    return HistoryReader(jobs.store, job_id).read().submission_sha256


def silence(jobs, monkeypatch):
    """Let the nodes' last reports be an hour old."""
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    monkeypatch.setattr("cloudspot.cli.jobs.store_time", lambda store: later)


def test_what_only_reads_shows_the_job(jobs, strange):
    assert [one["id"] for one in jobs.run_json("ps")] == [strange]
    assert jobs.run_json("show", strange)["state"] == "running"


def test_what_drives_refuses_and_changes_nothing(jobs, strange):
    before = {meta.key for meta in jobs.store.list_objects("")}
    for command in (["attach", strange, "--plain"], ["reconcile"], ["reconcile", "--job", strange]):
        result = jobs.run(*command, status=1)
        assert f"error: {strange}: job '{strange}'" in result.stderr or "error: job " in result.stderr
        assert "was not submitted from here (state home " in result.stderr
        assert f"cloudspot attach --adopt {strange} --store {jobs.store.url}" in result.stderr
        assert "is no longer followed" not in result.stderr
    after = {meta.key for meta in jobs.store.list_objects("")}
    assert {key for key in after if not key.startswith(keys.drivers_prefix())} == before


def test_a_stop_is_left_to_whoever_drives_it(jobs, strange):
    result = jobs.run("stop", strange)
    assert f"asked job {strange} to save a checkpoint and stop" in result.stdout
    assert "warning: the job can only be stopped by the computer that drives it: job " in result.stderr
    assert HistoryReader(jobs.store, strange).read().stop is not None
    jobs.run("stop", strange, "--wait", status=1)


def test_it_is_adopted_only_when_its_nodes_are_silent(jobs, strange, monkeypatch):
    followed = []
    monkeypatch.setattr(
        "cloudspot.cli.commands.attach.follow", lambda job, is_plain: followed.append(job.id) or 0
    )
    result = jobs.run("attach", "--adopt", strange, status=1)
    assert f"error: a node of job {strange} reported " in result.stderr
    silence(jobs, monkeypatch)
    refused = jobs.run("attach", "--adopt", strange, status=2).stderr
    assert f"\n--trust {sha256_of(jobs, strange)}\n" in refused
    assert refused.endswith("to adopt it as shown, give the option above\n")
    result = jobs.run("attach", "--adopt", strange, "--trust", sha256_of(jobs, strange))
    assert f"adopted job {strange}: from now on, this computer runs it" in result.stdout
    assert followed == [strange]
    # Once is enough, and one's own job needs no adoption.
    assert "adopted" not in jobs.run("attach", "--adopt", strange).stdout


def test_an_adopted_job_is_driven_as_it_was_adopted(jobs, strange, monkeypatch):
    silence(jobs, monkeypatch)
    monkeypatch.setattr("cloudspot.cli.commands.attach.follow", lambda job, is_plain: 0)
    jobs.run("attach", "--adopt", strange, "--trust", sha256_of(jobs, strange))
    jobs.run("stop", strange)
    jobs.run("reconcile", "--job", strange)


def test_it_is_removed_on_request_when_its_nodes_are_silent(jobs, strange, monkeypatch):
    result = jobs.run("rm", strange, "--yes", status=1)
    assert "was not submitted from here" in result.stderr
    assert "to delete it, add --force" in result.stderr
    assert "reported " in jobs.run("rm", strange, "--yes", "--force", status=1).stderr
    silence(jobs, monkeypatch)
    jobs.run("rm", strange, "--yes", "--force")
    assert list(jobs.store.list_objects(keys.job_prefix(strange))) == []
    assert list(jobs.store.list_objects("live/")) == []


def test_force_removes_no_job_that_is_driven_here(jobs):
    jobs.running()
    result = jobs.run("rm", "going-abcd", "--yes", "--force", status=1)
    assert result.stderr.startswith("error: job going-abcd has not ended; stop it first")


def test_a_job_that_was_submitted_here_is_noted_before_it_exists(jobs, monkeypatch):
    noted = []

    def note(submission, *, store_url, sha256):
        job_id = submission.job_id
        noted.append((job_id, [meta.key for meta in jobs.store.list_objects(keys.job_prefix(job_id))]))
        raise RuntimeError

    monkeypatch.setattr(own_jobs, "note_job", note)
    with pytest.raises(RuntimeError):
        jobs.run("run", str(jobs.job_file), "--detach", "--name", "new-1")
    assert noted == [("new-1", [])]
    assert list(jobs.store.list_objects("index/")) == []
