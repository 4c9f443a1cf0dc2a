"""The code bundle, made."""

import hashlib
import os
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest
from support.stores.faultstore import FaultPlan, FaultyStore

from cloudspot.errors import BundleError, CorruptData
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.code.bundle import make_bundle, put_bundle
from cloudspot.jobstore.code.extraction import extract_bundle
from cloudspot.jobstore.layout import keys


@pytest.fixture
def work(tmp_path):
    root = tmp_path / "work"
    (root / "pkg/deep").mkdir(parents=True)
    (root / "train.py").write_text("print(1)\n")
    (root / "pkg/a.py").write_text("")
    (root / "pkg/deep/é.txt").write_text("x" * 300)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o700)
    (root / "empty").mkdir()
    return root


def make(work, **options):
    return make_bundle(work, entrypoint="train.py", **options)


def content(root):
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = path.readlink().as_posix()
        elif path.is_file():
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


def test_what_was_bundled_is_extracted_alike(work, tmp_path):
    bundle = make(work)
    assert bundle.files == ("pkg/a.py", "pkg/deep/é.txt", "run.sh", "train.py")
    assert bundle.skipped == ()
    assert bundle.sha256 == hashlib.sha256(bundle.data).hexdigest()
    assert bundle.size == len(bundle.data)
    extract_bundle(bundle.data, tmp_path / "out", sha256=bundle.sha256)
    assert content(tmp_path / "out") == content(work)


def test_equal_code_gives_equal_bytes_whenever_and_wherever_it_lies(work, tmp_path):
    first = make(work)
    extract_bundle(first.data, tmp_path / "other/place", sha256=first.sha256)
    for number, path in enumerate(sorted((tmp_path / "other/place").rglob("*"))):
        os.utime(path, (time.time() - 1000 * number, 5))
    (work / "run.sh").chmod(0o755)
    assert make(tmp_path / "other/place").data == first.data == make(work).data
    (work / "train.py").write_text("print(2)\n")
    assert make(work).sha256 != first.sha256


def test_owners_and_times_do_not_travel(work):
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(make(work).data)) as archive:
        members = archive.getmembers()
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 0)}
    assert make(work).data[4:8] == bytes(4)  # The time in gzip's own header.
    assert {m.name: m.mode for m in members}["run.sh"] == 0o755
    assert {m.name: m.mode for m in members}["train.py"] == 0o644


def test_symlinks_inside_are_kept_and_others_are_named_and_left_out(work, tmp_path):
    (tmp_path / "outside").write_text("secret")
    (work / ".env").write_text("TOKEN=1")
    (work / "pkg/deep/up").symlink_to("../a.py")
    (work / "dir").symlink_to("pkg/deep")
    (work / "dot").symlink_to("./train.py")
    (work / "root").symlink_to(".")
    (work / "pkg/back").symlink_to("..")
    for name, target in {
        "abs": str(work / "train.py"),
        "out": "../outside",
        "down-up": "pkg/../../outside",
        "via": "dir/../../../outside",
        "env": ".env",
        "none": "missing.py",
        "loop": "loop",
        "self": "pkg/../train.py",
        "empty-link": "empty",
    }.items():
        (work / name).symlink_to(target)
    bundle = make(work)
    assert set(bundle.files) == {
        "pkg/a.py", "pkg/deep/é.txt", "run.sh", "train.py", "pkg/deep/up", "dir", "dot", "pkg/back",
    }  # fmt: skip
    assert [line.partition(":")[0] for line in bundle.skipped] == sorted(
        ["abs", "out", "down-up", "via", "env", "none", "loop", "self", "empty-link", "root"]
    )
    reasons = dict(line.split(": ", 1) for line in bundle.skipped)
    assert reasons["out"] == "is a symlink that leads outside the code"
    assert reasons["env"] == "is a symlink to something that is not in the bundle"
    extract_bundle(bundle.data, tmp_path / "dest", sha256=bundle.sha256)
    assert (tmp_path / "dest/dir/up").read_bytes() == b""
    assert (tmp_path / "dest/dot").read_text() == "print(1)\n"
    for path in (tmp_path / "dest").rglob("*"):
        assert path.resolve().is_relative_to(tmp_path / "dest")


def test_a_secret_is_in_no_bundle(work):
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    for name in (".env", ".env.production", "pkg/.env"):
        (work / name).write_text("TOKEN=hunter2")
    with (work / ".git/config").open("a") as config:
        config.write('[remote "origin"]\n  url = https://hunter2@host\n')
    bundle = make(work)
    assert not [name for name in bundle.files if ".env" in name or ".git" in name]


