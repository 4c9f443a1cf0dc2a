"""Restoring: the newest checkpoint that verifies, nothing thrown away, nothing of the wrong machine."""

import errno
import json
import math
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from unittest import mock

import pytest
from support.records.made_journal import commit
from support.records.uploads import upload_files
from support.stores.faultstore import FaultPlan, FaultyStore

from cloudspot.agent.delivery import checkpoint_restore
from cloudspot.agent.delivery.checkpoint_restore import restore_newest, restore_this
from cloudspot.agent.leaving import LeavingError
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.jobstore.access.wrapped_store import WrappedStore
from cloudspot.jobstore.checkpoints import fetching, retention
from cloudspot.jobstore.checkpoints.manifests import Superseded
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import File, SaveId

JOB = "digits-1"
CHUNK_BYTES = 1 << 16


def put_directory(bench, checkpoint, name, text, **options):
    root = bench.root / "made"
    root.mkdir(exist_ok=True)
    (root / "model").write_text(text)
    save = SaveId(checkpoint.generation, checkpoint.step, 0)
    files = [File(path="model", size=len(text), mode=0o644)]
    upload_files(bench.store, JOB, save, root, files, name, sealed_at=datetime.now(timezone.utc), **options)
    commit(bench.store, JOB, checkpoint)


def test_without_a_checkpoint_the_job_starts_from_the_beginning(bench):
    restored = restore_newest(bench.life().context)
    assert (restored.checkpoint, restored.directory, restored.skipped) == (None, None, ())


def test_the_newest_one_of_the_lineage_is_on_the_disk_afterwards(bench):
    for step in (10, 20):
        bench.commit(bench.id(1, step), f"weights {step}".encode())
    life = bench.life()
    (life.context.node.restore).mkdir()
    (life.context.node.restore / "part-7.bin").write_text("of a restore that was cut short")
    restored = restore_newest(life.context)
    assert restored.checkpoint == bench.id(1, 20)
    assert json.loads((restored.directory / "restore.json").read_text())["step"] == 20
    assert (restored.directory / "part-0.bin").read_bytes() == b"weights 20"
    assert not (restored.directory / "part-7.bin").exists()


def test_a_whole_save_that_nobody_had_committed_is_told_without_a_guess_why(bench, monkeypatch, caplog):
    """It said that a node had been lost, although none had."""
    bench.commit(bench.id(1, 10), b"weights 10")
    found = (bench.id(1, 10),)
    monkeypatch.setattr(checkpoint_restore.manifests, "complete", lambda *_arguments: found)
    caplog.set_level("INFO", logger=checkpoint_restore.__name__)
    restore_newest(bench.life().context)
    assert "checkpoint 1-10 was complete but not committed yet; it is committed now" in caplog.messages


def test_a_restart_on_the_same_machine_reads_no_chunk_from_the_store(bench):
    """It read all of them again, though the arena still had what was committed last."""
    life, counted = slots_of_two_saves(bench)
    restored = restore_newest(life.context)
    assert restored.checkpoint == bench.id(1, 21)
    assert restored.directory == life.context.node.restore_in_memory
    assert (restored.directory / "part-0.bin").read_bytes() == b"weights of 21"
    assert "get_range" not in counted.calls
    assert life.context.node.arena_slots() == [] == [*life.context.uploaded_slots]
    counted.calls.clear()
    assert restore_newest(life.context).directory == restored.directory  # it is there already
    assert "get_range" not in counted.calls


def test_a_slot_that_was_written_again_is_no_checkpoint(bench):
    """The training was killed in its next save."""
    life, counted = slots_of_two_saves(bench)
    (life.context.node.arena / "slot-1-0-1").write_bytes(b"weights of 2" + b"3" + bytes(100))
    restored = restore_newest(life.context)
    assert (restored.directory / "part-0.bin").read_bytes() == b"weights of 21"
    assert counted.calls["get_range"] == 1


