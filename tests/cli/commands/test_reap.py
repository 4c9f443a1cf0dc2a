"""``cloudspot reap``: what it shows, asks and refuses, on machines that a provider lists."""

import json
from datetime import datetime, timedelta, timezone

import pytest
from support.stores.memorystore import InMemoryStore

from cloudspot.boot.functionarchive import FunctionArchive
from cloudspot.calls import InstancesResult, TerminateResult
from cloudspot.cli import function
from cloudspot.cli.commands import driver as driver_module
from cloudspot.cli.commands import reap as reap_module
from cloudspot.controller.ownership import store_label
from cloudspot.errors import AuthError, CloudspotError, SpecError, StoreMissing
from cloudspot.jobstore.access.store_clock import store_time
from cloudspot.jobstore.jobs.job_lists import list_live, unmark_live
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.local.filestore import FileStore
from cloudspot.local.provider import LocalProvider
from cloudspot.local.provisioner import LocalProvisioner
from cloudspot.model import REAP_EVENT, Asset, Capability, Instance, InstanceState


@pytest.fixture
def machines(monkeypatch):
    """The machines that the provider lists; what is ended leaves them."""
    found = []

    def terminate(_provisioner, request):
        found[:] = [one for one in found if one.id not in request.instance_ids]
        return TerminateResult()

    monkeypatch.setattr(LocalProvisioner, "instances", lambda *_: InstancesResult(instances=tuple(found)))
    monkeypatch.setattr(LocalProvisioner, "terminate", terminate)
    return found


def machine(jobs, job_id, *, minutes=120.0, store_url=None, state=InstanceState.RUNNING):
    return Instance(
        id=f"m-{job_id}", state=state, job_id=job_id, launch=1, zone="local-a", instance_type="big",
        store_url=store_label(jobs.store) if store_url is None else store_url,
        launched_at=datetime.now(timezone.utc) - timedelta(minutes=minutes),
    )  # fmt: skip


def over(jobs, job_id):
    """A job that has ended, and of which a driver has seen that nothing runs."""
    jobs.reclaimed_and_finished(job_id)
    unmark_live(jobs.store, job_id, HistoryReader(jobs.store, job_id).read_job()[0].writer)
    assert job_id not in list_live(jobs.store)


def test_a_dry_run_shows_what_is_left_where_and_why_and_ends_nothing(jobs, machines):
    over(jobs, "done-1")
    jobs.submit("live-1")
    machines += [machine(jobs, "done-1"), machine(jobs, "gone-1"), machine(jobs, "live-1")]
    said = jobs.run("reap", "--dry-run").stdout
    assert [line.split() for line in said.splitlines()] == [
        ["KIND", "A", "DAY", "WHERE", "ID", "WHY"],
        ["machine", "(big)", "?", "local-a", "m-done-1", "job", "done-1", "has", "ended"],
        ["machine", "(big)", "?", "local-a", "m-gone-1", "job", "gone-1", "is", "not", "in", "its", "store"],
        ["together", "?", "a", "day;", "the", "price", "of", "2", "is", "unknown"],
        [
            "2",
            "more",
            "are",
            "kept:",
            "live",
            "jobs",
            "need",
            "them,",
            "or",
            "they",
            "are",
            "young",
            "(--json",
            "lists",
            "them)",
        ],
    ]
    assert len(machines) == 3


def test_it_ends_them_and_says_so_and_a_second_run_finds_nothing(jobs, machines):
    over(jobs, "done-1")
    machines += [machine(jobs, "done-1"), machine(jobs, "gone-1")]
    said = jobs.run("reap", "--yes").stdout
    assert said.splitlines()[-2:] == ["ended machine m-done-1", "ended machine m-gone-1"]
    assert machines == []
    assert jobs.run("reap").stdout.splitlines()[0] == f"nothing to end from jobs in {jobs.store.url}"


