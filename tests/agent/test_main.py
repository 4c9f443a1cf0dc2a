"""The agent's process: what ends it, and what it says where it cannot even read the job."""

import os
import re
import subprocess
import sys
from datetime import timedelta
from unittest import mock

import msgspec
import pytest
from support.records.made_journal import append
from support.records.made_records import Records
from support.stores.faultstore import DenyingStore

from cloudspot.agent import main, store_retry
from cloudspot.errors import PluginFault, SpecError, TransientError
from cloudspot.jobstore.access import store_clock
from cloudspot.jobstore.access.store_clock import StoreClock, utc_now
from cloudspot.jobstore.access.wrapped_store import WrappedStore
from cloudspot.jobstore.jobs.submission import hash_of
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.nodes import launches
from cloudspot.local.filestore import FileStore
from cloudspot.model import NodeIdentity

JOB = "digits-1"


@pytest.mark.full
def test_a_thread_that_fails_ends_the_process_with_its_traceback_in_the_log(bench):
    script = (
        "import sys, threading, time\n"
        "from cloudspot.agent import main\n"
        "from cloudspot.agent.node import Node\n"
        "import os\n"
        "main._log_to(Node.from_environment(os.environ))\n"
        "threading.excepthook = main.end_process\n"
        "threading.Thread(target=lambda: [][0], name='courier').start()\n"
        "time.sleep(60)\n"
    )
    node = bench.node()
    environment = {
        **os.environ, "CLOUDSPOT_JOB": JOB, "CLOUDSPOT_LAUNCH": "1", "CLOUDSPOT_STORE": bench.store.url,
        "CLOUDSPOT_PROVIDER": "local", "CLOUDSPOT_NODE_DIR": str(node.directory), "CLOUDSPOT_TRAIN_PYTHON": "x",
        "CLOUDSPOT_SUBMISSION": "5" * 64,
        "CLOUDSPOT_ARENA": str(bench.root / "arena"),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script], env=environment, timeout=60)
    assert done.returncode == 1
    log = (node.logs / "agent.log").read_text()
    assert "thread 'courier' failed: this agent ends" in log
    assert "IndexError: list index out of range" in log


@pytest.mark.full
def test_a_machine_without_its_providers_plugin_ends_with_the_reason_on_its_console(bench):
    submission = bench.life().context.job.submission
    bench.store.put(keys.spec(JOB), codec.encode(submission))
    environment = {
        **os.environ, "CLOUDSPOT_JOB": JOB, "CLOUDSPOT_LAUNCH": "1", "CLOUDSPOT_STORE": bench.store.url,
        "CLOUDSPOT_PROVIDER": "nowhere", "CLOUDSPOT_NODE_DIR": str(bench.node().directory),
        "CLOUDSPOT_TRAIN_PYTHON": "x", "CLOUDSPOT_SUBMISSION": hash_of(codec.encode(submission)),
        "CLOUDSPOT_ARENA": str(bench.root / "arena"),
    }  # fmt: skip
    command = [sys.executable, "-m", "cloudspot.agent"]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == main.CANNOT_SERVE == 3
    [line] = done.stderr.splitlines()
    assert line.startswith("cloudspot: this machine cannot serve its job: ")
    assert "nowhere" in line
    assert launches.read_slots(bench.store, JOB, 1) == {}


@pytest.fixture
def given(bench, monkeypatch):
    monkeypatch.setattr(main, "open_provider", lambda name, spec: bench.provider)
    monkeypatch.setattr(main, "with_driver_options", lambda spec, _name, _options: spec)
    return bench


def test_a_job_that_this_version_cannot_read_ends_with_the_reason(given):
    main.refuse(given.node(), given.store, SpecError("stored job: run.gpu is unknown"))
    record = given.exit_record()
    assert (record.outcome, record.permanent, record.instance_id) == ("failed", True, "m-1")
    assert record.detail == "the node cannot run the job: stored job: run.gpu is unknown"
    assert launches.read_slots(given.store, JOB, 1)[0].instance_id == "m-1"


@pytest.mark.parametrize("shift", [-86400.0, -3600.0, 3600.0, 86400.0])
def test_what_a_machine_writes_says_when_by_the_stores_clock(given, shift):
    """By its own, a job was stopped at a hundredth of its limit, or billed for a day too much."""
    wrong = StoreClock(wall=lambda: utc_now() + timedelta(seconds=shift))
    store_clock._clocks[given.store.canonical_url] = wrong
    main.refuse(given.node(), given.store, SpecError("unknown"))
    for written in (launches.read_slots(given.store, JOB, 1)[0], given.exit_record()):
        assert abs((written.at - utc_now()).total_seconds()) < 30.0


def test_a_machine_that_may_not_read_its_job_says_so_on_its_console_and_is_no_crash(
    given, monkeypatch, capsys
):
    """It was started ten times, and then another machine was bought, twice."""
    monkeypatch.setattr(store_retry, "DENIED_SECONDS", 0.0)
    node = given.node()
    denied = DenyingStore(given.store, lambda method, key: True)
    monkeypatch.setattr(main, "open_job_store", lambda url, store_id: denied)
    monkeypatch.setattr(main.Node, "from_environment", lambda environ: node)
    assert main.main() == main.CANNOT_SERVE
    assert capsys.readouterr().err == (
        "cloudspot: this machine cannot serve its job: access denied: the credentials lack store:get\n"
    )
    assert (node.logs / "agent.log").read_text().count("Traceback") == 0