def test_slots_on_the_disk_become_what_is_restored_there(bench, monkeypatch):
    life, counted = slots_of_two_saves(bench)
    node = life.context.node
    for slot in node.arena_slots():
        slot.rename(node.spill / slot.name)
        life.context.uploaded_slots[node.spill / slot.name] = life.context.uploaded_slots.pop(slot)
    needed = 2 * (3 + 1) * len(b"weights of 21")  # twice: the missing part, two slots, and one process
    monkeypatch.setattr(checkpoint_restore, "free_memory_bytes", lambda: needed - 1)
    restored = restore_newest(life.context)
    assert restored.directory == node.restore
    assert (restored.directory / "part-0.bin").read_bytes() == b"weights of 21"
    assert counted.calls["get_range"] == 0
    assert node.arena_slots() == []
    monkeypatch.setattr(checkpoint_restore, "free_memory_bytes", lambda: needed)
    shutil.rmtree(node.restore)
    assert restore_newest(life.context).directory == node.restore_in_memory


@pytest.mark.parametrize("short_of", ["memory", "shared memory"])
def test_where_memory_is_short_it_is_restored_to_the_disk(bench, monkeypatch, short_of):
    bench.commit(bench.id(1, 10), b"weights")
    if short_of == "memory":
        monkeypatch.setattr(checkpoint_restore, "free_memory_bytes", lambda: 1000)
        bench.commit(bench.id(1, 20), bytes(200))
    else:
        monkeypatch.setattr(
            shutil, "disk_usage", lambda _path: mock.Mock(free=3 * len(b"weights") - 1, total=1 << 40)
        )
    life = bench.life()
    assert restore_newest(life.context).directory == life.context.node.restore


def test_a_training_that_ended_before_its_loop_gets_the_memory_to_itself(bench):
    """It may have been killed for want of memory, and would be so each time."""
    life, counted = slots_of_two_saves(bench)
    node, memory = life.context.node, life.context.memory
    assert restore_newest(life.context).directory == node.restore_in_memory
    memory.generation, memory.training_began_at = 1, 0.0
    assert restore_newest(life.context).directory == node.restore
    assert not node.restore_in_memory.exists()
    memory.training_began_at = 1.0
    assert restore_newest(life.context).directory == node.restore  # it is there
    assert counted.calls["get_range"] == 1


def test_slots_in_memory_are_copied_to_the_disk_where_memory_is_not_to_be_used(bench):
    life, counted = slots_of_two_saves(bench)
    life.context.memory.generation, life.context.memory.training_began_at = 1, 0.0
    restored = restore_newest(life.context)
    assert restored.directory == life.context.node.restore
    assert (restored.directory / "part-0.bin").read_bytes() == b"weights of 21"
    assert counted.calls["get_range"] == 0


def test_what_was_restored_and_lacks_a_file_is_restored_again(bench):
    """An agent was killed while it removed what had been read."""
    life, counted = slots_of_two_saves(bench)
    restored = restore_newest(life.context)
    (restored.directory / "part-0.bin").unlink()
    assert (restore_newest(life.context).directory / "part-0.bin").read_bytes() == b"weights of 21"
    assert counted.calls["get_range"] == 1


def test_an_order_ends_a_restore_in_its_middle(bench):
    bench.commit(bench.id(1, 10))
    life = bench.life()
    get_range = bench.store.get_range_into

    def ordered(*arguments):
        life.context.orders.give(superseded="the others go on")
        return get_range(*arguments)

    bench.store.get_range_into = ordered
    with pytest.raises(LeavingError, match="the others go on"):
        restore_newest(life.context)


def test_memory_that_is_taken_by_others_meanwhile_is_done_without(bench, monkeypatch):
    bench.commit(bench.id(1, 10))
    life = bench.life()
    node, fetch = life.context.node, fetching.fetch

    def refused(store, job_id, manifest, directory, **options):
        if directory == node.restore_in_memory:
            directory.mkdir()
            full = OSError(errno.ENOSPC, "No space left on device")
            raise CloudspotError(f"cannot write a checkpoint to {directory}: {full.strerror}") from full
        return fetch(store, job_id, manifest, directory, **options)

    monkeypatch.setattr(fetching, "fetch", refused)
    assert restore_newest(life.context).directory == node.restore
    assert not node.restore_in_memory.exists()


def slots_of_two_saves(bench):
    """A node whose courier has committed two saves, and the calls of its store from then on."""
    bench.start()
    counted = FaultyStore(bench.store, FaultPlan(), bench.root)
    life = bench.life(store=counted)
    life.context.status.generation = 1
    life.context.status.ranks = (0,)
    life.courier.start()
    for step in (20, 21):
        bench.seal(life.context.node, bench.id(1, step), f"weights of {step}".encode())
    life.courier.settle()
    assert bench.commits()[-1] == bench.id(1, 21)
    counted.calls.clear()
    return life, counted