def test_without_a_terminal_it_ends_nothing_unless_it_is_told_yes(jobs, machines):
    machines.append(machine(jobs, "gone-1"))
    assert "give --yes to end them" in jobs.run("reap", status=2).stderr
    assert len(machines) == 1


def test_what_is_young_or_has_ended_is_left_alone(jobs, machines):
    machines += [machine(jobs, "gone-1", minutes=50), machine(jobs, "gone-2", state=InstanceState.ENDED)]
    jobs.run("reap", "--yes")
    assert len(machines) == 2
    jobs.run("reap", "--yes", "--older-than", "40m")
    assert [one.id for one in machines] == ["m-gone-2"]


def test_what_is_of_another_store_is_shown_and_ended_only_if_that_store_is_named_as_gone(
    jobs, machines, tmp_path
):
    there = f"file://{tmp_path}/elsewhere"
    machines += [machine(jobs, "theirs-1", store_url=there), machine(jobs, "theirs-2", store_url="")]
    said = jobs.run("reap", "--yes").stdout
    assert f"it belongs to {there}" in said
    assert "it belongs to a store that it does not name" in said
    assert len(machines) == 2
    jobs.run("reap", "--yes", "--gone-store", there + "/")
    assert [one.id for one in machines] == ["m-theirs-2"]


def test_a_store_with_live_jobs_is_not_gone(jobs, machines):
    jobs.submit("live-1")
    said = jobs.run("reap", "--gone-store", jobs.store.url, status=2).stderr
    assert f"{jobs.store.url} still exists, and these of its jobs may be live: live-1" in said


def test_only_a_store_whose_bucket_is_said_not_to_exist_is_gone(jobs, machines, monkeypatch):
    there = "s3://theirs"
    machines.append(machine(jobs, "theirs-1", store_url=there))
    refusal = [SpecError("AWS_ENDPOINT_URL leads nowhere")]

    class Unreadable(InMemoryStore):
        canonical_url = there

        def list_page(self, *_, **__):
            raise refusal[0]

    opened = reap_module.open_store
    monkeypatch.setattr(reap_module, "open_store", lambda url: Unreadable() if url == there else opened(url))
    said = jobs.run("reap", "--yes", "--gone-store", there, status=2).stderr
    assert "AWS_ENDPOINT_URL leads nowhere" in said
    assert len(machines) == 1
    refusal[0] = StoreMissing("there is no bucket 'theirs'")
    jobs.run("reap", "--yes", "--gone-store", there)
    assert machines == []


def test_several_stores_are_given_and_a_job_of_any_is_safe(jobs, machines, tmp_path):
    jobs.submit("live-1")
    there = f"file://{tmp_path}/elsewhere"
    FileStore(there).establish()
    machines += [machine(jobs, "live-1"), machine(jobs, "gone-1", store_url=there)]
    jobs.run("reap", "--yes", "--store", there, "--store", jobs.store.url)
    assert [one.id for one in machines] == ["m-live-1"]


@pytest.mark.full
def test_machines_whose_store_is_not_mounted_are_no_orphans(jobs, machines):
    """With nothing in the place of its disk, each of its jobs would count as removed."""
    jobs.submit("live-1")
    machines.append(machine(jobs, "live-1"))
    jobs.store.root.rename(jobs.store.root.with_name("unmounted"))
    jobs.store.root.mkdir()
    said = jobs.run("reap", "--yes", status=1).stderr
    assert "its disk is not mounted" in said
    assert [one.id for one in machines] == ["m-live-1"]
    assert list(jobs.store.root.iterdir()) == []


@pytest.mark.full
def test_a_store_that_is_away_keeps_no_other_from_telling_the_time(jobs, machines, tmp_path):
    """The search goes on, and says which one is away; without any store's time, this computer's counts."""
    away = FileStore(f"file://{tmp_path}/elsewhere")
    assert abs(reap_module._time_of([away, jobs.store]) - store_time(jobs.store)) < timedelta(seconds=60)
    assert abs(reap_module._time_of([away]) - datetime.now(timezone.utc)) < timedelta(seconds=60)
    machines.append(machine(jobs, "gone-1"))
    said = jobs.run("reap", "--yes", "--store", away.url, "--store", jobs.store.url, status=1)
    assert f"cannot look at the jobs of {away.url}" in said.stderr
    assert "1 more are kept" in said.stdout, "the store that is away may have a job of this id"


