"""Small files that other processes fetch: all of them, whatever dies, and nothing outlives who asked."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from staged_inputs import contents, staging

from cloudspot.errors import CloudspotError, ObjectMissing, TransientError
from cloudspot.jobfile.data import DataSpec
from cloudspot.jobstore import fetching_processes as module
from cloudspot.jobstore.fetching_processes import (
    FILES_AT_ONCE,
    MAX_PROCESSES,
    MIN_FILES,
    fetching_processes,
    processes_for,
)
from cloudspot.jobstore.input_cache import InputCache, _SmallFiles
from cloudspot.jobstore.inputs import BLOCK_BYTES, open_input
from cloudspot.local.filestore import FileStore
from cloudspot.retrying import retry


@pytest.fixture
def given(tmp_path):
    """The objects of a store in the test's directory, of which one is not small."""
    store = FileStore(f"file://{tmp_path}/data")
    found = {f"{number % 7}/{number:03}": os.urandom(100 + number) for number in range(3 * FILES_AT_ONCE)}
    found["large"] = os.urandom(BLOCK_BYTES + 1)
    for key, data in found.items():
        store.put(key, data)
    return found


@pytest.fixture
def source(tmp_path):
    return open_input(DataSpec(url=f"file://{tmp_path}/data/"))


@pytest.fixture
def started(monkeypatch):
    """The processes that have been started."""
    found, start = [], subprocess.Popen

    def popen(*args, **kwargs):
        found.append(start(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(module.subprocess, "Popen", popen)
    return found


def test_small_files_come_from_other_processes_and_large_ones_from_this(tmp_path, given, source, monkeypatch):
    cache, read, names = InputCache(tmp_path / "cache"), source.read, set()

    def noted(file, *args):
        names.add(file.name)
        read(file, *args)

    monkeypatch.setattr(source, "read", noted)
    told = []

    @contextmanager
    def progress(_total, _here):
        yield told.append

    staged = cache.stage(source, staging(num_processes=2, open_progress=progress))
    assert contents(cache, source, staged) == given
    assert names == {"large"}
    assert sum(told) == sum(map(len, given.values())) == staged.fetched_bytes


def test_a_process_that_dies_is_followed_by_another(tmp_path, given, source, started):
    cache, killed = InputCache(tmp_path / "cache"), []

    @contextmanager
    def progress(_total, _here):
        def add(_count):
            if not killed:
                killed.append(started[0])
                started[0].kill()
                started[0].wait()

        yield add

    def repeat(call):
        return retry(call, sleep=lambda _seconds: None)

    staged = cache.stage(source, staging(num_processes=2, repeat=repeat, open_progress=progress))
    assert contents(cache, source, staged) == given
    assert 2 <= len(started) <= 3
    assert [one.returncode for one in killed] == [-signal.SIGKILL]
    assert all(one.returncode is not None for one in started)


def test_what_goes_wrong_with_a_file_is_raised_here_as_what_it_is(tmp_path, given, source):
    cache, own = InputCache(tmp_path / "cache"), tmp_path / "cache" / "inputs"
    own.mkdir(parents=True)
    files = [file for file in source.wanted() if file.name != "large"]
    (tmp_path / "data" / files[5].key).unlink()
    with fetching_processes(1, _SmallFiles(cache, own, source)) as fetch:
        with pytest.raises(ObjectMissing, match=files[5].key):
            fetch(files)
        fetch(files[6:])
    assert all(cache.has(source, file) for file in files[6:])


def test_an_error_that_cannot_be_sent_is_told_as_text_and_what_is_printed_is_no_answer(capfd):
    odd = "class Odd(Exception):\n def __init__(self, a, b): super().__init__(a)\nprint('aside')\nraise Odd('off', 1)"
    with fetching_processes(1, partial(exec, odd)) as fetch:
        for _ in range(2):
            with pytest.raises(CloudspotError, match=r"^Odd: off$"):
                fetch({})
    assert capfd.readouterr().err.split() == ["aside"] * 2


def test_a_process_that_ends_itself_is_an_error_that_passes():
    with fetching_processes(1, partial(exec, "import os; os._exit(3)")) as fetch:
        for _ in range(2):
            with pytest.raises(TransientError, match="ended with status 3"):
                fetch({})


HOLDER = """
from functools import partial
from cloudspot.jobstore.fetching_processes import fetching_processes
with fetching_processes(1, partial(exec, "import os, sys, time; print(os.getpid(), file=sys.stderr); time.sleep(60)")) as fetch:
    fetch({})
"""


def test_it_ends_with_whoever_asked_though_a_request_hangs(wait_until):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stderr=subprocess.PIPE, text=True)
    pid = int(holder.stderr.readline())
    assert Path(f"/proc/{pid}").exists()
    holder.kill()
    holder.communicate()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), seconds=10)


@pytest.mark.parametrize(
    ("cores", "num_files", "expected"),
    [
        (1, 10**6, 1),
        (64, MIN_FILES, 1),
        (64, 2 * MIN_FILES, 2),
        (2, 10**6, 2),
        (64, 10**6, MAX_PROCESSES),
        (4, 0, 1),
    ],
)
def test_there_are_as_many_as_have_work_and_a_core(monkeypatch, cores, num_files, expected):
    monkeypatch.setenv("CLOUDSPOT_CORES", str(cores))
    assert processes_for(num_files) == expected
