"""ArtifactSync: every file reaches the bucket and the next machine, whatever its name or size."""

import errno
import math
import threading
import time
from urllib.parse import quote

import pytest
from support.stores.directorystore import directory_store
from support.stores.faultstore import FaultPlan, FaultyStore

from cloudspot.agent.delivery import artifact_sync
from cloudspot.agent.delivery.artifact_sync import ArtifactSync
from cloudspot.errors import TransientError
from cloudspot.jobstore.layout.records import Seat
from cloudspot.local.filestore import FileStore


@pytest.fixture
def store(tmp_path):
    return directory_store(tmp_path / "store")


def of(store, directory, rank=0, launch=1):
    """Return the sync of a node; rank 0 is the first of its training."""
    directory.mkdir(exist_ok=True)
    sync = ArtifactSync(store, "x", directory, seat=Seat(launch, rank))
    if rank == 0:
        sync.take_root()
    return sync


def contents(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_the_next_machine_has_the_files_of_the_one_before(store, tmp_path, monkeypatch):
    monkeypatch.setattr(artifact_sync, "_BLOCK", 1000)
    first = of(store, tmp_path / "a")
    odd = ["plain.txt", "sub/deep er/ü.bin", "100%.txt", "node-results.txt", "b\udce9ta"]
    for name in odd:
        path = tmp_path / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode(errors="surrogateescape") * 500)  # more than a block
    (tmp_path / "a" / "empty").touch()
    first.sync()
    of(store, tmp_path / "b")
    assert contents(tmp_path / "b") == contents(tmp_path / "a")
    assert set(contents(tmp_path / "b")) == {*odd, "empty"}


def test_nodes_do_not_mix_their_files(store, tmp_path):
    second = of(store, tmp_path / "b", rank=1)
    (tmp_path / "b" / "log").write_text("of rank 1")
    second.sync()
    of(store, tmp_path / "a")
    assert contents(tmp_path / "a") == {}
    assert [meta.key for meta in store.list_objects("")] == ["jobs/x/artifacts/node-1.1/log"]


def test_a_node_that_becomes_the_first_goes_on_with_what_the_first_before_it_has_left(store, tmp_path):
    """And what it had written by itself does not replace that."""
    first, second = of(store, tmp_path / "a"), of(store, tmp_path / "b", rank=1)
    for name, sync in (("a", first), ("b", second)):
        (tmp_path / name / "log").write_text(f"by {name}")
        sync.sync()
    (tmp_path / "a" / "model").write_text("of step 100")
    first.sync()
    second.take_root()
    assert contents(tmp_path / "b") == {"log": b"by b", "model": b"of step 100"}
    (tmp_path / "b" / "model").write_text("of step 200")
    second.sync()
    of(store, tmp_path / "c", launch=2)
    assert contents(tmp_path / "c") == {"log": b"by a", "model": b"of step 200"}


def test_only_what_changed_is_uploaded_again(store, tmp_path):
    counting = FaultyStore(store, FaultPlan(), tmp_path / "state")
    synced = of(counting, tmp_path / "a")
    (tmp_path / "a" / "one").write_text("1")
    synced.sync()
    synced.sync()
    assert counting.calls["put"] == 1
    (tmp_path / "a" / "one").write_text("22")
    synced.sync()
    assert counting.calls["put"] == 2


def test_a_lost_answer_costs_no_pass_but_a_repeat_at_once_while_there_is_time(store, tmp_path, monkeypatch):
    """Put in the next pass, it met the loss again: the log line about the first was the put in between."""
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    losing = FaultyStore(store, FaultPlan(lose_every=2), tmp_path / "state")
    artifacts = of(losing, tmp_path / "a")
    for name in ("one", "two"):
        (tmp_path / "a" / name).write_text(name)
    artifacts.sync()
    assert (losing.calls["put"], len(waits)) == (3, 1)
    (tmp_path / "a" / "three").write_text("three")
    with pytest.raises(TransientError, match="injected"):
        artifacts.sync(until=iter((1e9, 1e9, 0.0, 0.0)).__next__)


def test_an_agent_killed_in_a_restore_leaves_no_half_of_a_file(store, tmp_path, monkeypatch):
    monkeypatch.setattr(artifact_sync, "_BLOCK", 4)
    first = of(store, tmp_path / "a")
    (tmp_path / "a" / "model").write_bytes(b"0123456789")
    first.sync()
    failing = FaultyStore(store, FaultPlan(fail_every=3), tmp_path / "state")  # within the file
    with pytest.raises(TransientError):
        of(failing, tmp_path / "b")
    assert contents(tmp_path / "b") == {}
    of(store, tmp_path / "b").sync()
    of(store, tmp_path / "b")
    assert contents(tmp_path / "b") == {"model": b"0123456789"}


