"""Uploads of parts."""

import mmap
import os
import sys
import threading

import msgspec
import pytest
from support.records.uploads import upload_files, upload_session
from support.stores.faultstore import FaultPlan, FaultyStore, Hook, Outage

from cloudspot.errors import CorruptData, TransientError
from cloudspot.host.low_priority import NICENESS
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.wrapped_store import WrappedStore
from cloudspot.jobstore.checkpoints import fetching, manifests, parts
from cloudspot.jobstore.checkpoints.parts import xxh3_128
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import File, Part, SaveId

C = SaveId(1, 10, 0)
DATA = bytes(range(256)) * 20


def upload(store, checkpoints, data=DATA, *, checkpoint=C, chunk_bytes=1500, **options):
    [seal] = checkpoints.seals(checkpoint, [data])
    return upload_session(store, "x", seal, data, chunk_bytes=chunk_bytes, **options)


def keys_of(store, prefix="jobs/"):
    return [meta.key for meta in store.list_objects(prefix)]


def test_a_part_is_stored_in_chunks_with_their_checksums(store, checkpoints):
    part = upload(store, checkpoints)
    assert [chunk.size for chunk in part.chunks] == [1500, 1500, 1500, 620]
    assert part.size == len(DATA)
    for number, chunk in enumerate(part.chunks):
        data = store.get(keys.chunk("x", SaveId(1, 10, 0), 0, number))
        assert data == DATA[number * 1500 : (number + 1) * 1500]
        assert chunk.xxh3_128 == xxh3_128(data)
    assert codec.decode(store.get(keys.part("x", SaveId(1, 10, 0), 0)), Part) == part


def test_a_checksum_is_the_one_of_the_xxh3_reference():
    # xxHash's own test vector for the empty input (XXH3_128bits, seed 0).
    assert xxh3_128(b"") == "99aa06d3014798d86001c324468d497f"


def test_a_rank_without_items_has_a_part_without_chunks(store, checkpoints):
    part = upload(store, checkpoints, b"")
    assert (part.size, part.chunks) == (0, ())
    assert keys_of(store) == [keys.part("x", SaveId(1, 10, 0), 0)]


def test_the_record_comes_after_all_chunks(store, checkpoints, tmp_path):
    seen = []
    plan = FaultPlan(hooks=(Hook(keys="*/parts/*", when="before"),))
    watched = FaultyStore(store, plan, tmp_path, on_hook=lambda hook, key: seen.append(keys_of(store)))
    upload(watched, checkpoints)
    assert seen == [[keys.chunk("x", SaveId(1, 10, 0), 0, number) for number in range(4)]]


def test_to_upload_again_puts_nothing_and_returns_the_same_record(store, checkpoints, tmp_path):
    first = upload(store, checkpoints)
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    assert upload(counted, checkpoints) == first
    assert counted.calls == {"get": 1}


def test_other_bytes_for_the_same_part_are_refused_and_change_nothing(store, checkpoints):
    upload(store, checkpoints)
    before = {key: store.get(key) for key in keys_of(store)}
    with pytest.raises(CorruptData, match="parts/0000 already exists"):
        upload(store, checkpoints, DATA[::-1])
    with pytest.raises(CorruptData, match="already exists"):
        seal = checkpoints.seals(C, [DATA], rank_states={"0": {"rng": "other"}})[0]
        upload_session(store, "x", seal, DATA, chunk_bytes=1500)
    assert {key: store.get(key) for key in keys_of(store)} == before


def test_the_same_files_in_a_save_of_another_number_of_parts_are_another_part(store, tmp_path):
    """With the record that stands, the save would wait for a part that nobody brings."""
    (tmp_path / "a").write_bytes(DATA)
    files = (File(path="a", size=len(DATA), mode=0o644),)
    first = upload_files(store, "x", C, tmp_path, files, "out", num_parts=2)
    assert upload_files(store, "x", C, tmp_path, files, "out", num_parts=2) == first
    with pytest.raises(CorruptData, match="parts/0000 already exists, but describes other bytes"):
        upload_files(store, "x", C, tmp_path, files, "out", num_parts=1)
    assert manifests.missing_ranks(store, "x", C.checkpoint) == {1}


