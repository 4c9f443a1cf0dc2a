"""``cloudspot resume`` and ``cloudspot fork``."""

import pytest
from support.records.jobclock import at

from cloudspot.cli.commands import fork as fork_module
from cloudspot.cli.commands import resume as resume_module
from cloudspot.cli.screen import output
from cloudspot.jobstore.checkpoints.manifests import read_manifest
from cloudspot.jobstore.checkpoints.retention import standing_checkpoints
from cloudspot.jobstore.jobs.job_lists import list_jobs
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.submission import delete_secrets, read_secrets
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, SaveId, Suspended, new_nonce


@pytest.fixture(autouse=True)
def unfollowed(monkeypatch):
    for module in (resume_module, fork_module):
        monkeypatch.setattr(module, "follow", lambda job, **options: 0)


def history(jobs, job_id):
    return HistoryReader(jobs.store, job_id).read()


def suspended(jobs, job_id="digits-2"):
    jobs.submit(job_id, minutes=0)
    record = Suspended(detail="no spot capacity", at=at(10), writer=new_nonce())
    assert Journal(jobs.store, job_id).append(record, 1)
    return job_id


def test_a_stopped_job_goes_on_with_the_changes_that_are_asked_for(jobs):
    result = jobs.run(
        "resume", jobs.stopped(), "--set", "limits.max_cost=40", "--set", "spot.policy=on-demand"
    )
    assert result.stdout == "resumed job digits-1 on local, at step 40\n"
    assert result.stderr == ""
    resumed = history(jobs, "digits-1")
    assert resumed.finished is None
    assert resumed.submission.spec["limits"]["max_cost"] == 40
    assert resumed.submission.spec["spot"]["policy"] == "on-demand"
    assert jobs.run_json("show", "digits-1")["state"] == "queued"
    assert "resumed      2026" in jobs.run("show", "digits-1").stdout
    assert [turn["what"] for turn in jobs.run_json("show", "digits-1")["turns"]] == ["stopped", "resumed"]


@pytest.mark.full
def test_a_detached_resume_launches_the_job(jobs):
    value = jobs.run_json("resume", jobs.stopped(), "--detach")
    assert value == {"id": "digits-1", "store": jobs.store.url, "launched": True}
    assert [launch.intent.why for launch in history(jobs, "digits-1").current_launches] == ["resumed"]


def test_a_suspended_job_is_resumed_before_a_driver_finds_capacity(jobs):
    assert jobs.run_json("show", suspended(jobs))["state"] == "suspended"
    result = jobs.run("resume", "digits-2", "--set", "spot.policy=on-demand")
    assert "from step 0, because it has no checkpoint" in result.stdout
    assert history(jobs, "digits-2").suspended is None


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--json"], 2, "--json needs --detach"),
        (
            ["--set", "limits.max_cost=0.1"],
            2,
            "limits.max_cost: the job has cost 0.3000 USD; raise the limit",
        ),
        (
            ["--set", "limits.max_runtime=10m"],
            2,
            "limits.max_runtime: the job has run for 1h 00m; raise the limit",
        ),
        (["--set", "nodez=2"], 2, "--set: nodez"),
        (["--set", "limits.max_restarts=-1"], 2, "--set: limits.max_restarts"),
        (["--provider", "moon"], 3, "moon"),
    ],
)
def test_what_is_wrong_is_one_line_and_changes_nothing(jobs, arguments, status, said):
    jobs.stopped()
    before = {meta.key for meta in jobs.store.list_objects("")}
    result = jobs.run("resume", "digits-1", *arguments, status=status)
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert {meta.key for meta in jobs.store.list_objects("")} == before


def test_a_job_that_runs_or_has_succeeded_is_not_resumed(jobs):
    result = jobs.run("resume", jobs.running(), status=1)
    assert "node 1.0 of job 'going-abcd' may still run: stop the job first" in result.stderr
    result = jobs.run("resume", jobs.reclaimed_and_finished(), status=1)
    assert "has succeeded, so there is nothing to resume" in result.stderr
    assert "cloudspot fork digits-7k3f" in result.stderr


