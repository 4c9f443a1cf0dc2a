"""``cloudspot rm``."""

import contextlib
from datetime import datetime, timedelta, timezone

import msgspec
import pytest
from click.testing import CliRunner
from support.records.made_journal import forget_copies
from support.stores.faultstore import FaultPlan, FaultyStore, Hook

from cloudspot.calls import InstancesResult
from cloudspot.cli.commands import rm as rm_module
from cloudspot.cli.jobs import Job
from cloudspot.cli.main import program
from cloudspot.errors import TransientError
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.removal import remove_job
from cloudspot.jobstore.jobs.submission import hash_of
from cloudspot.jobstore.layout import codec, keys
from cloudspot.local.provider import LocalProvider
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
    assert all_keys(jobs.store) == {keys.STORE_ID}
    assert jobs.run_json("ps") == []


@pytest.mark.full
def test_several_go_at_once_and_shared_code_stays_for_the_third(jobs):
    jobs.reclaimed_and_finished()
    jobs.failed()
    jobs.running()
    jobs.run("rm", "digits-7k3f", "broken-abcd", "-y")
    assert {key.split("/")[1] for key in all_keys(jobs.store) if key.startswith("jobs/")} == {"going-abcd"}
    assert [each["id"] for each in jobs.run_json("ps")] == ["going-abcd"]
    assert [key for key in all_keys(jobs.store) if key.startswith("code/")] != []


@pytest.mark.full
def test_it_asks_and_a_no_changes_nothing(jobs, monkeypatch):
    job_id = jobs.reclaimed_and_finished()
    before = all_keys(jobs.store)
    result = jobs.run("rm", job_id, status=2)
    assert (
        result.stderr == "error: there is no terminal on which to ask; give --yes to delete without asking\n"
    )
    monkeypatch.setattr("cloudspot.cli.screen.output.can_ask", lambda: True)
    for answer, status, last in (("n\n", 1, "nothing was deleted"), ("", 130, ""), ("y\n", 0, "")):
        assert all_keys(jobs.store) == before
        result = CliRunner().invoke(program, ["rm", job_id, "--store", jobs.store.url], input=answer)
        assert result.exit_code == status
        assert "Delete all data of digits-7k3f permanently? [y/N]: " in result.stderr
        assert last in result.stderr
    assert all_keys(jobs.store) == {keys.STORE_ID}


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
    monkeypatch.setattr(LocalProvisioner, "instances", lambda *_: InstancesResult(instances=(machine,)))
    result = jobs.run("rm", job_id, "--yes", status=1)
    assert result.stderr.startswith("error: job digits-7k3f still has machines: m-2; end them with: ")


def test_a_beginning_of_an_id_is_not_enough(jobs):
    jobs.reclaimed_and_finished()
    result = jobs.run("rm", "digits", "--yes", status=5)
    assert result.stderr == (
        "error: rm needs the complete id, but there is no job 'digits'; did you mean digits-7k3f?\n"
    )
    assert jobs.run("rm", "nothing", "--yes", status=5).stderr.startswith("error: no job 'nothing'")


def test_a_submission_that_may_be_under_way_is_left_alone(jobs, monkeypatch):
    jobs.store.put(keys.index("new-1"), b"0123456789abcdef")
    result = jobs.run("rm", "new-1", "--yes", status=1)
    assert result.stderr.startswith(
        "error: job new-1 is being submitted, or its submission was interrupted: the submission began "
    )
    monkeypatch.setattr("cloudspot.cli.commands.rm.LONGEST_SUBMISSION", timedelta(0))
    jobs.run("rm", "new-1", "--yes")
    assert all_keys(jobs.store) == {keys.STORE_ID}


@pytest.mark.full
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
    others = (keys.market_prefix("local"), keys.drivers_prefix(), *map(keys.journal_copies_prefix, ids))
    added = {key for key in all_keys(jobs.store) - before if not key.startswith(others)}
    assert added <= {key(one) for one in ids for key in (keys.summary, keys.settled_launches)}
    if not spec_is_there:
        assert jobs.run("show", job_id, status=5).stderr.startswith("error: no job 'digits-7k3f'")
    if keys.index(job_id) in before:
        jobs.run("rm", job_id, "--yes")
    assert not [key for key in all_keys(jobs.store) if job_id in key]
    jobs.submit(job_id)
    assert [each["state"] for each in jobs.run_json("ps") if each["id"] == job_id] == ["queued"]


@pytest.mark.full
def test_a_job_that_cannot_be_read_is_named_and_left_and_the_others_go(jobs):
    jobs.reclaimed_and_finished()
    jobs.failed()
    jobs.store.put(keys.journal("broken-abcd", 2), b"{")
    forget_copies(jobs.store, "broken-abcd")  # else the record is not read
    before = {key for key in all_keys(jobs.store) if key.startswith("jobs/broken-abcd/")}
    result = jobs.run("rm", "broken-abcd", "digits-7k3f", "-y", status=8)
    assert result.stderr.startswith(
        "warning: job broken-abcd is not deleted: jobs/broken-abcd/journal/00000002 is malformed: "
    )
    assert {key for key in all_keys(jobs.store) if key.startswith("jobs/")} == before


