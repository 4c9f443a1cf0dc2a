"""``cloudspot stop`` and ``cloudspot preempt``."""

import pytest

from cloudspot.calls import InstancesResult
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.local.provider import LocalProvider
from cloudspot.local.provisioner import LocalProvisioner
from cloudspot.model import Instance, InstanceState


def test_a_job_without_a_machine_stops_at_once(jobs):
    jobs.submit("new-1")
    lines = jobs.run("stop", "new-1").stdout.splitlines()
    assert lines[0] == "asked job new-1 to save a checkpoint and stop"
    history = HistoryReader(jobs.store, "new-1").read()
    assert history.stop.reason == "user"
    assert history.finished.outcome == "stopped"


@pytest.mark.parametrize(
    ("table", "commits", "said"),
    [
        ("", 0, "and no checkpoint.directory, so all its work is lost"),
        (
            'directory = "out/*"', 1,
            "and saves nothing now: its work after checkpoint 1-40 is probably lost",
        ),
        ('directory = "out/*"', 0, "and saves nothing now: all its work is probably lost"),
        ('directory = "out/*"\non_notice = "SIGTERM"', 0, "and gets SIGTERM to save"),
    ],
)  # fmt: skip
def test_a_stop_says_what_a_script_without_a_session_makes_of_it(jobs, table, commits, said):
    """It said that a checkpoint was asked for, and none was saved."""
    jobs.job_file.write_text(jobs.job_file.read_text() + f"[checkpoint]\n{table}\n")
    job_id = jobs.running()
    for _ in range(commits):
        jobs.add_checkpoint(job_id, 1, 40)
    jobs.add_heartbeat(job_id, 1, step=0, minutes=5, steps_total=None, has_session=False)
    (line, *_) = jobs.run("stop", job_id).stdout.splitlines()
    assert line.startswith(f"asked job {job_id} to stop; its script has no session")
    assert line.endswith(said)


def test_waiting_for_a_stop_ends_with_the_status_of_a_stopped_job(jobs):
    jobs.submit("new-1")
    assert "job new-1 stopped" in jobs.run("stop", "new-1", "--wait", status=10).stdout


def test_a_job_that_has_ended_is_left_as_it_is(jobs):
    result = jobs.run("stop", jobs.reclaimed_and_finished())
    assert result.stdout == "job digits-7k3f has already ended: succeeded\n"
    assert HistoryReader(jobs.store, "digits-7k3f").read().stop is None


def test_waiting_for_a_job_that_has_ended_gives_its_status(jobs):
    jobs.run("stop", jobs.failed(), "--wait", status=1)


def test_a_stop_may_be_repeated(jobs):
    jobs.running("going-1")
    jobs.run("stop", "going-1")
    first = HistoryReader(jobs.store, "going-1").read().stop
    jobs.run("stop", "going-1")
    assert HistoryReader(jobs.store, "going-1").read().stop == first


def test_there_must_be_a_machine_to_reclaim(jobs):
    ended, going = jobs.reclaimed_and_finished(), jobs.running()
    for arguments, said in (
        ([ended], f"job {ended} has no running machine; see: "),
        ([ended, "--node", "2.0"], f"job {ended} has no running machine for node 2.0; see: "),
        ([going, "--node", "1.1"], f"job {going} has no running machine for node 1.1; see: "),
    ):
        assert said in jobs.run("preempt", *arguments, status=1).stderr
    result = jobs.run("preempt", going, "--node", "1", status=2)
    assert result.stderr == "error: --node: '1' is not a node's name; expected one such as 2.0\n"


def test_without_a_name_the_first_node_that_trains_is_reclaimed(jobs, monkeypatch):
    taken = []
    monkeypatch.setattr(LocalProvider, "preempt", lambda _self, request: taken.append(request.instance_id))
    job_id = jobs.running()
    listed = tuple(
        Instance(id=machine, state=InstanceState.RUNNING, job_id=job_id, launch=launch)
        for launch, machine in ((1, "m-1"), (2, "m-2"))
    )
    monkeypatch.setattr(LocalProvisioner, "instances", lambda *_: InstancesResult(instances=listed))
    jobs.add_intent(job_id, 2, minutes=102)
    jobs.claim(job_id, 2, minutes=103)
    said = jobs.run("preempt", job_id, "--notice", "5s").stdout
    assert said == "reclaiming m-1 (node 1.0) with a notice of 5.0s\n"
    jobs.run("preempt", job_id, "--node", "2.0")
    jobs.add_generation(job_id, 2, minutes=104)
    jobs.run("preempt", job_id)
    assert taken == ["m-1", "m-2", "m-2"]


def test_a_machine_that_a_record_names_and_the_provider_does_not_list_for_the_job_is_left_alone(
    jobs, monkeypatch
):
    taken = []
    monkeypatch.setattr(LocalProvider, "preempt", lambda _self, request: taken.append(request.instance_id))
    job_id = jobs.running()
    said = jobs.run("preempt", job_id, "--no-notice", status=1).stderr
    assert said == f"error: local lists no machine m-1 of job {job_id}\n"
    assert taken == []


def test_notice_and_no_notice_contradict_each_other(jobs):
    result = jobs.run("preempt", jobs.running(), "--notice", "5s", "--no-notice", status=2)
    assert result.stderr == "error: give --notice or --no-notice, not both\n"


def test_a_notice_is_a_duration(jobs):
    assert jobs.run("preempt", jobs.running(), "--notice", "soon", status=2).stderr.count("\n") == 1
