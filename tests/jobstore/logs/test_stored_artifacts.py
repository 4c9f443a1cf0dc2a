"""Artifacts from the bucket to the disk."""

import os
from pathlib import Path

import pytest
from support.stores.faultstore import FaultPlan, FaultyStore, Outage
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import TransientError
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.logs import stored_artifacts
from cloudspot.jobstore.logs.stored_artifacts import (
    Artifact,
    download,
    is_present,
    list_artifacts,
)

PREFIX = keys.artifacts_prefix("x")


@pytest.fixture
def store():
    return InMemoryStore()


def put(store, files):
    for name, data in files.items():
        store.put(keys.artifact("x", name), data)
    return list_artifacts(store, "x")


def contents(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_files_come_back_under_their_names_with_the_time_of_their_objects(store, tmp_path, monkeypatch):
    monkeypatch.setattr(stored_artifacts, "_BLOCK", 1000)
    odd = ["plain.txt", "sub/deep er/ü.bin", "100%.txt", "node-1/x", "b\udce9ta"]
    files = {name: name.encode(errors="surrogateescape") * 300 for name in odd} | {"empty": b""}
    found = put(store, files)
    assert [each.name for each in found] == sorted(files)
    assert not any(is_present(each, tmp_path / "to") for each in found)
    told = []
    assert download(store, found, tmp_path / "to", progress=told.append) == [None] * 6
    assert contents(tmp_path / "to") == files
    assert sum(told) == sum(map(len, files.values()))
    assert all(is_present(each, tmp_path / "to") for each in found)
    modified = (tmp_path / "to" / "plain.txt").stat().st_mtime
    assert abs(modified - store.head(PREFIX + "plain.txt").modified_at.timestamp()) < 1e-5


def test_what_is_newer_or_was_changed_here_is_not_present(store, tmp_path):
    (old,) = put(store, {"a": b"1234"})
    download(store, [old], tmp_path)
    assert is_present(old, tmp_path)
    os.utime(tmp_path / "a", ns=(0, 0))
    assert not is_present(old, tmp_path)
    download(store, [old], tmp_path)
    (new,) = put(store, {"a": b"4321"})
    assert not is_present(new, tmp_path)
    assert download(store, [new], tmp_path) == [None]
    assert contents(tmp_path) == {"a": b"4321"}


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", "a//b", "./a", "..", "", "a\0b"])
def test_a_name_that_leads_out_is_refused_and_the_others_come(store, tmp_path, name):
    meta = put(store, {"good": b"1"})[0]
    bad = Artifact(name, meta.key, meta.size, meta.modified_at)
    assert not is_present(bad, tmp_path)
    target = tmp_path / "deep" / "to"
    assert download(store, [bad, meta], target) == ["its name is not a safe relative path", None]
    assert contents(tmp_path) == {"deep/to/good": b"1"}


@pytest.mark.parametrize("name", ["%2e%2e/out", "%6fther", "a b", "%zz", "%C3%a9"])
def test_a_name_that_no_job_writes_in_that_way_is_no_artifact(store, name):
    store.put(PREFIX + name, b"1")
    assert list_artifacts(store, "x") == ()


def test_of_two_names_that_are_one_file_here_one_comes_and_the_other_is_told(store, tmp_path, monkeypatch):
    found = put(store, {"Model": b"1", "model": b"22", "other": b"3"})
    found = list_artifacts(store, "x")
    # A disk that ignores case, as macOS's does.
    make_parents = stored_artifacts.make_parents
    monkeypatch.setattr(stored_artifacts, "make_parents", lambda root, name: make_parents(root, name.lower()))
    (tmp_path / "Model").symlink_to("model")
    monkeypatch.setattr(Path, "lstat", Path.stat)
    problems = download(store, found, tmp_path, num_threads=1)
    told = "another artifact has the same name on this disk"
    assert dict(zip([each.key.removeprefix(PREFIX) for each in found], problems, strict=True)) == {
        "Model": told, "model": None, "other": None,
    }  # fmt: skip


def test_no_symlink_on_the_way_is_followed_and_one_in_the_files_place_goes(store, tmp_path):
    outside, target = tmp_path / "outside", tmp_path / "to"
    outside.mkdir()
    target.mkdir()
    (target / "link").symlink_to(outside)
    (outside / "kept").write_bytes(b"kept")
    (target / "b").symlink_to(outside / "kept")
    found = put(store, {"link/a": b"1", "b": b"2"})
    assert [each.name for each in found] == ["b", "link/a"]
    assert download(store, found, target) == [None, f"{target}/link is a symlink, which is not followed"]
    assert contents(outside) == {"kept": b"kept"}
    assert (target / "b").read_bytes() == b"2"
    assert not (target / "b").is_symlink()


def test_a_file_and_a_directory_of_one_name_cannot_both_come(store, tmp_path):
    found = put(store, {"a": b"1", "a/b": b"2"})
    assert download(store, found, tmp_path, num_threads=1) == [None, "File exists"]


def test_a_file_that_the_job_replaces_meanwhile_comes_as_one_version(store, tmp_path, monkeypatch):
    monkeypatch.setattr(stored_artifacts, "_BLOCK", 10)
    (old,) = put(store, {"log": b"a" * 30})

    class Replaces(FaultyStore):
        def get_range(self, key, start, length):
            if start == 10 and self.calls["get_range"] < 3:
                self.inner.put(key, b"b" * 25)
            return super().get_range(key, start, length)

    replaced = Replaces(store, FaultPlan(), tmp_path / "faults")
    assert download(replaced, [old], tmp_path / "to") == [None]
    assert contents(tmp_path / "to") == {"log": b"b" * 25}
    (new,) = list_artifacts(store, "x")
    assert is_present(new, tmp_path / "to")


def test_what_was_deleted_meanwhile_is_said_to_be(store, tmp_path):
    (old,) = put(store, {"a": b"1"})
    store.delete(old.key)
    assert download(store, [old], tmp_path) == ["it was deleted in the meantime"]
    assert contents(tmp_path) == {}


def test_an_outage_leaves_no_half_of_a_file(store, tmp_path):
    found = put(store, {"a": b"1"})
    down = FaultyStore(
        store, FaultPlan(outages=(Outage(start=0, end=2e9),)), tmp_path / "f", clock=lambda: 1.0
    )
    with pytest.raises(TransientError):
        download(with_retries(down, sleep=lambda seconds: None), found, tmp_path / "to")
    assert contents(tmp_path / "to") == {}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.json", ["a.json"]),
        ("*.json", ["a.json", "sub/b.json"]),
        ("sub", ["sub/b.json", "sub/c.txt"]),
        ("sub/", ["sub/b.json", "sub/c.txt"]),
        ("su", []),
        ("[ab]*", ["a.json"]),
    ],
)
def test_a_pattern_is_a_name_a_directory_or_a_glob(store, pattern, expected):
    found = put(store, {"a.json": b"", "sub/b.json": b"", "sub/c.txt": b""})
    assert [each.name for each in found if each.matches(pattern)] == expected