ODD_RECORDS = {
    "journal": ("journal/00000003", b"{"),
    "stop": ("nodes/stop", b"[]"),
    "generation": ("journal/00000002", b"\xff"),
    "heartbeat": ("nodes/000001/0000/heartbeat", b"1"),
    "submission": ("spec", b"{"),
    "submission-time": ("spec", None),
    "job-file": ("spec", None),
}


@pytest.fixture(params=ODD_RECORDS)
def odd(request, jobs):
    """A job that has ended, one of whose records is malformed."""
    job_id = jobs.failed()
    jobs.add_heartbeat(job_id, 1, step=0, minutes=21)
    name, data = ODD_RECORDS[request.param]
    key = keys.job_prefix(job_id) + name
    if data is None:
        data = jobs.store.get(key)
        old, new = (b'"at":"', b'"at":"x') if request.param == "submission-time" else (b'"run"', b'"ran"')
        assert old in data
        data = data.replace(old, new)
    jobs.store.put(key, data)
    forget_copies(jobs.store, job_id)  # else the record is not read
    return job_id


def later(monkeypatch, **by):
    moment = datetime.now(timezone.utc) + timedelta(**by)
    monkeypatch.setattr("cloudspot.cli.jobs.store_time", lambda store: moment)


def test_a_job_with_a_malformed_record_goes_on_request(jobs, odd, monkeypatch):
    later(monkeypatch, hours=1)
    before = all_keys(jobs.store)
    result = jobs.run("rm", odd, "-y", status=8)
    assert "add --force" in result.stderr
    assert all_keys(jobs.store) == before
    jobs.run("rm", odd, "-y", "--force")
    left = all_keys(jobs.store)
    assert not [key for key in left if odd in key]
    assert jobs.run_json("ps", "--all") == []


def test_one_with_a_malformed_record_stays_while_its_nodes_report(jobs, odd, monkeypatch):
    later(monkeypatch, seconds=590)
    before = all_keys(jobs.store)
    result = jobs.run("rm", odd, "-y", "--force", status=1)
    assert f"error: a node of job {odd} reported " in result.stderr
    assert all_keys(jobs.store) == before


def test_one_with_a_malformed_record_stays_while_a_machine_of_it_is_listed(jobs, odd, monkeypatch):
    later(monkeypatch, hours=1)
    machine = Instance(id="m-1", state=InstanceState.RUNNING, job_id=odd, launch=1)
    monkeypatch.setattr(LocalProvisioner, "instances", lambda *_: InstancesResult(instances=(machine,)))
    before = all_keys(jobs.store)
    result = jobs.run("rm", odd, "-y", "--force", status=1)
    assert f"error: job {odd} still has machines: m-1" in result.stderr
    assert all_keys(jobs.store) == before


def test_one_with_a_malformed_record_stays_while_its_machines_cannot_be_listed(jobs, odd, monkeypatch):
    later(monkeypatch, hours=1)

    def fail(_self, _request):
        raise TransientError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(LocalProvisioner, "instances", fail)
        jobs.run("rm", odd, "-y", "--force", status=7)
    assert keys.spec(odd) in all_keys(jobs.store)


def test_where_no_record_names_a_provider_a_warning_says_that_none_was_asked(jobs, monkeypatch):
    later(monkeypatch, hours=1)
    job_id = jobs.failed()
    for key in (keys.spec(job_id), *(keys.journal(job_id, number) for number in (1, 2, 3, 4))):
        jobs.store.put(key, b"{")
    result = jobs.run("rm", job_id, "-y", "--force")
    assert "looking for machines nowhere, because none is known" in " ".join(result.stderr.split())
    assert not [key for key in all_keys(jobs.store) if job_id in key]


def test_a_malformed_note_of_a_removal_is_made_anew(jobs, monkeypatch):
    later(monkeypatch, hours=1)
    job_id = jobs.failed()
    jobs.store.put(keys.index(job_id), b"{")
    jobs.run("rm", job_id, "-y", status=8)
    jobs.run("rm", job_id, "-y", "--force")
    assert all_keys(jobs.store) == {keys.STORE_ID}


def test_by_force_each_provider_that_the_job_was_resumed_on_is_asked(jobs, monkeypatch):
    job_id = jobs.stopped()
    submission = HistoryReader(jobs.store, job_id).read().submission
    elsewhere = msgspec.structs.replace(submission, provider="elsewhere", resumption=1)
    jobs.put(keys.submission(job_id, hash_of(codec.encode(elsewhere))), elsewhere)
    asked = []
    monkeypatch.setattr(rm_module, "configured_options", lambda _name: {})
    monkeypatch.setattr(rm_module, "with_driver_options", lambda spec, _name, _options: spec)
    monkeypatch.setattr(rm_module, "open_provider", lambda name, spec: asked.append(name) or LocalProvider())
    assert len(rm_module._providers(Job(jobs.store, job_id))) == 2
    assert asked == ["local", "elsewhere"]