def test_a_key_that_means_an_absolute_path_is_not_written_there(store, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in (f"{outside}/cron", "../outside/cron", "link/cron", "good"):
        store.put("jobs/x/artifacts/" + quote(name, safe=""), b"* * * * * root id")
    synced = of(store, tmp_path / "a", rank=1)
    (tmp_path / "a" / "link").symlink_to(outside)
    synced.take_root()
    assert list(outside.iterdir()) == []
    assert (tmp_path / "a" / "good").read_bytes() == b"* * * * * root id"


def test_a_disk_that_fills_up_keeps_no_half_of_a_file(store, tmp_path, monkeypatch, caplog):
    first = of(store, tmp_path / "a")
    (tmp_path / "a" / "model").write_bytes(b"0123456789")
    first.sync()

    def fail(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileStore, "get_range", fail)
    of(store, tmp_path / "b")
    assert "artifact 'model' is not restored: [Errno 28] No space left on device" in caplog.text
    assert sorted(path.name for path in tmp_path.rglob("*") if "store" not in path.parts) == [
        "a",
        "b",
        "model",
    ]


def test_a_file_that_cannot_be_kept_holds_up_no_other(store, tmp_path):
    synced = of(store, tmp_path / "a")
    for name in ("é" * 100, "unreadable", "z"):  # the first has no key: too long when quoted
        (tmp_path / "a" / name).write_text(name)
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    synced.sync()
    of(store, tmp_path / "b")
    assert set(contents(tmp_path / "b")) == {"unreadable", "z"}


def test_a_name_that_is_a_directory_now_is_passed_over(store, tmp_path):
    first = of(store, tmp_path / "a")
    (tmp_path / "a" / "out").write_text("a file")
    (tmp_path / "a" / "z").write_text("z")
    first.sync()
    second = of(store, tmp_path / "b", rank=1)
    (tmp_path / "b" / "out").mkdir()
    second.take_root()
    assert contents(tmp_path / "b") == {"z": b"z"}


def test_a_sync_ends_at_its_deadline_between_files_and_within_one(store, tmp_path, monkeypatch):
    monkeypatch.setattr(artifact_sync, "_BLOCK", 4)
    synced = of(store, tmp_path / "a")
    (tmp_path / "a" / "big").write_bytes(b"x" * 4000)
    asked = []

    def until():
        asked.append(1)
        return time.monotonic() + (60.0 if len(asked) < 10 else -1.0)

    with pytest.raises(TransientError, match="in time"):
        synced.sync(until=until)
    assert list(store.list_objects("jobs/x/artifacts/")) == []
    with synced._lock, pytest.raises(TransientError, match="in time"):
        synced.sync(until=time.monotonic)  # while the background pass uploads


def test_what_prepares_a_pass_hears_when_it_should_end(store, tmp_path):
    """The last pass waited for a background pass that read long metrics, until its time was up."""
    ends = []
    kept = ArtifactSync(store, "x", tmp_path, seat=Seat(1, 0), prepare=ends.append)
    kept.sync()
    kept.sync(until=lambda: -math.inf)
    stopped = threading.Event()
    kept.sync(is_stopped=stopped.is_set)
    assert [should_end() for should_end in ends] == [False, True, False]
    stopped.set()
    assert ends[2]()


def test_a_background_pass_stops_to_prepare_when_the_last_one_waits(store, tmp_path, monkeypatch):
    monkeypatch.setattr("cloudspot.agent.delivery.artifact_sync.SYNC_SECONDS", 0.0)
    begun, ended = threading.Event(), threading.Event()

    def prepare(should_end):
        begun.set()
        if not ended.is_set():
            while not should_end():
                pass
            ended.set()

    kept = ArtifactSync(store, "x", tmp_path, seat=Seat(1, 0), prepare=prepare)
    kept.start()
    assert begun.wait(20.0)
    kept.stop()
    kept.sync(until=lambda: math.inf)
    assert ended.is_set()


def test_what_is_made_from_others_is_up_to_date_in_each_pass(store, tmp_path):
    directory = tmp_path / "a"
    directory.mkdir()
    made = iter(["one", "two!"])
    kept = ArtifactSync(
        store, "x", directory, seat=Seat(1, 0), prepare=lambda _: (directory / "made").write_text(next(made))
    )
    kept.take_root()
    for expected in (b"one", b"two!"):
        kept.sync()
        assert store.get("jobs/x/artifacts/made") == expected