def test_a_record_that_stands_for_other_ranks_is_not_taken_for_this_ranks(store, checkpoints):
    """A seal says it, too, but whoever writes to the bucket can make the two disagree."""
    part = upload(store, checkpoints)
    store.put(keys.part("x", C, 0), codec.encode(msgspec.structs.replace(part, num_parts=2)))
    with pytest.raises(CorruptData, match="describes other bytes"):
        parts.put_part(store, "x", part)


def test_chunks_of_an_upload_that_died_are_written_over(store, checkpoints):
    store.put(keys.chunk("x", SaveId(1, 10, 0), 0, 1), b"half of it")
    commit_part = upload(store, checkpoints)
    commit = manifests.write_manifest(store, "x", C)
    assert commit.parts == (commit_part,)
    fetching.verify(store, "x", commit)


def test_an_uploader_that_loses_the_race_with_the_same_bytes_has_succeeded(store, checkpoints, tmp_path):
    winner = []
    plan = FaultPlan(hooks=(Hook(keys="*/chunks/*", when="after", skip=3),))
    racing = FaultyStore(
        store, plan, tmp_path, on_hook=lambda hook, key: winner.append(upload(store, checkpoints))
    )
    assert upload(racing, checkpoints, num_threads=1) == winner[0]


def test_failures_in_passing_and_lost_answers_do_not_stop_an_upload(store, checkpoints, tmp_path):
    faulty = FaultyStore(store, FaultPlan(fail_every=5, lose_every=3), tmp_path)
    # One at a time: then no chunk meets more faults in a row than an upload repeats its put.
    upload(with_retries(faulty, sleep=lambda seconds: None), checkpoints, chunk_bytes=100, num_threads=1)
    fetching.verify(store, "x", manifests.write_manifest(store, "x", C))


def test_an_outage_is_the_callers_to_wait_out_and_leaves_the_mapping_closable(store, checkpoints, tmp_path):
    mapped = mmap.mmap(-1, len(DATA))
    mapped[:] = DATA
    down = FaultyStore(store, FaultPlan(outages=(Outage(start=5, end=9e9),)), tmp_path, clock=lambda: now[0])
    now = [0.0]

    class LeakyStore(FaultyStore):
        def put(self, key, data, *, if_absent=False):
            view = memoryview(data)[1:]  # An SDK that keeps a view in a frame of its error.
            now[0] = 5.0
            assert len(view) >= 0
            super().put(key, data, if_absent=if_absent)

    down.__class__ = LeakyStore
    [seal] = checkpoints.seals(C, [DATA])
    view = memoryview(mapped)
    with pytest.raises(TransientError) as caught:
        upload_session(with_retries(down, sleep=lambda seconds: None), "x", seal, view, chunk_bytes=1500)
    view.release()
    mapped.close()
    assert "injected outage" in str(caught.value)
    assert keys_of(store) == []


def test_a_seal_that_contradicts_itself_or_its_bytes_is_refused_before_its_record_is_put(store, checkpoints):
    for changes, why in (
        ({"nbytes": 1}, "its items end at byte 5120 of 1"),
        ({"nbytes": len(DATA) + 1}, "its size is 5121, but its chunks have 5120 bytes"),
        ({"rank": 1}, "rank 1 of 1"),
        ({"relieved": [1, 2]}, "rank 0 of -1"),
        ({"items": "none"}, "items"),
    ):
        [seal] = checkpoints.seals(C, [DATA], **changes)
        with pytest.raises(CorruptData, match=why):
            upload_session(store, "x", seal, DATA)
    assert keys_of(store, keys.parts_prefix("x", SaveId(1, 10, 0))) == []


def test_a_chunk_size_that_cannot_be_read_back_is_a_bug(store, checkpoints):
    for chunk_bytes in (0, -1, 1 << 40):
        with pytest.raises(ValueError, match="chunk_bytes"):
            upload(store, checkpoints, chunk_bytes=chunk_bytes)


# --- directories --------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "checkpoint-10"
    (root / "deep/er").mkdir(parents=True)
    (root / "a.bin").write_bytes(DATA[:2000])
    (root / "deep/b.bin").write_bytes(b"")
    (root / "deep/er/c.bin").write_bytes(DATA[:777])
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    return root