def test_the_files_of_a_directory_are_as_old_to_one_another_as_they_were(bench):
    """Lightning went on from the older of last.ckpt and last-v1.ckpt: both were as new."""
    root, names = bench.root / "made", ("model", "last.ckpt", "last-v1.ckpt")
    root.mkdir()
    for name in names:
        (root / name).write_text(name)
    listed = [File(path=name, size=len(name), mode=0o644) for name in names]
    upload_files(
        bench.store, JOB, SaveId(1, 10, 0), root, listed, "out", sealed_at=datetime.now(timezone.utc)
    )
    commit(bench.store, JOB, bench.id(1, 10))
    life = bench.life(checkpoint={"directory": "out"})
    restore_newest(life.context)
    found = (life.context.node.work / "out").iterdir()
    assert [one.name for one in sorted(found, key=lambda one: one.stat().st_mtime_ns)] == list(names)


def test_one_whose_last_uploader_died_before_the_commit_is_committed_first(bench):
    """Only drains were; the steps since the checkpoint before it were trained again."""
    bench.commit(bench.id(1, 10))
    life = bench.life()
    for rank in range(2):
        bench.put_part(rank, 20)
    bench.put_part(0, 30)
    restored = restore_newest(life.context)
    assert restored.checkpoint == bench.id(1, 20)
    assert bench.commits() == (bench.id(1, 10), bench.id(1, 20))


def test_a_corrupt_one_is_passed_over_and_named(bench):
    for step in (10, 20):
        bench.commit(bench.id(1, step))
    bench.spoil(bench.id(1, 20))
    restored = restore_newest(bench.life().context)
    assert restored.checkpoint == bench.id(1, 10)
    assert [(one.checkpoint, "checksum" in one.reason) for one in restored.skipped] == [
        (bench.id(1, 20), True)
    ]


def test_a_commit_after_the_successor_chose_an_older_one_is_refused(bench):
    bench.commit(bench.id(1, 10))
    bench.start(2, bench.id(1, 10))
    with pytest.raises(
        Superseded, match="checkpoint 1-20 is too late: the job has ended or begun a newer generation"
    ):
        bench.commit(bench.id(1, 20))
    restored = restore_newest(bench.life().context)
    assert restored.checkpoint == bench.id(1, 10)
    assert bench.commits() == (bench.id(1, 10),)


def test_when_all_are_corrupt_the_job_ends_with_the_reason_and_all_of_them(bench):
    for step in (10, 20):
        bench.commit(bench.id(1, step))
        bench.spoil(bench.id(1, step))
    with pytest.raises(
        LeavingError, match="none of the 2 checkpoints verifies; nothing was deleted"
    ) as caught:
        restore_newest(bench.life().context)
    assert caught.value.leaving.permanent
    assert bench.commits() == (bench.id(1, 10), bench.id(1, 20))


def test_one_that_is_deleted_while_it_is_fetched_is_no_damage_and_the_newer_one_is_taken(bench, monkeypatch):
    """Another node still uploaded 1-60; its commit let retention delete 1-50."""
    bench.commit(bench.id(1, 50))
    fetch, fetched = fetching.fetch, []

    def overtaken(store, job_id, manifest, *args, **options):
        fetched.append(manifest.id)
        if manifest.id == bench.id(1, 50):
            bench.commit(bench.id(1, 60))
            assert retention.collect(store, Journal(store, JOB), JOB, keep=1) == (bench.id(1, 50),)
        return fetch(store, job_id, manifest, *args, **options)

    monkeypatch.setattr(fetching, "fetch", overtaken)
    restored = restore_newest(bench.life().context)
    assert (restored.checkpoint, restored.skipped) == (bench.id(1, 60), ())
    assert fetched == [bench.id(1, 50), bench.id(1, 60)]