def test_the_entrypoint_must_be_in_it(work):
    with pytest.raises(BundleError, match=r"run\.entrypoint: 'nope\.py' in .*work does not exist"):
        make_bundle(work, entrypoint="nope.py")
    (work / ".cloudspotignore").write_text("train.py\n")
    with pytest.raises(BundleError, match=r"'train\.py' in .* is ignored by"):
        make(work)
    with pytest.raises(BundleError, match="not a file inside"):
        make_bundle(work, entrypoint="pkg")
    with pytest.raises(BundleError, match=r"run\.entrypoint"):
        make_bundle(work, entrypoint="../work/train.py/../../x")
    assert "pkg/a.py" in make_bundle(work, entrypoint="./pkg/../pkg/a.py").files


def test_code_that_is_too_large_names_its_largest_files(work):
    for number in range(8):
        (work / f"data{number}.bin").write_bytes(b"x" * (1000 + number))
    with pytest.raises(
        BundleError, match=r"more than 4\.9 KiB; list files .* largest: data7\.bin .*data3\.bin"
    ) as caught:
        make(work, max_bytes=5000)
    assert "data2.bin" not in str(caught.value)
    assert ".cloudspotignore" in str(caught.value)
    (work / ".cloudspotignore").write_text("*.bin\n")
    assert "data7.bin" not in make(work, max_bytes=5000).files


def test_sockets_and_pipes_are_named_and_left_out(work, monkeypatch):
    os.mkfifo(work / "pipe")
    monkeypatch.chdir(work)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        bundle = make(work)
    assert bundle.skipped == (
        "pipe: is neither a file nor a directory",
        "socket: is neither a file nor a directory",
    )


def test_what_cannot_be_read_is_named(work, tmp_path):
    with pytest.raises(BundleError, match="is not a directory"):
        make(tmp_path / "none")
    with pytest.raises(BundleError, match="is not a directory"):
        make(work / "train.py")
    (work / b"\xff.txt".decode("utf-8", "surrogateescape")).write_text("")
    with pytest.raises(BundleError, match="must be UTF-8"):
        make(work)


def test_a_working_directory_behind_a_symlink_or_a_relative_path_is_the_same_code(
    work, tmp_path, monkeypatch
):
    from pathlib import Path

    (tmp_path / "link").symlink_to(work)
    monkeypatch.chdir(tmp_path)
    assert make(tmp_path / "link").data == make(Path("work")).data == make(work).data


def test_the_repr_of_a_bundle_does_not_hold_its_bytes(work):
    assert len(repr(make(work))) < 500


def test_a_bundle_is_stored_once_under_its_hash(work, store, tmp_path):
    bundle = make(work)
    counted = FaultyStore(store, FaultPlan(), tmp_path / "state")
    put_bundle(counted, keys.code(bundle.sha256), bundle)
    assert store.get(keys.code(bundle.sha256)) == bundle.data
    assert counted.calls == {"head": 1, "put": 1}
    put_bundle(counted, keys.code(bundle.sha256), bundle)
    assert counted.calls == {"head": 2, "put": 1}


def test_a_bundle_survives_faults_and_another_submitter(work, store, tmp_path):
    bundle = make(work)
    for faults in ({"lose_every": 1}, {"fail_every": 2}):
        put_bundle(
            with_retries(FaultyStore(store, FaultPlan(**faults), tmp_path), sleep=lambda seconds: None),
            keys.code(bundle.sha256),
            bundle,
        )
    assert store.get(keys.code(bundle.sha256)) == bundle.data


def test_something_else_under_the_bundles_key_is_refused(work, store):
    bundle = make(work)
    store.put(keys.code(bundle.sha256), b"half")
    with pytest.raises(CorruptData, match=f"code/{bundle.sha256} does not match"):
        put_bundle(store, keys.code(bundle.sha256), bundle)


def test_progress_counts_every_byte(work, store):
    told = {}

    @contextmanager
    def open_progress(what, num_bytes):
        told[what] = [num_bytes]
        yield told[what].append

    bundle = make(work, open_progress=open_progress)
    put_bundle(store, keys.code(bundle.sha256), bundle, open_progress=open_progress)
    total, *counts = told["bundling code"]
    assert sum(counts) == total == 9 + 300 + 10
    assert told["uploading code"] == [None]