def test_small_files_share_chunks_and_large_ones_span_them(store, checkpoints, tree):
    commit = checkpoints.directory(store, C, tree, "output/checkpoint-10")
    [part] = commit.parts
    assert [file.path for file in part.files] == ["a.bin", "deep/b.bin", "deep/er/c.bin", "run.sh"]
    assert [chunk.size for chunk in part.chunks] == [1500, 1287]
    stored = b"".join(store.get(keys.chunk("x", SaveId(1, 10, 0), 0, number)) for number in range(2))
    assert stored == DATA[:2000] + DATA[:777] + b"#!/bin/sh\n"


def test_a_file_that_shrinks_or_vanishes_is_tried_again_later(store, checkpoints, tree, tmp_path):
    files = (File(path="a.bin", size=2000, mode=0o644),)

    def again():
        upload_files(store, "x", C, tree, files, "d")

    (tree / "a.bin").write_bytes(b"short")
    with pytest.raises(TransientError, match="became shorter"):
        again()
    (tree / "a.bin").unlink()
    with pytest.raises(TransientError, match="No such file"):
        again()
    assert keys_of(store, keys.parts_prefix("x", SaveId(1, 10, 0))) == []


def test_files_that_change_before_the_record_leave_none(store, checkpoints, tree):
    seen = []

    def check():
        seen.extend(keys_of(store))
        raise TransientError("changed")

    with pytest.raises(TransientError, match="changed"):
        upload_files(store, "x", C, tree, (File(path="a.bin", size=2000, mode=0o644),), "d", check=check)
    assert seen == [keys.chunk("x", SaveId(1, 10, 0), 0, 0)]
    assert keys_of(store, keys.parts_prefix("x", SaveId(1, 10, 0))) == []


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "a//b", "", ".", "a\0b", "x" * 256])
def test_a_path_that_could_not_be_put_back_safely_is_not_taken(store, tree, path):
    for files, directory in (
        ((File(path=path, size=0, mode=0o644),), "d"),
        ((), path if path != "." else "./."),  # by itself it is the working directory
    ):
        with pytest.raises(CorruptData, match="not a safe relative path"):
            upload_files(store, "x", C, tree, files, directory)


def test_extents_cover_each_run_of_bytes_once():
    files = [File(path=name, size=size, mode=0) for name, size in (("a", 3), ("b", 0), ("c", 4), ("d", 1))]
    assert list(parts.extents(files, 0, 8)) == [("a", 0, 3), ("c", 0, 4), ("d", 0, 1)]
    assert list(parts.extents(files, 2, 3)) == [("a", 2, 1), ("c", 0, 2)]
    assert list(parts.extents(files, 7, 1)) == [("d", 0, 1)]
    assert list(parts.extents(files, 3, 0)) == []


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities on Linux")
@pytest.mark.parametrize("gets_nothing", [False, True])
def test_an_upload_that_yields_stops_doing_so_where_others_leave_it_nothing(
    store, checkpoints, monkeypatch, gets_nothing
):
    """Beside one busy core, a save of 1 GB took 23 s and more: four threads got a tenth of a core."""
    monkeypatch.setattr(parts, "MIN_BACKGROUND_BYTES", 0)
    monkeypatch.setattr(parts, "is_starved", lambda: gets_nothing)
    usual, seen, data = niceness(), [], os.urandom(9000)

    class Watched(WrappedStore):
        def put(self, key, data, *, if_absent=False):
            if "/chunks/" in key:
                seen.append(niceness())
            super().put(key, data, if_absent=if_absent)

    options = {"chunk_bytes": 1000, "in_background": True, "num_threads": 1}
    part = upload(Watched(store), checkpoints, data, **options)
    assert [chunk.size for chunk in part.chunks] == [1000] * 9
    found = [store.get(keys.chunk("x", C, 0, number)) for number in range(9)]
    assert b"".join(found) == data, "each in its place"
    assert seen == [NICENESS, *[usual if gets_nothing else NICENESS] * 8]


def niceness():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