def test_a_fault_of_a_plugins_call_is_an_accident_since_the_next_agent_may_be_luckier(
    given, monkeypatch, capsys
):
    fault = PluginFault(
        'store plugin "sky" of cloudspot-sky 1.2 is broken: ObjectStore.get() raised KeyError'
    )

    def get(key):
        raise fault

    node = given.node()
    monkeypatch.setattr(given.store, "get", get)
    monkeypatch.setattr(main, "open_job_store", lambda url, store_id: given.store)
    monkeypatch.setattr(main.Node, "from_environment", lambda environ: node)
    assert main.main() == 1
    assert capsys.readouterr().err == f"cloudspot: {fault}\n"


@pytest.mark.full
def test_a_machine_whose_store_has_no_mark_says_so_on_its_console_and_gives_up(
    given, monkeypatch, capsys, tmp_path
):
    """As where an image has an empty directory in the place of the store's disk."""
    node = given.node()
    node.store_url, node.store_id = f"file://{tmp_path}/disk", None
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(main, "START_SECONDS", 0.0)
    monkeypatch.setattr(main.Node, "from_environment", lambda environ: node)
    assert main.main() == 1
    assert re.fullmatch(r"cloudspot: file://.*, or its disk is not mounted: .*\n", capsys.readouterr().err)
    assert list((tmp_path / "disk").iterdir()) == []


@pytest.mark.full
@pytest.mark.parametrize("part", ["the store's time", "its seat"])
def test_a_machine_that_cannot_write_to_its_store_gives_up_after_a_while(given, monkeypatch, capsys, part):
    class Full(WrappedStore):
        def _call(self, method, key, request):
            if method == "put" and ("/launches/" in key) == (part == "its seat"):
                raise TransientError("No space left on device")
            return request()

    waited = []

    def sleep(seconds):
        waited.append(seconds)
        assert sum(waited) < 1000, "it waits without an end"

    submission = codec.encode(given.life().context.job.submission)
    given.store.put(keys.spec(JOB), submission)
    node = given.node()
    node.submission_sha256 = hash_of(submission)
    monkeypatch.setattr("cloudspot.calls.retrying.SHORT_WAITS", ())
    monkeypatch.setattr(main, "START_SECONDS", 0.2)
    monkeypatch.setattr(store_retry.time, "sleep", sleep)
    monkeypatch.setattr(store_retry.time, "monotonic", lambda: sum(waited))
    monkeypatch.setattr(main, "open_job_store", lambda url, store_id: Full(given.store))
    monkeypatch.setattr(main.Node, "from_environment", lambda environ: node)
    assert main.main() == 1
    assert re.fullmatch(r"cloudspot: .*No space left on device\n", capsys.readouterr().err)
    assert sum(waited) == pytest.approx(main.START_SECONDS)


@pytest.mark.full
def test_an_agent_asks_no_directory_but_that_of_its_jobs_id(given, monkeypatch, tmp_path):
    """Another disk at the same place may have a job of the same id."""
    store = FileStore(f"file://{tmp_path}/disk")
    store.establish()
    store.put(keys.spec(JOB), codec.encode(given.life().context.job.submission))
    node = given.node()
    node.store_url, node.store_id = store.url, "0a" * 16
    monkeypatch.setattr(main, "START_SECONDS", 0.0)
    before = sorted(store.root.rglob("*"))
    with pytest.raises(TransientError, match="another store is mounted there: its store-id is"):
        main._live(node, pipe=None)
    assert sorted(store.root.rglob("*")) == before


def test_a_machine_whose_index_another_has_too_speaks_for_the_seat_that_it_takes(given):
    append(given.store, JOB, Records().intent(1, num_nodes=2))
    launches.claim_slot(given.store, JOB, 1, 0, NodeIdentity(instance_id="m-0", rank=0, address="10.0.0.9"))
    main.refuse(given.node(), given.store, SpecError("unknown"))
    assert launches.read_slots(given.store, JOB, 1)[1].instance_id == "m-1"
    assert given.exit_record(rank=1).instance_id == "m-1"


def test_a_machine_without_the_slot_says_nothing(given):
    launches.void_slot(given.store, JOB, 1, 0, "voided: too late")
    main.refuse(given.node(), given.store, SpecError("unknown"))
    assert [meta.key for meta in given.store.list_objects(keys.nodes_prefix(JOB))] == []


@pytest.mark.parametrize(
    "change",
    [
        {"code_sha256": "e" * 64},
        {"spec": {"name": "digits", "run": {"entrypoint": "train.py", "setup": "evil"}}},
    ],
)
def test_a_submission_that_was_replaced_after_the_launch_was_requested_is_not_run(given, monkeypatch, change):
    submission = given.life().context.job.submission
    node = given.node()
    node.submission_sha256 = hash_of(codec.encode(submission))
    lives = []
    monkeypatch.setattr(main, "Life", lambda *parts: lives.append(parts) or mock.Mock())
    given.store.put(keys.spec(JOB), codec.encode(msgspec.structs.replace(submission, writer="again")))
    monkeypatch.setattr(main, "open_job_store", lambda url, store_id: given.store)
    main._live(node, pipe=None)
    assert len(lives) == 1  # The same but for its time and nonce.
    given.store.put(keys.spec(JOB), codec.encode(msgspec.structs.replace(submission, **change)))
    main._live(node, pipe=None)
    assert len(lives) == 1
    record = given.exit_record()
    assert (record.outcome, record.permanent) == ("failed", True)
    assert re.fullmatch(
        f"the node cannot run the job: neither jobs/{JOB}/spec nor jobs/{JOB}/submissions/[0-9a-f]{{64}} is the"
        " requested submission",
        record.detail,
    )
