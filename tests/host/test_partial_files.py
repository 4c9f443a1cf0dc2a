"""What is written whole, and what is left of what was not."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cloudspot.host import locks, partial_files
from cloudspot.host.partial_files import (
    STALE_SECONDS,
    create_partial,
    partial_directory,
    remove_abandoned,
    whole_file,
    write_whole,
)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_file_appears_whole_and_replaces_an_older_one(tmp_path):
    path = tmp_path / "state.json"
    write_whole(path, b"old")
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["state.json"]


def test_a_mode_is_that_of_the_file_from_the_start_and_subject_to_the_umask(tmp_path):
    umask = os.umask(0o022)
    try:
        write_whole(tmp_path / "open", b"")
        with whole_file(tmp_path / "closed", mode=0o600) as file:
            assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
        with partial_directory(tmp_path, mode=0o700) as partial:
            assert partial.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(umask)
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "closed").stat().st_mode & 0o777 == 0o600


def test_a_name_of_any_length_can_be_written(tmp_path):
    for name in ("é" * 127, "x" * 255):
        write_whole(tmp_path / name, b"1")
        assert (tmp_path / name).read_bytes() == b"1"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "state.json"
    write_whole(path, b"old")
    with pytest.raises(type(error)), whole_file(path) as file:
        file.write(b"half")
        raise error
    with pytest.raises(type(error)), partial_directory(tmp_path) as partial:
        (partial / "deep").mkdir()
        (partial / "deep/file").touch()
        raise error
    assert names(tmp_path) == ["state.json"]
    assert path.read_bytes() == b"old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_is_full_when_the_last_bytes_go_out_is_an_error(tmp_path, monkeypatch):
    full = os.open("/dev/full", os.O_WRONLY)
    create = partial_files.create_partial

    def on_full_disk(directory, **options):
        partial, descriptor = create(directory, **options)
        os.dup2(full, descriptor)
        return partial, descriptor

    write_whole(tmp_path / "state.json", b"old")
    monkeypatch.setattr(partial_files, "create_partial", on_full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "state.json", b"new")
    os.close(full)
    assert names(tmp_path) == ["state.json"]
    assert (tmp_path / "state.json").read_bytes() == b"old"


def test_no_link_under_the_temporary_name_is_followed(tmp_path, monkeypatch):
    (tmp_path / "victim").write_bytes(b"kept")
    (tmp_path / "guessed").symlink_to("victim")
    monkeypatch.setattr(partial_files, "_new_name", lambda: "guessed")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "state.json", b"new")
    assert (tmp_path / "victim").read_bytes() == b"kept"


@pytest.mark.full
def test_many_writers_of_one_file_never_mix(tmp_path):
    path = tmp_path / "state.json"

    def write(number):
        for _ in range(100):
            write_whole(path, b"%d" % number * 1000)
            assert len(set(path.read_bytes())) == 1

    failures = []
    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    threading.excepthook, hook = failures.append, threading.excepthook
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threading.excepthook = hook
    assert failures == []
    assert names(tmp_path) == ["state.json"]


KILLED = """
import os, signal, sys
from pathlib import Path
from cloudspot.host.partial_files import partial_directory, whole_file
with whole_file(Path(sys.argv[1]) / "file") as file, partial_directory(Path(sys.argv[1])) as partial:
    file.write(b"half")
    (partial / "deep").mkdir()
    (partial / "deep" / "file").write_bytes(b"half")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_writer_has_left_its_successor_removes_and_a_live_one_keeps(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert writer.stdout.readline() == b"ready\n"
    left = names(tmp_path)
    assert len(left) == 2
    remove_abandoned(tmp_path)
    assert names(tmp_path) == left
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdin.close()
    writer.stdout.close()
    write_whole(tmp_path / "other", b"")
    assert names(tmp_path) == ["other"]


def test_what_other_hosts_have_left_goes_when_it_is_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(partial_files, "this_boot", lambda: "0123abcd")
    for _ in range(2):
        _, descriptor = create_partial(tmp_path)
        os.close(descriptor)
    monkeypatch.undo()
    old, young = names(tmp_path)
    long_ago = time.time() - STALE_SECONDS - 1
    os.utime(tmp_path / old, (long_ago, long_ago))
    remove_abandoned(tmp_path)
    assert names(tmp_path) == [young]


def test_without_locks_only_what_is_stale_goes(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    write_whole(tmp_path / "file", b"1")
    made = [create_partial(tmp_path) for _ in range(2)]
    for _, descriptor in made:
        os.close(descriptor)
    long_ago = time.time() - STALE_SECONDS - 1
    os.utime(made[0][0], (long_ago, long_ago))
    remove_abandoned(tmp_path)
    assert names(tmp_path) == sorted(["file", made[1][0].name])


def test_foreign_names_are_left_alone_unless_the_whole_directory_is_temporary(tmp_path):
    foreign = [".x.partial", ".cloudspot-1-2.partial", "file"]
    long_ago = time.time() - STALE_SECONDS - 1
    for name in foreign:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (long_ago, long_ago))
    (tmp_path / "young").touch()
    remove_abandoned(tmp_path)
    assert names(tmp_path) == sorted([*foreign, "young"])
    remove_abandoned(tmp_path, all_names=True)
    assert names(tmp_path) == ["young"]
    remove_abandoned(tmp_path / "missing")


def test_a_writer_whose_file_was_swept_before_its_lock_makes_another(tmp_path, monkeypatch):
    lock, swept = partial_files._lock_new, []

    def late(partial, descriptor):
        if not swept:
            swept.append(partial)
            remove_abandoned(tmp_path)
        return lock(partial, descriptor)

    monkeypatch.setattr(partial_files, "_lock_new", late)
    write_whole(tmp_path / "file", b"1")
    assert not swept[0].exists()
    swept.clear()
    with partial_directory(tmp_path) as partial:
        assert partial != swept[0]
        assert partial.is_dir()
    assert names(tmp_path) == ["file"]
