"""Checkpoints back on the disk."""

import json
import os
import random
import re
import threading

import msgspec
import pytest
from support.stores.faultstore import FaultPlan, FaultyStore, Outage

from cloudspot.errors import CloudspotError, CorruptData, TransientError
from cloudspot.host.partial_files import partial_directory
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.checkpoints import fetching
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, Chunk, File, SaveId

C = CheckpointId(1, 10)
DATAS = [random.Random(rank).randbytes(size) for rank, size in enumerate((4000, 0, 1500, 1))]
replace = msgspec.structs.replace


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "source/checkpoint-10"
    (root / "deep/er").mkdir(parents=True)
    (root / "a.bin").write_bytes(DATAS[0])
    (root / "deep/empty").write_bytes(b"")
    (root / "deep/er/é.bin").write_bytes(DATAS[2])
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o750)
    (root / "fixed").write_bytes(b"x")
    (root / "fixed").chmod(0o400)
    return root


def content(root):
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in sorted(root.rglob("*"))
        if path.is_file() or path.is_symlink()
    }


def names(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def flip(store, key, position=0):
    data = bytearray(store.get(key))
    data[position] ^= 0x10
    store.put(key, bytes(data))


# --- sessions -----------------------------------------------------------------------------------


def test_a_session_comes_back_as_parts_and_a_table_for_the_trainer(store, checkpoints, tmp_path):
    commit = checkpoints.session(store, C, DATAS)
    dest = tmp_path / "new/restore"
    fetching.fetch(store, "x", commit, dest)
    table = json.loads((dest / "restore.json").read_text())
    seals = checkpoints.seals(C, DATAS)
    assert table == {
        "generation": 1,
        "step": 10,
        "world_size": 4,
        "parts": [
            {"rank": rank, "file": f"part-{rank}.bin", "seal": json.loads(seals[rank])} for rank in range(4)
        ],
    }
    assert [(dest / f"part-{rank}.bin").read_bytes() for rank in range(4)] == DATAS
    assert len(names(dest)) == 5


def test_a_fetch_over_an_earlier_ones_leftovers_is_whole(store, checkpoints, tmp_path):
    commit = checkpoints.session(store, C, DATAS)
    outside = tmp_path / "outside"
    outside.write_bytes(b"keep")
    (tmp_path / "r").mkdir()
    (tmp_path / "r/part-0.bin").write_bytes(b"x" * 9999)
    (tmp_path / "r/part-2.bin").symlink_to(outside)
    (tmp_path / "r/restore.json").symlink_to(outside)
    fetching.fetch(store, "x", commit, tmp_path / "r")
    assert [(tmp_path / f"r/part-{rank}.bin").read_bytes() for rank in range(4)] == DATAS
    assert outside.read_bytes() == b"keep"


def test_what_is_there_and_verifies_is_not_read_from_the_store(store, checkpoints, tmp_path):
    """One of the parts there is a slot of the arena in which a later save has changed the second chunk."""
    commit = checkpoints.session(store, C, DATAS)
    (tmp_path / "r").mkdir()
    later = bytearray(DATAS[0] + b"the slot was longer")
    later[1600] ^= 1
    (tmp_path / "r/part-0.bin").write_bytes(later)
    (tmp_path / "r/part-2.bin").write_bytes(DATAS[2])
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    num_here = fetching.fetch(counted, "x", commit, tmp_path / "r", present={0, 2})
    assert [(tmp_path / f"r/part-{rank}.bin").read_bytes() for rank in range(4)] == DATAS
    assert counted.calls["get_range"] == 2  # the changed chunk, and that of the last rank
    assert num_here == 4000 - 1500 + 1500
    assert fetching.fetch(counted, "x", commit, tmp_path / "r", present=range(4)) == commit.size
    assert counted.calls["get_range"] == 2


def test_what_is_there_is_no_longer_than_it_seems(store, checkpoints, tmp_path):
    commit = checkpoints.session(store, C, DATAS)
    (tmp_path / "r").mkdir()
    (tmp_path / "r/part-0.bin").write_bytes(DATAS[0][:1700])
    assert fetching.fetch(store, "x", commit, tmp_path / "r", present={0}) == 1500
    assert (tmp_path / "r/part-0.bin").read_bytes() == DATAS[0]


def test_a_checkpoint_is_known_by_all_that_it_says(store, checkpoints, tmp_path):
    commit = checkpoints.session(store, C, DATAS)
    assert not fetching.is_restored(tmp_path / "r", commit)
    fetching.fetch(store, "x", commit, tmp_path / "r")
    assert fetching.is_restored(tmp_path / "r", commit)
    assert not fetching.is_restored(tmp_path / "r", checkpoints.session(store, CheckpointId(1, 20), DATAS))
    (tmp_path / "r/restore.json").write_text("{")
    assert not fetching.is_restored(tmp_path / "r", commit)


def test_the_trainers_own_reader_takes_what_was_fetched(store, checkpoints, tmp_path):
    torch = pytest.importorskip("torch")
    from cloudspot.train.state.checkpoint import Checkpoint

    commit = checkpoints.session(store, C, DATAS)
    fetching.fetch(store, "x", commit, tmp_path / "r")
    checkpoint = Checkpoint(tmp_path / "r")
    assert (checkpoint.step, checkpoint.world_size) == (10, 4)
    assert checkpoint.shared["best"] == float("inf")
    assert checkpoint.rank_state(2) == {"rng": [2]}
    assert bytes(checkpoint.item("model/0.1000").to(torch.uint8).tolist()) == DATAS[0][1000:2000]


@pytest.mark.parametrize("position", [0, 749, 1499])
def test_a_flipped_bit_is_found_by_verify_and_by_fetch_which_leaves_no_table(
    store, checkpoints, tmp_path, position
):
    commit = checkpoints.session(store, C, DATAS)
    key = keys.chunk("x", SaveId(1, 10, 0), 0, 1)
    flip(store, key, position)
    with pytest.raises(CorruptData, match=f"{re.escape(key)} does not match its checksum"):
        fetching.verify(store, "x", commit)
    with pytest.raises(CorruptData, match=re.escape(key)):
        fetching.fetch(store, "x", commit, tmp_path / "r")
    assert not (tmp_path / "r/restore.json").exists()


def test_a_bit_that_flips_on_its_way_once_costs_no_checkpoint(store, checkpoints, tmp_path):
    """All would have resumed from the one before, and the whole one would have been deleted."""
    commit = checkpoints.session(store, C, DATAS)
    key = keys.chunk("x", SaveId(1, 10, 0), 0, 1)

    class Misreading(FaultyStore):
        bad = key

        def get_range(self, key, start, length):
            data = bytearray(super().get_range(key, start, length))
            if key == self.bad:
                data[0], self.bad = data[0] ^ 0x10, None
            return bytes(data)

        def get_range_into(self, key, start, buffer):
            size = super().get_range_into(key, start, buffer)
            if key == self.bad:
                buffer[0], self.bad = buffer[0] ^ 0x10, None
            return size

    for act in (
        lambda store: fetching.verify(store, "x", commit),
        lambda store: fetching.fetch(store, "x", commit, tmp_path / "r"),
    ):
        misreading = Misreading(store, FaultPlan(), tmp_path)
        act(misreading)
        assert misreading.bad is None
    assert [(tmp_path / f"r/part-{rank}.bin").read_bytes() for rank in range(len(DATAS))] == list(DATAS)


def test_a_table_of_an_earlier_fetch_does_not_vouch_for_one_that_failed(store, checkpoints, tmp_path):
    commit = checkpoints.session(store, C, DATAS)
    fetching.fetch(store, "x", commit, tmp_path / "r")
    flip(store, keys.chunk("x", SaveId(1, 10, 0), 0, 1))
    with pytest.raises(CorruptData):
        fetching.fetch(store, "x", commit, tmp_path / "r")
    assert not (tmp_path / "r/restore.json").exists()


@pytest.mark.parametrize("damage", ["cut", "grown", "gone"])
def test_a_chunk_of_the_wrong_size_is_found_before_anything_is_written(store, checkpoints, tmp_path, damage):
    commit = checkpoints.session(store, C, DATAS)
    key = keys.chunk("x", SaveId(1, 10, 0), 2, 0)
    if damage == "gone":
        store.delete(key)
    else:
        store.put(key, store.get(key)[:-1] if damage == "cut" else store.get(key) + b"x")
    for act in (
        lambda: fetching.verify(store, "x", commit),
        lambda: fetching.fetch(store, "x", commit, tmp_path / "r"),
    ):
        with pytest.raises(CorruptData, match=re.escape(key)):
            act()
    assert not (tmp_path / "r").exists()


def test_a_chunk_that_changes_after_it_was_listed_is_still_found(store, checkpoints, tmp_path):
    commit = checkpoints.session(store, C, DATAS)
    key = keys.chunk("x", SaveId(1, 10, 0), 2, 0)

    class Lagging(FaultyStore):
        def list_page(self, prefix, **options):
            page = super().list_page(prefix, **options)
            self.inner.delete(key) if self.is_gone else self.inner.put(key, DATAS[2] + b"more")
            return page

    for is_gone, message in ((True, "missing"), (False, "1501 bytes")):
        store.put(key, DATAS[2])
        lagging = Lagging(store, FaultPlan(), tmp_path)
        lagging.is_gone = is_gone
        with pytest.raises(CorruptData, match=message):
            fetching.verify(lagging, "x", commit)


def test_a_manifest_that_claims_what_is_not_there_fills_no_disk(store, checkpoints, tmp_path):
    commit = checkpoints.session(store, C, [b"a" * 10])
    huge = tuple(Chunk(size=64 << 20, xxh3_128="0" * 32) for _ in range(1 << 13))
    [seal] = checkpoints.seals(C, [b"a" * 10], nbytes=1 << 39)
    part = replace(commit.parts[0], chunks=huge, size=1 << 39, seal=seal.decode())
    with pytest.raises(CorruptData, match="should have 67108864"):
        fetching.fetch(store, "x", replace(commit, parts=(part,), size=1 << 39), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_store_that_fails_in_passing_is_no_obstacle_and_an_outage_is(
    store, checkpoints, tmp_path, monkeypatch
):
    monkeypatch.setattr("cloudspot.jobstore.access.retrying_store.time.sleep", lambda seconds: None)
    commit = checkpoints.session(store, C, DATAS, chunk_bytes=100)
    faulty = FaultyStore(store, FaultPlan(fail_every=5), tmp_path)
    fetching.fetch(with_retries(faulty, sleep=lambda seconds: None), "x", commit, tmp_path / "r")
    assert (tmp_path / "r/part-0.bin").read_bytes() == DATAS[0]
    down = FaultyStore(store, FaultPlan(outages=(Outage(start=0, end=9e18),)), tmp_path)
    with pytest.raises(TransientError):
        fetching.fetch(with_retries(down, sleep=lambda seconds: None), "x", commit, tmp_path / "s")


def test_chunks_are_fetched_side_by_side(store, checkpoints, tmp_path):
    commit = checkpoints.session(store, C, DATAS, chunk_bytes=100)
    together = threading.Barrier(3, timeout=30)

    class Meeting(FaultyStore):
        def get_range(self, key, start, length):
            if key in (keys.chunk("x", SaveId(1, 10, 0), 0, number) for number in range(3)):
                together.wait()
            return super().get_range(key, start, length)

    fetching.fetch(Meeting(store, FaultPlan(), tmp_path), "x", commit, tmp_path / "r", num_threads=3)
    assert (tmp_path / "r/part-0.bin").read_bytes() == DATAS[0]


def test_a_disk_that_refuses_is_not_the_checkpoints_fault(store, checkpoints, tmp_path):
    commit = checkpoints.session(store, C, DATAS)
    (tmp_path / "file").write_text("")
    with pytest.raises(CloudspotError, match="cannot write a checkpoint to") as caught:
        fetching.fetch(store, "x", commit, tmp_path / "file")
    assert not isinstance(caught.value, (CorruptData, TransientError))


def test_of_a_checkpoint_that_is_laid_out_only_the_chunks_come_that_are_asked_for(
    store, checkpoints, tmp_path
):
    commit = checkpoints.session(store, C, DATAS)
    dest = tmp_path / "restore"
    fetching.lay_out(store, "x", commit, dest)
    table = json.loads((dest / "restore.json").read_text())
    assert table.pop("on_demand") is True
    assert [(dest / f"part-{rank}.bin").read_bytes() for rank in range(4)] == [bytes(len(d)) for d in DATAS]
    assert fetching.is_restored(dest, commit)
    assert fetching.is_fetched_on_demand(dest)
    chunks = [chunk.size for chunk in commit.parts[0].chunks]
    assert len(chunks) > 2
    second = chunks[0], chunks[0] + chunks[1]
    asked = {"part-0.bin": [(second[0] + 5, second[0] + 6)], "part-2.bin": [], "part-9.bin": [(0, 10)]}
    told = []
    assert fetching.fetch_ranges(store, "x", commit, dest, asked, progress=told.append) == (chunks[1], 0)
    found = (dest / "part-0.bin").read_bytes()
    assert found[slice(*second)] == DATAS[0][slice(*second)]
    assert found[: second[0]] == bytes(second[0])
    assert not any(found[second[1] :])
    assert told == [chunks[1]]
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    whole = {f"part-{rank}.bin": [(0, len(data))] for rank, data in enumerate(DATAS)}
    assert fetching.fetch_ranges(counted, "x", commit, dest, whole) == (sum(map(len, DATAS)), chunks[1])
    assert counted.calls["get_range"] == sum(len(part.chunks) for part in commit.parts) - 1
    assert [(dest / f"part-{rank}.bin").read_bytes() for rank in range(4)] == DATAS
    fetching.fetch(store, "x", commit, dest, present=range(4))
    assert not fetching.is_fetched_on_demand(dest)


def test_a_chunk_that_is_asked_for_and_damaged_is_found(store, checkpoints, tmp_path):
    commit = checkpoints.session(store, C, DATAS)
    flip(store, keys.chunk("x", commit.save, 2, 0))
    dest = tmp_path / "restore"
    fetching.lay_out(store, "x", commit, dest)
    fetching.fetch_ranges(store, "x", commit, dest, {"part-0.bin": [(0, 4000)]})
    with pytest.raises(CorruptData, match="does not match its checksum"):
        fetching.fetch_ranges(store, "x", commit, dest, {"part-2.bin": [(0, 1)]})
    store.delete(keys.chunk("x", commit.save, 2, 0))
    with pytest.raises(CorruptData, match="is missing"):
        fetching.lay_out(store, "x", commit, dest)


# --- directories --------------------------------------------------------------------------------


def test_a_directory_comes_back_with_its_files_and_modes(store, checkpoints, tree, tmp_path):
    commit = checkpoints.directory(store, C, tree, "output/checkpoint-10")
    work = tmp_path / "work"
    (work / "output/checkpoint-9").mkdir(parents=True)
    fetching.fetch(store, "x", commit, work)
    assert content(work / "output/checkpoint-10") == content(tree)
    assert names(work) == sorted(
        ["output", "output/checkpoint-9", "output/checkpoint-10"]
        + [f"output/checkpoint-10/{name}" for name in names(tree)]
    )


def test_a_directory_appears_whole_or_not_at_all(store, checkpoints, tree, tmp_path):
    commit = checkpoints.directory(store, C, tree, "output/checkpoint-10")
    flip(store, keys.chunk("x", SaveId(1, 10, 0), 0, 1))
    with pytest.raises(CorruptData):
        fetching.fetch(store, "x", commit, tmp_path / "work")
    assert names(tmp_path / "work") == ["output"]
    flip(store, keys.chunk("x", SaveId(1, 10, 0), 0, 1))
    fetching.fetch(store, "x", commit, tmp_path / "work")
    assert content(tmp_path / "work/output/checkpoint-10") == content(tree)
    assert names(tmp_path / "work") == sorted(
        ["output", "output/checkpoint-10", *(f"output/checkpoint-10/{name}" for name in names(tree))]
    )


def test_a_directory_that_is_there_is_not_replaced(store, checkpoints, tree, tmp_path):
    commit = checkpoints.directory(store, C, tree, "d")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/d").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CloudspotError, match="already exists"):
        fetching.fetch(store, "x", commit, tmp_path / "work")
    assert not (tmp_path / "nowhere").exists()


def test_no_symlink_on_the_way_to_a_directory_is_followed(store, checkpoints, tree, tmp_path):
    commit = checkpoints.directory(store, C, tree, "output/deep/checkpoint-10")
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work/output").symlink_to(outside)
    with pytest.raises(CorruptData, match="output is a symlink"):
        fetching.fetch(store, "x", commit, tmp_path / "work")
    assert list(outside.iterdir()) == []


def test_leftovers_of_a_killed_fetch_are_removed_and_not_followed(store, checkpoints, tree, tmp_path):
    commit = checkpoints.directory(store, C, tree, "d")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("")
    work = tmp_path / "work"
    with pytest.raises(KeyboardInterrupt), partial_directory(outside) as left:
        raise KeyboardInterrupt
    (work / left.name).mkdir(parents=True)
    (work / left.name / "half").symlink_to(outside)
    fetching.fetch(store, "x", commit, work)
    assert {name.partition("/")[0] for name in names(work)} == {"d"}
    assert content(work / "d") == content(tree)
    assert names(outside) == ["keep"]


def test_two_paths_that_are_one_file_here_are_told_and_neither_is_overwritten(
    store, checkpoints, tree, tmp_path, monkeypatch
):
    """On a disk that ignores case, as macOS's does."""
    (tree / "A.BIN").write_bytes(b"another")
    commit = checkpoints.directory(store, C, tree, "d")
    make_parents = fetching.make_parents
    monkeypatch.setattr(fetching, "make_parents", lambda root, name: make_parents(root, name.lower()))
    with pytest.raises(CloudspotError, match="File exists"):
        fetching.fetch(store, "x", commit, tmp_path / "work")
    assert names(tmp_path / "work") == []


def test_a_mode_never_sets_an_id(store, checkpoints, tree, tmp_path):
    commit = checkpoints.directory(store, C, tree, "d")
    [part] = commit.parts
    files = tuple(replace(file, mode=0o107755) for file in part.files)
    fetching.fetch(store, "x", replace(commit, parts=(replace(part, files=files),)), tmp_path / "work")
    assert {mode for _, mode in content(tmp_path / "work/d").values()} == {0o755}


HOSTILE = ["../escape", "/tmp/cloudspot-escape", "a/../../escape", "..", ".", "", "a//b", "./a", "a/", "a\0b"]


@pytest.mark.parametrize("path", HOSTILE)
def test_a_hostile_path_writes_nothing_anywhere(store, checkpoints, tree, tmp_path, path):
    commit = checkpoints.directory(store, C, tree, "d")
    [part] = commit.parts
    files = tuple(replace(file, path=path) if file.path == "a.bin" else file for file in part.files)
    before = names(tmp_path)
    lost = [replace(part, directory=path)] if path != "." else []  # the working directory itself
    for hostile in (replace(part, files=files), *lost):
        with pytest.raises(CorruptData, match="not a safe relative path"):
            fetching.fetch(store, "x", replace(commit, parts=(hostile,)), tmp_path / "work")
    assert names(tmp_path) == before
    assert not os.path.lexists("/tmp/cloudspot-escape")


def with_link(checkpoints, store, tree, target):
    """Return a checkpoint of the tree and of a link in it."""
    (tree / "link").write_bytes(target)
    commit = checkpoints.directory(store, C, tree, "d")
    [part] = commit.parts
    files = tuple(replace(file, is_link=file.path == "link") for file in part.files)
    return replace(commit, parts=(replace(part, files=files),))


def test_a_link_within_a_checkpoint_comes_back_as_a_link(store, checkpoints, tree, tmp_path):
    commit = with_link(checkpoints, store, tree, b"a.bin")
    fetching.fetch(store, "x", commit, tmp_path / "work")
    assert str((tmp_path / "work/d/link").readlink()) == "a.bin"


@pytest.mark.parametrize(
    "target", [b"../escape", b"/etc/passwd", b"", b"a\0b", b"a.bin/../../x", b"a" * 5000]
)
def test_a_link_that_leads_out_of_its_checkpoint_is_refused(store, checkpoints, tree, tmp_path, target):
    """Also what names no path at all: an agent must not end with an error of its own."""
    commit = with_link(checkpoints, store, tree, target)
    with pytest.raises(CorruptData, match="outside its checkpoint"):
        fetching.fetch(store, "x", commit, tmp_path / "work")
    assert names(tmp_path / "work") == []


def test_a_hostile_path_that_is_not_utf_8_writes_nothing(store, checkpoints, tree, tmp_path):
    commit = checkpoints.directory(store, C, tree, "d")
    [part] = commit.parts
    files = tuple(replace(file, raw_path=b"../escape-\xe9") for file in part.files)
    with pytest.raises(CorruptData, match="not a safe relative path"):
        fetching.fetch(store, "x", replace(commit, parts=(replace(part, files=files),)), tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_a_file_that_is_also_a_directory_writes_nothing(store, checkpoints, tree, tmp_path):
    commit = checkpoints.directory(store, C, tree, "d")
    [part] = commit.parts
    files = (*part.files, File(path="a.bin/x", size=0, mode=0))
    with pytest.raises(CorruptData, match="as a file and as a directory"):
        fetching.fetch(store, "x", replace(commit, parts=(replace(part, files=files),)), tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_nothing_in_a_checkpoint_is_ever_unpickled(store, checkpoints, tmp_path, monkeypatch):
    import pickle

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    data = pickle.dumps(Bomb())
    monkeypatch.setattr(pickle, "loads", pytest.fail)
    monkeypatch.setattr(pickle, "load", pytest.fail)
    commit = checkpoints.session(store, C, [data])
    fetching.fetch(store, "x", commit, tmp_path / "r")
    (tmp_path / "s").mkdir()
    (tmp_path / "s/model.pt").write_bytes(data)
    other = checkpoints.directory(store, CheckpointId(1, 11), tmp_path / "s", "d")
    fetching.fetch(store, "x", other, tmp_path / "work")
    assert (tmp_path / "work/d/model.pt").read_bytes() == (tmp_path / "r/part-0.bin").read_bytes() == data
    assert not (tmp_path / "executed").exists()
