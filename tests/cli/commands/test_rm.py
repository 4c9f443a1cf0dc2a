"""``cloudspot rm``."""

import contextlib
from datetime import timedelta

import pytest
from click.testing import CliRunner
from faultstore import FaultPlan, FaultyStore, Hook

from cloudspot.cli.main import program
from cloudspot.jobstore import keys
from cloudspot.jobstore.removal import remove_job
from cloudspot.local.provisioner import LocalProvisioner
from cloudspot.model import Instance, InstanceState


class Killed(Exception):
    pass


def all_keys(store):
    return {meta.key for meta in store.list_objects("")}


def test_a_job_that_is_over_goes_whole(jobs):
    job_id = jobs.reclaimed_and_finished()
    count = len(list(jobs.store.list_objects("jobs/")))
    result = jobs.run("rm", job_id, "--yes")
    assert result.stdout.splitlines()[1] == "deleted job digits-7k3f"
    assert result.stdout.startswith(f"digits-7k3f: {count} objects, ")
    assert all_keys(jobs.store) == set()
    assert jobs.run_json("ps") == []


def test_several_go_at_once_and_shared_code_stays_for_the_third(jobs):
    jobs.reclaimed_and_finished()
    jobs.failed()
    jobs.running()
    jobs.run("rm", "digits-7k3f", "broken-abcd", "-y")
    assert {key.split("/")[1] for key in all_keys(jobs.store) if key.startswith("jobs/")} == {"going-abcd"}
    assert [each["id"] for each in jobs.run_json("ps")] == ["going-abcd"]
    assert [key for key in all_keys(jobs.store) if key.startswith("code/")] != []


def test_it_asks_and_a_no_changes_nothing(jobs, monkeypatch):
    job_id = jobs.reclaimed_and_finished()
    before = all_keys(jobs.store)
    result = jobs.run("rm", job_id, status=2)
    assert result.stderr == "error: there is no terminal to ask on: give --yes to delete without a question\n"
    monkeypatch.setattr("cloudspot.cli.screen.output.can_ask", lambda: True)
    for answer, status, last in (("n\n", 1, "nothing was deleted"), ("", 130, ""), ("y\n", 0, "")):
        assert all_keys(jobs.store) == before
        result = CliRunner().invoke(program, ["rm", job_id, "--store", jobs.store.url], input=answer)
        assert result.exit_code == status
        assert "Delete all data of digits-7k3f for good? [y/N]: " in result.stderr
        assert last in result.stderr
    assert all_keys(jobs.store) == set()


def test_a_job_that_is_not_over_is_refused(jobs):
    jobs.running()
    jobs.reclaimed_and_finished()
    before = all_keys(jobs.store)
    result = jobs.run("rm", "digits-7k3f", "going-abcd", "--yes", status=1)
    assert result.stderr.startswith(
        "error: job going-abcd has not ended; stop it first: cloudspot stop --wait going-abcd"
    )
    assert all_keys(jobs.store) == before


def test_one_that_has_ended_but_is_not_closed_is_refused(jobs):
    jobs.running()
    jobs.add_exit("going-abcd", 1, "succeeded", step=100, minutes=110)
    result = jobs.run("rm", "going-abcd", "--yes", status=1)
    assert result.stderr.startswith(
        "error: job going-abcd has ended, but its records are not closed yet; run: cloudspot reconcile --job"
    )


def test_one_whose_machine_still_lives_is_refused(jobs, monkeypatch):
    job_id = jobs.reclaimed_and_finished()
    machine = Instance(id="m-2", state=InstanceState.SHUTTING_DOWN, job_id=job_id, launch=2)
    monkeypatch.setattr(LocalProvisioner, "instances", lambda self, *, job_id=None: [machine])
    result = jobs.run("rm", job_id, "--yes", status=1)
    assert result.stderr.startswith("error: job digits-7k3f still has machines: m-2; end them with: ")


def test_a_beginning_of_an_id_is_not_enough(jobs):
    jobs.reclaimed_and_finished()
    result = jobs.run("rm", "digits", "--yes", status=5)
    assert result.stderr == (
        "error: rm needs the whole id: there is no job 'digits'; did you mean digits-7k3f?\n"
    )
    assert jobs.run("rm", "nothing", "--yes", status=5).stderr.startswith("error: no job 'nothing'")


def test_a_submission_that_may_be_under_way_is_left_alone(jobs, monkeypatch):
    jobs.store.put(keys.index("new-1"), b"0123456789abcdef")
    result = jobs.run("rm", "new-1", "--yes", status=1)
    assert result.stderr.startswith(
        "error: job new-1 is being submitted, or its submission was cut short: it began "
    )
    monkeypatch.setattr("cloudspot.cli.commands.rm.LONGEST_SUBMISSION", timedelta(0))
    jobs.run("rm", "new-1", "--yes")
    assert all_keys(jobs.store) == set()


@pytest.mark.parametrize("number", range(0, 40, 3))
def test_no_command_trips_over_a_job_half_removed(jobs, tmp_path, number):
    job_id = jobs.reclaimed_and_finished()
    jobs.failed()

    def kill(hook, key):
        raise Killed

    plan = FaultPlan(hooks=(Hook(keys="*", when="after", skip=number, method="delete"),))
    with contextlib.suppress(Killed):
        remove_job(FaultyStore(jobs.store, plan, tmp_path / "faults", on_hook=kill), job_id, num_threads=1)
    before = all_keys(jobs.store)
    spec_is_there = keys.spec(job_id) in before
    expected = {"broken-abcd"} | ({job_id} if spec_is_there else set())
    assert {each["id"] for each in jobs.run_json("ps", "--all")} == expected
    jobs.run("reconcile")
    ids = (job_id, "broken-abcd")
    assert all_keys(jobs.store) - before <= {
        key(one) for one in ids for key in (keys.summary, keys.settled_launches)
    }
    if not spec_is_there:
        assert jobs.run("show", job_id, status=5).stderr.startswith("error: no job 'digits-7k3f'")
    if keys.index(job_id) in before:
        jobs.run("rm", job_id, "--yes")
    assert not [key for key in all_keys(jobs.store) if job_id in key]
    jobs.submit(job_id)
    assert [each["state"] for each in jobs.run_json("ps") if each["id"] == job_id] == ["queued"]


def test_a_job_that_cannot_be_read_is_named_and_left_and_the_others_go(jobs):
    jobs.reclaimed_and_finished()
    jobs.failed()
    jobs.store.put(keys.journal("broken-abcd", 2), b"{")
    before = {key for key in all_keys(jobs.store) if key.startswith("jobs/broken-abcd/")}
    result = jobs.run("rm", "broken-abcd", "digits-7k3f", "-y", status=8)
    assert result.stderr.startswith(
        "warning: job broken-abcd is not deleted: jobs/broken-abcd/journal/00000002 is malformed: "
    )
    assert {key for key in all_keys(jobs.store) if key.startswith("jobs/")} == before