def test_what_cannot_be_ended_is_said_and_fails_the_command(jobs, machines, monkeypatch):
    machines.append(machine(jobs, "gone-1"))

    def refuse(*_):
        raise CloudspotError("it is protected")

    with monkeypatch.context() as patch:
        patch.setattr(LocalProvisioner, "terminate", refuse)
        said = jobs.run("reap", "--yes", status=1).stderr
        (one,) = jobs.run_json("reap", "--yes", status=1)["assets"]
    assert said == "warning: machine m-gone-1 was not ended: it is protected\n"
    assert (one["ended"], one["error"]) == (False, "it is protected")


def test_what_cannot_be_looked_at_is_said_and_fails_the_command(jobs, monkeypatch):
    def refuse(*_):
        raise AuthError("no right to list")

    with monkeypatch.context() as patch:
        patch.setattr(LocalProvisioner, "instances", refuse)
        said = jobs.run("reap", "--dry-run", status=1).stderr
    assert "cannot look at machines: no right to list" in said


def test_json_has_every_asset_with_its_fate(jobs, machines):
    machines += [machine(jobs, "gone-1"), machine(jobs, "theirs-1", store_url="file:///other")]
    found = jobs.run_json("reap", "--yes")
    assert found["unlisted"] == []
    assert [(one["id"], one["fate"], one["ended"]) for one in found["assets"]] == [
        ("m-gone-1", "orphan", True),
        ("m-theirs-1", "of another store", False),
    ]


def test_prices_are_added_up_by_currency():
    assets = [
        Asset(kind="machine", id="1", price_per_day=24.0),
        Asset(kind="machine", id="2", price_per_day=1.5),
        Asset(kind="machine", id="3", price_per_day=10.0, currency="CNY"),
        Asset(kind="disk", id="4"),
    ]
    judged = [reap_module.Judged(one, reap_module.Fate.ORPHAN, "") for one in assets]
    assert reap_module._sum_text(judged) == (
        "together 10.00 CNY and 25.50 USD a day; the price of 1 is unknown"
    )


def test_a_function_reaps_for_its_own_store_when_its_event_says_so(jobs, machines, monkeypatch):
    machines += [machine(jobs, "gone-1"), machine(jobs, "theirs-1", store_url="file:///other")]
    for name, value in {
        "CLOUDSPOT_STORE": jobs.store.url,
        function.NAME: "function x",
        function.EVERY: "120",
        function.PROVIDER: "local",
    }.items():
        monkeypatch.setenv(name, value)
    assert function.handle(json.loads(json.dumps(REAP_EVENT)), object()) == {"status": 0}
    assert [one.id for one in machines] == ["m-theirs-1"]


def test_driver_deploy_tells_the_function_to_reap_only_if_it_is_asked_to(jobs, monkeypatch):
    deployed = []

    class Host:
        def plan(self, function):
            return ("what it is",)

        def deploy(self, function):
            deployed.append(function)

    archive = FunctionArchive(data=b"zip", unpacked_bytes=1, needs_glibc=(0, 0))
    monkeypatch.setattr(driver_module, "make_function_archive", lambda _: archive)
    monkeypatch.setattr(LocalProvider, "function_host", lambda _: Host())
    monkeypatch.setattr(LocalProvider, "capabilities", frozenset({Capability.FUNCTIONS}))
    for arguments in ([], ["--reap"]):
        jobs.run("driver", "deploy", "--yes", *arguments)
    assert [one.reaps for one in deployed] == [False, True]
    assert {one.environment[function.PROVIDER] for one in deployed} == {"local"}