def test_secrets_are_taken_from_the_environment_or_asked_for(jobs, monkeypatch):
    jobs.job_file.write_text(jobs.job_file.read_text() + 'secrets = ["TOKEN", "WORD"]\n')
    jobs.stopped()
    delete_secrets(jobs.store, "digits-1", resumption=0)
    monkeypatch.setenv("TOKEN", "from the environment")
    assert "secrets: WORD is not set" in jobs.run("resume", "digits-1", status=2).stderr
    monkeypatch.setattr(output, "can_ask", lambda: True)
    result = jobs.run("resume", "digits-1", typed="typed\n")
    assert "secret WORD" in result.stderr
    assert "typed" not in result.output
    found = read_secrets(jobs.store, "digits-1", ["TOKEN", "WORD"], resumption=1)
    assert found == {"TOKEN": "from the environment", "WORD": "typed"}


def test_another_number_of_ranks_is_said_to_be_inexact(jobs):
    result = jobs.run("resume", jobs.stopped(), "--set", "procs_per_node=2", "--set", "nodes=2")
    assert "nodes and procs_per_node changed" in result.stderr
    assert "not bit for bit" in result.stderr


@pytest.mark.full
def test_a_fork_begins_with_a_copy_of_the_checkpoint_and_of_the_code(jobs):
    result = jobs.run(
        "fork", jobs.reclaimed_and_finished(), "--from", "40", "--name", "new-1", "--set", "run.env.LR=2"
    )
    assert f"submitted job new-1 to {jobs.store.url}, from step 40 of digits-7k3f" in result.stdout
    forked, source = history(jobs, "new-1"), history(jobs, "digits-7k3f")
    journal = Journal(jobs.store, "new-1").read()
    assert standing_checkpoints(jobs.store, "new-1", journal) == (CheckpointId(0, 40),)
    chunks = [
        one.parts[0].chunks
        for one in (manifest_of(jobs, "new-1", 0, 40), manifest_of(jobs, "digits-7k3f", 1, 40))
    ]
    assert chunks[0] == chunks[1]
    assert forked.submission.code_sha256 == source.submission.code_sha256
    assert forked.submission.spec["run"]["env"] == {"LR": "2"}
    shown = jobs.run_json("show", "new-1")
    assert (shown["forked_from"], shown["step"], shown["state"]) == (
        {"id": "digits-7k3f", "step": 40},
        40,
        "queued",
    )
    assert "forked from  digits-7k3f at step 40" in jobs.run("show", "new-1").stdout
    jobs.run("rm", "digits-7k3f", "--yes")
    assert "verified" in jobs.run("checkpoints", "verify", "new-1").stdout


def manifest_of(jobs, job_id, generation, step):
    return read_manifest(jobs.store, job_id, CheckpointId(generation, step))


def test_a_fork_may_bring_other_code(jobs):
    jobs.reclaimed_and_finished()
    (jobs.job_file.parent / "train.py").write_text("print('other')\n")
    jobs.run("fork", "digits-7k3f", "--name", "new-1", "--code", str(jobs.job_file.parent))
    new, old = history(jobs, "new-1").submission, history(jobs, "digits-7k3f").submission
    assert new.code_sha256 != old.code_sha256
    assert new.forked_from.checkpoint == CheckpointId(2, 100)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "41"], "has no checkpoint of step 41; it has: 40, 100"),
        (["--name", "Not_A_Label"], "--name must be"),
        (["--set", "run.entrypoint=gone.py", "--code", "."], "gone.py"),
        (["--json"], "--json needs --detach"),
    ],
)
def test_a_fork_that_cannot_be_is_refused_before_there_is_a_job(jobs, arguments, said):
    jobs.reclaimed_and_finished()
    assert said in jobs.run("fork", "digits-7k3f", *arguments, status=2).stderr
    assert list_jobs(jobs.store) == ("digits-7k3f",)


def test_a_fork_whose_checkpoint_is_damaged_leaves_no_job(jobs):
    jobs.reclaimed_and_finished()
    key = keys.chunk("digits-7k3f", SaveId(2, 100, 0), 0, 0)
    jobs.store.put(key, b"x" * len(jobs.store.get(key)))
    result = jobs.run("fork", "digits-7k3f", "--name", "new-1", status=8)
    assert "does not match its checksum" in result.stderr
    assert list_jobs(jobs.store) == ("digits-7k3f",)
    assert list(jobs.store.list_objects(keys.job_prefix("new-1"))) == []
    jobs.run("fork", "digits-7k3f", "--from", "40", "--name", "new-1")


def test_a_job_without_a_checkpoint_has_nothing_to_fork(jobs):
    assert "has no checkpoint to start from" in jobs.run("fork", jobs.failed(), status=2).stderr
