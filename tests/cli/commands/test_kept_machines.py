"""What the commands say and do about a machine that is kept for inspection."""

import pytest

from cloudspot.cli.jobs import Job
from cloudspot.cli.remote.nodes import choose_nodes
from cloudspot.errors import CloudspotError
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import RemoteCommand, Seat


def test_show_and_ps_tell_of_it_beside_the_state(jobs):
    job_id = jobs.kept()
    shown = jobs.run_json("show", job_id)
    assert (shown["state"], shown["detail"], shown["exit_code"]) == ("failed", "it ended with 3", 3)
    kept = shown["kept"]
    assert (kept["node"], kept["instance_id"], kept["is_kept"], kept["ended"]) == ("1.0", "m-1", True, None)
    assert [one["state"] for one in shown["nodes"]] == ["kept"]
    assert shown["warnings"][0].startswith("node 1.0 is kept for inspection until ")
    text = " ".join(jobs.run("show", job_id).stdout.split())
    assert f"cloudspot shell {job_id}" in text
    assert f"end it: cloudspot stop {job_id}" in text
    (listed,) = jobs.run_json("ps")
    assert (listed["state"], listed["kept"]["node"]) == ("failed", "1.0")
    assert "node 1.0 is kept until" in jobs.run("ps").stdout


def test_when_it_has_ended_it_is_told_so(jobs):
    job_id = jobs.kept()
    jobs.add_certificate(job_id, 1, started=20, ended=25)
    kept = jobs.run_json("show", job_id)["kept"]
    assert kept["is_kept"] is False
    assert kept["ended"] is not None
    assert jobs.run_json("ps")[0]["kept"] is None
    assert "cloudspot shell" not in jobs.run("show", job_id).stdout


def test_commands_run_on_it(jobs):
    job = Job(jobs.store, jobs.kept())
    assert choose_nodes(job, None) == choose_nodes(job, Seat(1, 0)) == [Seat(1, 0)]
    with pytest.raises(CloudspotError, match=r"no running machine for node 1\.1"):
        choose_nodes(job, Seat(1, 1))


def test_a_stop_ends_it_and_leaves_the_job_failed(jobs):
    job_id = jobs.kept()
    said = jobs.run("stop", job_id).stdout
    assert f"asked node 1.0 of job {job_id}, which is kept for inspection, to end" in said
    history = HistoryReader(jobs.store, job_id).read()
    assert history.stop.reason == "user"
    assert history.finished.outcome == "failed"
    assert f"job {job_id} has already ended: failed" in jobs.run("stop", job_id).stdout


def test_a_job_is_not_resumed_beside_it(jobs):
    job_id = jobs.kept()
    refused = jobs.run("resume", job_id, status=1).stderr
    assert "node 1.0 is kept for inspection until" in refused
    assert f"end it first with: cloudspot stop {job_id}" in refused


def test_a_pass_of_reconcile_leaves_it_and_comes_again(jobs):
    job_id = jobs.kept()
    jobs.run("reconcile", "--job", job_id)
    history = HistoryReader(jobs.store, job_id).read()
    assert history.launches[0].certificates == {}
    assert history.kept is not None
    assert list(jobs.store.list_objects(keys.live_marks_prefix(job_id)))


def test_a_command_whose_agent_is_gone_is_not_said_to_run(jobs):
    job_id = jobs.kept()
    for agent, nonce in (("5" * 16, "a" * 16), ("4" * 16, "b" * 16)):
        command = RemoteCommand(
            launch=1, rank=0, user="me", words=("top",), has_terminal=False, agent=agent,
            at=HistoryReader(jobs.store, job_id).read().kept.at, writer=nonce,
        )  # fmt: skip
        jobs.store.put(keys.remote_command(job_id, 1, 0, nonce), codec.encode(command))
    assert [one["cut_off"] for one in jobs.run_json("show", job_id)["commands"]] == [
        "",
        "its agent has ended",
    ]
    text = jobs.run("show", job_id).stdout
    assert "me on 1.0: top (runs)" in text
    assert "me on 1.0: top (its agent has ended)" in text
