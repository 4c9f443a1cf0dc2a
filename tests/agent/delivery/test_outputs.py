"""Outputs: what a training writes below its working directory is kept, and returns where that harms nothing."""

import logging
import math
import os
import subprocess
import sys
import time
from urllib.parse import quote

import pytest
from support.stores.directorystore import directory_store
from support.stores.faultstore import FaultPlan, FaultyStore, Outage
from support.stores.memorystore import InMemoryStore

from cloudspot.agent.delivery import artifact_sync, outputs
from cloudspot.agent.delivery.artifact_sync import ArtifactSync
from cloudspot.agent.delivery.outputs import Outputs
from cloudspot.agent.node import Node
from cloudspot.errors import TransientError
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.logs.stored_artifacts import list_artifacts

PREFIX = keys.outputs_prefix("x")


class Machine:
    """A node of the job x, with its working directory and its sync; ``moment`` is its clock."""

    def __init__(self, store, root, *, rank=0, launch=1, begun=True, **tables):
        run = {"entrypoint": "train.py", **tables.pop("run", {})}
        spec = spec_from_json({"name": "x", "run": run, **tables})
        node = Node(
            job_id="x", launch=launch, store_url=store.url, provider="local", directory=root,
            train_python=sys.executable, arena=root / "arena", submission_sha256="5" * 64,
        )  # fmt: skip
        node.work.mkdir(parents=True, exist_ok=True)
        node.artifacts.mkdir(exist_ok=True)
        self.store = store
        self.work = node.work
        self.moment = time.time()
        self.warnings = {}
        self.outputs = None
        if spec.run.outputs != ():
            self.outputs = Outputs(node, spec, self.warnings.__setitem__, now=lambda: self.moment)
        self.sync = ArtifactSync(store, "x", node.artifacts, seat=Seat(launch, rank), outputs=self.outputs)
        if rank == 0:
            self.sync.take_root()
        if begun:
            self.begin()

    def begin(self):
        """Start the training, once the file system's clock shows another time than that of any file."""
        probe = self.work.parent / "probe"
        probe.touch()
        before = probe.stat().st_ctime_ns
        while probe.stat().st_ctime_ns == before:
            probe.touch()
        self.sync.begin_training()

    def write(self, name, data=b"x", *, age=0):
        """Write a file; ``age`` is how many seconds ago it says that it was written."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if age:
            os.utime(path, (time.time() - age, time.time() - age))
        return path

    def keep(self, *, exited_0=True):
        """End the training and make the last pass."""
        self.sync.end_training(exited_0=exited_0)
        self.sync.sync()
        return self.kept()

    def kept(self):
        return kept(self.store)

    def files(self):
        found = (path for path in self.work.rglob("*") if path.is_file())
        return {path.relative_to(self.work).as_posix(): path.read_bytes() for path in found}


def kept(store):
    """The outputs in the bucket, by their names."""
    return {keys.output.match(meta.key)[1]: store.get(meta.key) for meta in store.list_objects(PREFIX)}


@pytest.fixture
def store(tmp_path):
    return directory_store(tmp_path / "store")


@pytest.fixture
def machine(store, tmp_path):
    def make(name="a", **options):
        return Machine(store, tmp_path / name, **options)

    return make


def test_what_the_training_writes_is_kept_and_is_there_on_the_next_machine(machine, store):
    first = machine()
    odd = [
        "out/unet/model.bin",
        "ppo.zip",
        "tb/run 1/ü.txt",
        "100%",
        "b\udce9ta",
        "tokenizer.json",
        "scores/core/a",
    ]
    for name in odd:
        first.write(name, name.encode(errors="surrogateescape"))
    assert set(first.keep()) == {*odd}
    assert {one.name for one in list_artifacts(store, "x")} == {*odd}
    second = machine("b", launch=2)
    assert second.files() == first.files()
    assert second.keep() == kept(store)


def test_the_code_and_what_the_setup_wrote_are_no_outputs_until_they_change(machine):
    one = machine(begun=False)
    one.write("train.py", b"code")
    one.write("data.csv", b"rows")
    one.begin()
    assert one.keep() == {}
    one.begin()
    with (one.work / "data.csv").open("ab") as file:
        file.write(b" more")
    os.utime(one.work / "data.csv", (0, 0))  # some programs set the time back, as tar does
    assert one.keep() == {"data.csv": b"rows more"}


def test_an_agent_that_was_restarted_keeps_what_was_written_before(machine, store):
    machine().write("model.bin", b"weights")
    assert machine(begun=False).keep() == {"model.bin": b"weights"}


def test_secrets_leftovers_caches_and_links_are_never_kept(machine, tmp_path, caplog):
    one = machine()
    (tmp_path / "outside").write_text("outside")
    secrets = [
        ".env", ".ENV.local", "prod.env", "cfg/id_rsa", "key.pem", "x/server.key", ".netrc", "credentials.json",
        "out/token", "hub/HF_TOKEN", "my_api_key.txt", "secrets.yaml", "gcp-service-account-1.json",
    ]  # fmt: skip
    for name in [
        *secrets, "core", "core.123", "a.tmp", "a.lock", "m.pyc", ".git/config", ".ssh/known_hosts", ".aws/config",
        "__pycache__/x.txt", ".cache/huggingface/blob", "hf_cache/blob", ".venv/bin/python", "named/pyvenv.cfg",
        "named/lib/x", "tagged/CACHEDIR.TAG", "tagged/x", "e/conda-meta/history", "e/bin/x",
    ]:  # fmt: skip
        one.write(name)
    (one.work / "out" / "link").symlink_to(tmp_path / "outside")
    (one.work / "linked").symlink_to(tmp_path)
    one.write("out/model.bin")
    one.write("out/.hydra/config.yaml")
    assert one.keep() == {"out/model.bin": b"x", "out/.hydra/config.yaml": b"x"}
    assert "13 outputs are not kept because their names are those of secrets: " in caplog.text
    assert all(name in caplog.text for name in secrets)


def test_checkpoints_inputs_and_what_belongs_to_them_are_no_outputs(machine):
    one = machine(
        checkpoint={
            "directory": ["out/ckpt-*", "last.pt"], "complete_file": "done", "on_notice": "leave", "exclude": ["opt"],
        },
        data={"corpus": {"url": "file:///corpus/"}},
    )  # fmt: skip
    for name in ("out/ckpt-5/w", "out/ckpt-5/opt/x", "out/ckpt-5/done", "last.pt", "leave", "data/corpus/a"):
        one.write(name)
    one.write("out/latest", b"ckpt-5")
    for name in ("out/curve.png", "data/own", "elsewhere/done"):
        one.write(name)
    assert set(one.keep()) == {"out/curve.png", "data/own", "elsewhere/done"}


def test_where_all_of_the_directory_is_a_checkpoint_what_that_excludes_is_an_output(machine):
    one = machine(checkpoint={"directory": ".", "exclude": ["runs"]})
    one.write("model.pt")
    one.write("runs/a/events")
    assert set(one.keep()) == {"runs/a/events"}
    assert set(machine("b", checkpoint={"directory": ".", "exclude": ["runs"]}, launch=2).files()) == {
        "runs/a/events"
    }


def test_run_outputs_names_them_exactly_and_without_a_limit(machine, monkeypatch):
    monkeypatch.setattr(outputs, "MAX_BYTES", 10)
    monkeypatch.setattr(artifact_sync, "MAX_BYTES", 10)
    one = machine(run={"outputs": ["out", "*.zip", "hf_cache", "**/*.png"]})
    for name in (
        "out/a/big",
        "ppo.zip",
        "hf_cache/blob",
        "x/y/z.png",
        "other",
        "out/__pycache__/x",
        "out/token",
    ):
        one.write(name, b"x" * 100)
    one.write(".venv/lib/logo.png")
    assert set(one.keep()) == {"out/a/big", "ppo.zip", "hf_cache/blob", "x/y/z.png"}


def test_no_pattern_leads_out_through_a_link(machine, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "passwd").write_text("root")
    one = machine(run={"outputs": ["linked/*", "linked"]})
    (one.work / "linked").symlink_to(tmp_path / "outside")
    assert one.keep() == {}


def test_an_empty_list_turns_them_off_and_brings_none_back(machine, store):
    store.put(keys.output("x", "old"), b"x")
    one = machine(run={"outputs": []})
    one.write("new")
    assert set(one.keep()) == {"old"}
    assert set(one.files()) == {"new"}


# --- while the training runs ----------------------------------------------------------------------------


def test_a_file_counts_once_it_is_quiet_and_a_log_as_far_as_it_is(machine):
    one = machine()
    one.write("model.bin")
    one.write("tb/events.out.tfevents.1", b"first")
    one.sync.sync()
    assert one.kept() == {"tb/events.out.tfevents.1": b"first"}
    one.moment += 11
    one.sync.sync()
    assert set(one.kept()) == {"model.bin", "tb/events.out.tfevents.1"}


def test_what_a_process_has_open_for_writing_is_not_kept_before_the_end(machine):
    one = machine()
    code = "import sys; f = open(sys.argv[1], 'wb'); f.write(b'half'); f.flush(); print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, str(one.work / "model.bin")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        one.moment += 3600
        one.sync.sync()
        assert one.kept() == {}
        writer.stdin.close()
        writer.wait(30)
    one.sync.sync()
    assert one.kept() == {"model.bin": b"half"}


def test_what_is_written_while_it_is_read_is_not_kept_torn(machine, monkeypatch):
    monkeypatch.setattr(artifact_sync, "_BLOCK", 4)
    one = machine()
    path = one.write("model.bin", b"0123456789")
    one.moment += 11
    real, opened = FaultyStore.open_upload, []

    def open_upload(self, key, **options):
        opened.append(key)
        path.write_bytes(b"9876543210")
        return real(self, key, **options)

    monkeypatch.setattr(FaultyStore, "open_upload", open_upload)
    one.sync._store = FaultyStore(one.store, FaultPlan(), path.parent.parent / "faults")
    one.sync.sync()
    assert (len(opened), one.kept()) == (1, {})


def test_what_a_killed_training_was_writing_does_not_replace_an_older_state(machine, caplog):
    one = machine()
    one.write("model.bin", b"whole")
    one.moment += 11
    one.sync.sync()
    one.moment = time.time()
    one.write("model.bin", b"torn")
    one.write("new.bin", b"torn, too")
    assert one.keep(exited_0=False) == {"model.bin": b"whole", "new.bin": b"torn, too"}
    assert "while it may have been writing these outputs" in caplog.text
    assert "new.bin (9 B), model.bin (4 B)" in caplog.text
    one.begin()  # again, on this machine
    one.moment += 3600
    one.sync.sync()
    assert one.kept()["model.bin"] == b"whole"
    one.write("model.bin", b"whole again")
    assert one.keep()["model.bin"] == b"whole again"


def test_a_training_that_ended_by_itself_leaves_nothing_torn(machine, caplog):
    one = machine()
    one.write("model.bin")
    assert one.keep() == {"model.bin": b"x"}
    assert "may have been writing" not in caplog.text


def test_a_pass_at_a_notice_takes_what_was_quiet_for_two_seconds_and_gives_way_to_a_checkpoint(
    machine, monkeypatch
):
    monkeypatch.setattr(artifact_sync, "LEAVING_SECONDS", 0.0)
    one = machine()
    one.write("model.bin")
    one.moment += 3
    one.sync.sync()
    assert one.kept() == {}
    monkeypatch.setattr(one.outputs, "_is_leaving", lambda: True)
    must_yield = iter([True, True, True, False, True])
    passes = []
    monkeypatch.setattr(one.sync, "_is_leaving", lambda: True)
    monkeypatch.setattr(one.sync, "_must_yield", lambda: next(must_yield))
    real = one.sync.sync

    def sync(**options):
        passes.append(options["until"]())
        real()
        one.sync._stopped.set()

    monkeypatch.setattr(one.sync, "sync", sync)
    one.sync._run()
    assert (passes, set(one.kept())) == ([-math.inf], {"model.bin"})


# --- the limit --------------------------------------------------------------------------------------------


@pytest.fixture
def limited(monkeypatch):
    monkeypatch.setattr(outputs, "MAX_BYTES", 1000)
    monkeypatch.setattr(artifact_sync, "MAX_BYTES", 1000)


@pytest.mark.usefixtures("limited")
def test_the_newest_are_kept_and_the_rest_is_listed(machine, caplog):
    one = machine()
    for number in range(30):
        one.write(f"data/{number:02d}.jpg", b"x" * 90, age=100 + number)
    one.write("out/model.bin", b"x" * 300)
    kept = one.keep()
    assert set(kept) == {"out/model.bin", *(f"data/{number:02d}.jpg" for number in range(7))}
    why = "because a job keeps the newest 1000 B; name outputs in run.outputs to keep them without a limit: "
    assert f"23 outputs are not kept {why}data/07.jpg (90 B), data/08.jpg (90 B)" in caplog.text
    assert "and 3 more (270 B)" in caplog.text
    assert [text for text in one.warnings.values() if text] == [
        record.getMessage() for record in caplog.records if "are not kept" in record.getMessage()
    ]


@pytest.mark.usefixtures("limited")
def test_a_result_that_comes_last_makes_older_ones_go(machine, caplog):
    one = machine()
    one.write("data.bin", b"x" * 900, age=3600)
    one.moment += 11
    one.sync.sync()
    assert set(one.kept()) == {"data.bin"}
    one.write("model.bin", b"x" * 200)
    assert set(one.keep()) == {"model.bin"}
    assert "deleted from the store to make room for newer outputs: data.bin (900 B)" in caplog.text
    assert "1 outputs are not kept" in caplog.text


@pytest.mark.usefixtures("limited")
def test_older_ones_go_only_when_the_newer_are_in_the_store(machine, tmp_path):
    one = machine()
    one.write("data.bin", b"x" * 900, age=3600)
    one.moment += 11
    one.sync.sync()
    one.moment = time.time()
    one.write("model.bin", b"x" * 200)
    one.sync.sync()  # it may still be written
    assert set(one.kept()) == {"data.bin"}
    one.sync.end_training(exited_0=True)
    one.sync._store = FaultyStore(
        one.store, FaultPlan(outages=(Outage(start=0.0, end=math.inf),)), tmp_path / "faults"
    )
    with pytest.raises(TransientError, match="outage"):
        one.sync.sync(until=lambda: time.monotonic() + 0.05)
    assert set(one.kept()) == {"data.bin"}
    one.sync._store = one.store
    one.sync.sync()
    assert set(one.kept()) == {"model.bin"}


@pytest.mark.usefixtures("limited")
def test_what_was_kept_and_deleted_stays_while_there_is_room(machine):
    one = machine()
    for name in ("a", "b"):
        one.write(name, b"x" * 400)
    one.moment += 11
    one.sync.sync()
    (one.work / "a").unlink()
    one.write("c", b"x" * 100)
    one.keep()
    assert set(one.kept()) == {"a", "b", "c"}
    one.begin()
    one.write("d", b"x" * 200)
    assert set(one.keep()) == {"b", "c", "d"}


@pytest.mark.usefixtures("limited")
def test_a_file_larger_than_the_limit_is_named_before_the_end_and_its_older_state_stays(machine, caplog):
    one = machine()
    one.write("model.bin", b"small")
    one.moment += 11
    one.sync.sync()
    one.write("model.bin", b"x" * 2000)
    assert one.keep() == {"model.bin": b"small"}
    assert "model.bin (2.0 KiB)" in caplog.text


@pytest.mark.usefixtures("limited")
def test_other_nodes_keep_theirs_under_their_seats_in_a_quarter_of_the_limit(machine, store):
    first, second, third = (machine(str(rank), rank=rank, nodes={"min": 1, "max": 3}) for rank in range(3))
    for one in (second, third):
        one.write("shard.bin", b"x" * 150)
        one.keep()
    first.write("model.bin", b"x" * 740)
    first.write("other.bin", b"x" * 20, age=100)
    assert {name: len(data) for name, data in first.keep().items()} == {
        "model.bin": 740, "node-1.1/shard.bin": 150,
    }  # fmt: skip
    assert [len(text) > 0 for text in third.warnings.values() if text] == [True]
    assert set(machine("next", launch=2).files()) == {"model.bin"}


# --- the return -----------------------------------------------------------------------------------------


def test_nothing_returns_over_a_file_that_is_here(machine, store):
    store.put(keys.output("x", "train.csv"), b"of the machine before")
    one = machine(begun=False, rank=1)
    one.write("train.csv", b"as it came")
    one.sync.take_root()
    assert one.files() == {"train.csv": b"as it came"}


def test_nothing_returns_that_could_pass_for_a_checkpoint_a_secret_or_a_program(machine, store, tmp_path):
    names = [
        "ckpt/step-5/w", "ckpt/step-6", "last.pt", "torch.py", "pkg/_ext.cpython-311-x86_64-linux-gnu.so", "lib.so.1", ".env",
        ".git/config", ".venv/lib/python3/site-packages/a.pth", "own-venv/lib/a.pth", "leave", "data/corpus/a",
        "linked/x",
    ]  # fmt: skip
    for name in [*names, "out/model.pth", "node-1.1/out"]:
        store.put(keys.output("x", name), b"x")
    for name in ("../out", "/etc/x"):
        store.put(PREFIX + quote(name, safe=""), b"x")
    one = machine(
        begun=False,
        rank=1,
        checkpoint={"directory": ["ckpt/step-*", "./last.pt"], "on_notice": "leave"},
        data={"corpus": {"url": "file:///corpus/"}},
    )
    one.write("own-venv/pyvenv.cfg")
    (tmp_path / "outside").mkdir()
    (one.work / "linked").symlink_to(tmp_path / "outside")
    one.sync.take_root()
    assert set(one.files()) == {"own-venv/pyvenv.cfg", "out/model.pth"}
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_file_that_vanishes_and_one_that_may_not_be_read_hold_up_no_other(machine, monkeypatch, caplog):
    one = machine()
    for name in ("a", "gone", "z"):
        one.write(name)
    closed = one.write("closed")
    real = ArtifactSync._upload

    def upload(self, key, found, until):
        if found.name == "gone":
            found.path.unlink()
        if found.name == "closed":
            raise PermissionError(13, "Permission denied", str(closed))
        real(self, key, found, until)

    monkeypatch.setattr(ArtifactSync, "_upload", upload)
    assert set(one.keep()) == {"a", "z"}
    assert "artifact 'closed' is left out" in caplog.text


def test_the_log_names_what_is_kept_with_its_size_once(machine, caplog):
    caplog.set_level(logging.INFO)
    one = machine()
    one.write("out/model.bin", b"x" * 2048)
    one.write("b\udce9ta.csv")
    one.keep()
    one.sync.sync()
    told = [record.getMessage() for record in caplog.records if "kept as artifacts" in record.getMessage()]
    assert told == ["kept as artifacts: out/model.bin (2.0 KiB), b\\udce9ta.csv (1 B)"]


def test_many_small_files_are_sent_at_once_and_looking_at_them_again_takes_little(tmp_path):
    one = Machine(InMemoryStore(), tmp_path / "a")
    for number in range(500):
        one.write(f"out/{number % 20}/{number}.png")
    assert len(one.keep()) == 500
    one.begin()
    began = time.process_time()
    one.sync.sync()
    assert time.process_time() - began < 0.5


def test_a_file_that_became_a_directory_makes_room_for_what_is_in_it(machine):
    """A store in a directory cannot hold both names."""
    one = machine()
    one.write("out", b"a file")
    one.write("runs/last/log", b"in a directory")
    one.keep()
    one.begin()
    (one.work / "out").unlink()
    one.write("out/model.bin", b"below it")
    one.work.joinpath("runs/last/log").unlink()
    (one.work / "runs" / "last").rmdir()
    one.write("runs/last", b"a file by now")
    assert one.keep() == {"out/model.bin": b"below it", "runs/last": b"a file by now"}