def test_a_job_whose_only_checkpoint_is_deleted_from_outside_fails_and_does_not_start_again(
    bench, monkeypatch
):
    """It started at step 0, and that in silence."""
    bench.commit(bench.id(1, 10))
    fetch = fetching.fetch

    def overtaken(store, job_id, manifest, *args, **options):
        bench.store.delete(keys.manifest(JOB, 1, 10))
        bench.store.delete(keys.part(JOB, SaveId(1, 10, 0), 0))
        bench.store.delete(keys.chunk(JOB, SaveId(1, 10, 0), 0, 0))
        return fetch(store, job_id, manifest, *args, **options)

    monkeypatch.setattr(fetching, "fetch", overtaken)
    context = bench.life().context
    with pytest.raises(
        LeavingError, match="1-10, from which the job was to resume, is gone, and no other is left"
    ) as caught:
        restore_newest(context)
    assert caught.value.leaving.permanent
    bench.commit(bench.id(1, 20))
    monkeypatch.setattr(fetching, "fetch", fetch)
    assert restore_newest(context).checkpoint == bench.id(1, 20)


def test_a_generations_checkpoint_that_is_deleted_is_told_from_one_that_is_damaged(bench):
    for step in (10, 20):
        bench.commit(bench.id(1, step))
    bench.spoil(bench.id(1, 10))
    life = bench.life().context
    with pytest.raises(LeavingError, match="which another node has verified, does not verify here"):
        restore_this(life, bench.id(1, 10), None)
    retention.collect(bench.store, Journal(bench.store, JOB), JOB, keep=1)
    assert restore_this(life, bench.id(1, 10), None) is None


def test_a_job_that_has_resumed_never_starts_from_the_beginning_for_want_of_a_checkpoint(bench):
    bench.commit(bench.id(1, 50))
    bench.start(2, bench.id(1, 50))
    bench.store.delete(keys.manifest(JOB, 1, 50))
    with pytest.raises(
        LeavingError, match="1-50, from which the job was to resume, is gone, and no other is left"
    ) as caught:
        restore_newest(bench.life().context)
    assert caught.value.leaving.permanent
    bench.commit(bench.id(2, 60))
    assert restore_newest(bench.life().context).checkpoint == bench.id(2, 60)


@pytest.mark.parametrize("generation", [0, 1], ids=["of the job that was forked", "of this job"])
def test_a_directory_that_came_with_the_code_is_not_taken_for_the_checkpoint(bench, generation):
    put_directory(bench, bench.id(generation, 10), "output/checkpoint-10", "the job's")
    life = bench.life(checkpoint={"directory": "output/*"})
    ours = life.context.node.work / "output" / "checkpoint-10"
    ours.mkdir(parents=True)
    (ours / "model").write_text("of a try on the laptop")
    (ours / "more").touch()
    restored = restore_newest(life.context)
    expected = bench.id(generation, 10), "output/checkpoint-10"
    assert (restored.checkpoint, restored.directory_name) == expected
    assert [(path.name, path.read_text()) for path in ours.iterdir()] == [("model", "the job's")]


def test_nothing_behind_a_symlink_is_deleted_for_a_checkpoint(bench):
    """Its name is what the bucket says; only what came with the code may go."""
    put_directory(bench, bench.id(1, 10), "link/kept", "weights")
    life = bench.life(checkpoint={"directory": "link/*"})
    outside = bench.root / "outside"
    (outside / "kept").mkdir(parents=True)
    (outside / "kept/file").write_text("of the user")
    (life.context.node.work / "link").symlink_to(outside)
    with pytest.raises(LeavingError, match="link is a symlink, which is not followed"):
        restore_newest(life.context)
    assert (outside / "kept/file").read_text() == "of the user"


def test_what_a_script_wrote_on_this_machine_is_left_as_it_is(bench):
    put_directory(bench, bench.id(1, 10), "output/last", "older")
    life = bench.life(checkpoint={"directory": "output/*"})
    life.context.memory.generation = 1
    ours = life.context.node.work / "output" / "last"
    ours.mkdir(parents=True)
    (ours / "model").write_text("newer")
    assert restore_newest(life.context).directory_name == "output/last"
    assert (ours / "model").read_text() == "newer"


