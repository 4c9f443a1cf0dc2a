"""Jobs of an older or a newer cloudspot: listed, refused in one sentence, and removed if that is wanted."""

import os
import time

import msgspec
import pytest
from click.testing import CliRunner
from support.records.made_records import Records
from support.stores.directorystore import directory_store

from cloudspot.cli.main import program
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.jobs.job_lists import list_jobs
from cloudspot.jobstore.jobs.submission import submit
from cloudspot.jobstore.layout import codec, keys
from cloudspot.local.provisioner import LocalProvisioner

REFUSED = "job 'old' was submitted by an older cloudspot (format 1), and this version cannot drive it; finish or remove it"


@pytest.fixture
def store(tmp_path, local_home):
    """The job ``old`` was made before submissions had a format, and trained until an hour ago."""
    store = directory_store(tmp_path / "store")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text("")
    spec = spec_from_json({"name": "digits", "run": {"entrypoint": "train.py"}})
    for job_id in ("old", "new"):
        submit(store, spec=spec, provider="local", workdir=tmp_path / "work", environ={}, job_id=job_id)
    held = msgspec.json.decode(store.get(keys.spec("old")))
    del held["format"]
    store.put(keys.spec("old"), msgspec.json.encode({**held, "version": "0.9.1"}))
    store.put(keys.journal("old", 1), b'{"type":"an older record"}')
    store.put(keys.heartbeat("old", 1, 0), codec.encode(Records().heartbeat()))
    an_hour_ago = time.time() - 3600
    os.utime(store.root / keys.heartbeat("old", 1, 0), (an_hour_ago, an_hour_ago))
    return store


def run(store, *arguments):
    result = CliRunner().invoke(program, [*arguments], env={"CLOUDSPOT_STORE": store.url})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def test_it_is_listed_beside_the_others_with_the_reason_why_no_more_is_known(store):
    status, output = run(store, "ps")
    assert status == 8
    assert f"job old: {REFUSED} with cloudspot 0.9.1" in output
    assert "new " in output


@pytest.mark.parametrize("command", ["show", "stop", "resume", "logs"])
def test_whoever_would_act_on_it_hears_which_cloudspot_can(store, command):
    status, output = run(store, command, "old")
    assert (status, output) == (8, f"error: {REFUSED} with cloudspot 0.9.1")


def test_it_is_removed_with_force(store):
    status, output = run(store, "rm", "--yes", "old")
    assert status == 8
    assert f"{REFUSED} with cloudspot 0.9.1; to delete it anyway, add --force" in output
    assert set(list_jobs(store)) == {"old", "new"}
    status, output = run(store, "rm", "--yes", "--force", "old")
    assert status == 0, output
    assert list_jobs(store) == ("new",)
    assert not [meta for meta in store.list_objects("") if "old" in meta.key]


def test_it_is_not_removed_while_one_of_its_nodes_reports(store):
    store.put(keys.heartbeat("old", 1, 0), codec.encode(Records().heartbeat()))
    status, output = run(store, "rm", "--yes", "--force", "old")
    assert status == 1, output
    assert set(list_jobs(store)) == {"old", "new"}


@pytest.mark.parametrize("command", ["reconcile --job", "attach", "stop", "resume", "preempt", "rm --yes"])
def test_a_job_of_the_format_before_is_refused_before_anything_is_bought_or_deleted(
    store, monkeypatch, command
):
    """Its launches keep what their prices add up, and the region and the image, as text among the details."""
    held = msgspec.json.decode(store.get(keys.spec("new")))
    assert held["format"] == 5
    store.put(keys.spec("new"), msgspec.json.encode({**held, "format": 4, "version": "0.19.0"}))
    store.put(
        keys.journal("new", 1), codec.encode(Records().intent(offer=Records.offer(details=OLD_DETAILS)))
    )

    def forbidden(*_):
        raise AssertionError("a provider was asked")

    before = {one.key: one.etag for one in store.list_objects("")}
    with monkeypatch.context() as patch:
        for name in ("create", "terminate", "release", "instances", "offers"):
            patch.setattr(LocalProvisioner, name, forbidden)
        status, output = run(store, *command.split(), "new")
    assert status == 8
    assert (
        output.count(
            "job 'new' was submitted by an older cloudspot (format 4), and this version cannot drive it"
        )
        == 1
    )
    assert "finish or remove it with cloudspot 0.19.0" in output
    assert {one.key: one.etag for one in store.list_objects("")} == before


OLD_DETAILS = {
    "extras_per_hour": "0.01",
    "price_parts": "machine 0.3, disk 0.01",
    "region": "a",
    "image": "i",
}