@pytest.mark.parametrize(
    ("generation", "first_rank"),
    [
        pytest.param(2, 1, id="rank 0, elsewhere, rewrote it"),
        pytest.param(1, 0, id="this node sat out the generation that rewrote it"),
    ],
)
def test_an_older_state_under_the_same_name_is_not_taken_for_the_checkpoint(bench, generation, first_rank):
    """A node went on from it, on rank 0, while all others resumed from the newer one."""
    put_directory(bench, bench.id(1, 10), "output/last", "older")
    life = bench.life(checkpoint={"directory": "output/*"})
    restore_newest(life.context)
    bench.start(2, bench.id(1, 10))
    put_directory(bench, bench.id(2, 90), "output/last", "newer")
    life.context.memory.generation, life.context.memory.first_rank = generation, first_rank
    assert restore_newest(life.context).checkpoint == bench.id(2, 90)
    assert (life.context.node.work / "output" / "last" / "model").read_text() == "newer"


def test_what_a_node_without_rank_0_resumed_from_is_not_fetched_again(bench):
    put_directory(bench, bench.id(1, 10), "output/last", "weights")
    store = CountingStore(bench.store)
    life = bench.life(store=store, checkpoint={"directory": "output/*"})
    restore_newest(life.context)
    bench.start(2, bench.id(1, 10))
    life.context.memory.generation, life.context.memory.first_rank = 2, 1
    num_read = store.chunk_bytes
    assert restore_newest(life.context).directory_name == "output/last"
    assert store.chunk_bytes == num_read > 0


@pytest.mark.full
@pytest.mark.parametrize("kind", ["session", "directory"])
def test_a_restore_goes_on_where_an_outage_has_stopped_it(bench, kind):
    """Seconds without the store began a restore of hours anew."""
    text = "weights " * (20 * CHUNK_BYTES // 8)
    if kind == "session":
        bench.commit(bench.id(1, 10), text.encode(), chunk_bytes=CHUNK_BYTES)
    else:
        put_directory(bench, bench.id(1, 10), "output/last", text, chunk_bytes=CHUNK_BYTES)
    store = CountingStore(bench.store, fails_after=12)
    life = bench.life(store=store, checkpoint={"directory": "output/*"} if kind == "directory" else {})
    restored = restore_newest(life.context)
    place = restored.directory or life.context.node.work / "output" / "last"
    assert (place / {"session": "part-0.bin", "directory": "model"}[kind]).read_text() == text
    assert store.has_failed
    assert store.chunk_bytes == len(text)


def test_an_order_ends_a_restore_that_waits_for_the_store(bench, wait_until):
    bench.commit(bench.id(1, 10))
    store = CountingStore(bench.store, fails_after=0, seconds=math.inf)
    context = bench.life(store=store).context
    with ThreadPoolExecutor() as pool:
        restore = pool.submit(restore_newest, context)
        wait_until(lambda: store.has_failed)
        context.orders.give(superseded="the others go on")
        with pytest.raises(LeavingError, match="the others go on"):
            restore.result(timeout=60)


class CountingStore(WrappedStore):
    """Counts the bytes of chunks that are read; after so many reads it fails for so many seconds."""

    chunk_bytes = 0

    def __init__(self, inner, *, fails_after=math.inf, seconds=3.0):
        super().__init__(inner)
        self._lock = threading.Lock()
        self._left = fails_after
        self._seconds = seconds
        self._failing_since = None

    @property
    def has_failed(self):
        return self._failing_since is not None

    def get_range_into(self, key, start, buffer):
        with self._lock:
            self._left -= 1
            if self._left < 0 and self._failing_since is None:
                self._failing_since = time.monotonic()
        if self._failing_since is not None and time.monotonic() - self._failing_since < self._seconds:
            raise TransientError("out")
        num_bytes = super().get_range_into(key, start, buffer)
        if "/chunks/" in key:
            with self._lock:
                self.chunk_bytes += num_bytes
        return num_bytes


@pytest.mark.parametrize("pattern", [None, "output/*", "src"])
def test_a_checkpoint_never_replaces_what_is_no_checkpoint_directory(bench, pattern):
    put_directory(bench, bench.id(1, 10), "src/model", "evil")
    life = bench.life(checkpoint={} if pattern is None else {"directory": pattern})
    code = life.context.node.work / "src" / "model"
    code.mkdir(parents=True)
    (code / "model.py").write_text("of the job")
    with pytest.raises(LeavingError, match=r"holds 'src/model', which checkpoint\.directory does not match"):
        restore_newest(life.context)
    assert [path.name for path in code.iterdir()] == ["model.py"]
