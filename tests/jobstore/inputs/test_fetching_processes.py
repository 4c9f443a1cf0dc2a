"""Small files that other processes fetch: all of them, whatever dies, and nothing outlives who asked."""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from support.jobs.process_portrait import left_open
from support.stores.directorystore import directory_store
from support.stores.staged_inputs import contents, staging

from cloudspot.errors import CloudspotError, ObjectMissing, TransientError
from cloudspot.host.low_priority import NICENESS, lower_thread_priority
from cloudspot.jobfile.data import DataSpec
from cloudspot.jobstore.inputs import fetching_processes as module
from cloudspot.jobstore.inputs.fetching_processes import (
    MAX_PROCESSES,
    MIN_FILES,
    fetching_processes,
    processes_for,
)
from cloudspot.jobstore.inputs.input_cache import PORTION_FILES, InputCache, _SmallFiles
from cloudspot.jobstore.inputs.inputs import BLOCK_BYTES, open_input


@pytest.fixture
def given(tmp_path):
    """The objects of a store in the test's directory, of which one is not small."""
    store = directory_store(tmp_path / "data")
    found = {f"{number % 7}/{number:03}": os.urandom(100 + number) for number in range(6 * PORTION_FILES)}
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


@pytest.mark.full
def test_small_files_come_from_other_processes_and_large_ones_from_this(
    tmp_path, given, source, started, monkeypatch
):
    cache, read, names = InputCache(tmp_path / "cache"), source.read, set()

    def noted(file, *args):
        names.add(file.name)
        read(file, *args)

    monkeypatch.setattr(source, "read", noted)
    monkeypatch.setattr(module, "MIN_FILES", 100)
    monkeypatch.setenv("CLOUDSPOT_CORES", "2")
    told = []

    @contextmanager
    def progress(_total, _here):
        yield told.append

    staged = cache.stage(source, staging(open_progress=progress))
    assert contents(cache, source, staged) == given
    assert len(started) == 2
    assert names == {"large"}
    assert sum(told) == sum(map(len, given.values())) == staged.fetched_bytes


@pytest.mark.full
def test_what_a_process_that_dies_leaves_is_fetched_here(tmp_path, given, source, started, caplog):
    cache, killed = InputCache(tmp_path / "cache"), []

    @contextmanager
    def progress(_total, _here):
        def add(_count):
            if started and not killed:
                killed.append(started[0])
                started[0].kill()

        yield add

    staged = cache.stage(source, staging(num_processes=2, num_threads=1, open_progress=progress))
    assert contents(cache, source, staged) == given
    assert len(started) == 2
    assert killed[0].returncode == -signal.SIGKILL
    assert "a process that fetches inputs has failed" in caplog.text
    assert all(one.returncode is not None for one in started)


@pytest.mark.full
@pytest.mark.parametrize("executable", ["/no/such/python", "/bin/false"])
def test_where_no_process_can_be_had_all_is_fetched_here(tmp_path, given, source, monkeypatch, executable):
    monkeypatch.setattr(module.sys, "executable", executable)
    cache = InputCache(tmp_path / "cache")
    staged = cache.stage(source, staging(num_processes=2))
    assert contents(cache, source, staged) == given


@pytest.mark.full
def test_an_object_that_changes_meanwhile_is_fetched_again(tmp_path, given, source, monkeypatch):
    cache, wanted = InputCache(tmp_path / "cache"), source.wanted
    changed = directory_store(tmp_path / "data")

    def listed_before():
        found = wanted()
        if changed.get("0/007") == given["0/007"]:
            changed.put("0/007", b"another")
            changed.delete("1/001")
        return found

    monkeypatch.setattr(source, "wanted", listed_before)
    staged = cache.stage(source, staging(num_processes=2))
    expected = {**given, "0/007": b"another"}
    del expected["1/001"]
    assert contents(cache, source, staged) == expected


@pytest.mark.full
def test_when_the_node_leaves_no_further_portion_is_begun(tmp_path, given, source):
    cache, asked = InputCache(tmp_path / "cache"), []

    def repeat(call):
        asked.append(call)
        if len(asked) > 2:  # the listing, and the first portion
            raise InterruptedError
        return call()

    with pytest.raises(InterruptedError):
        cache.stage(source, staging(num_processes=2, repeat=repeat))
    here = [path for path in cache.root.glob("objects/*/*") if path.is_file()]
    assert len(here) <= PORTION_FILES


@pytest.mark.full
def test_what_goes_wrong_with_a_file_is_raised_here_as_what_it_is(tmp_path, given, source):
    cache, own = InputCache(tmp_path / "cache"), tmp_path / "cache" / "inputs"
    own.mkdir(parents=True)
    files = [file for file in source.wanted() if file.name != "large"]
    (tmp_path / "data" / files[5].key).unlink()
    with fetching_processes(1, _SmallFiles(cache, own, source, 4)) as fetch:
        with pytest.raises(ObjectMissing, match=re.escape(files[5].key)):
            fetch(files)
        fetch(files[6:])
    assert all(cache.has(source, file) for file in files[6:])


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "class Odd(Exception):\n def __init__(self, a, b): super().__init__(a)\nraise Odd('off', 1)",
            "Odd: off",
        ),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (
            "import click\nraise click.BadOptionUsage('name', 'off')",
            "BadOptionUsage: off",
        ),  # packs, and never unpacks
    ],
)
def test_an_error_that_cannot_be_raised_here_is_told_as_text(code, told):
    with fetching_processes(1, partial(exec, code)) as fetch:
        for _ in range(2):
            with pytest.raises(CloudspotError, match=f"^{told}$"):
                fetch({})


def test_what_a_plugin_prints_or_reads_is_neither_answer_nor_order(capfd):
    aside = "import subprocess, sys; print('aside', flush=True); subprocess.run(['cat']); assert sys.stdin.read() == ''"
    with fetching_processes(1, partial(exec, aside)) as fetch:
        fetch({})
        fetch({})
    assert capfd.readouterr().err.split() == ["aside"] * 2


HERE = """
import json, os, pathlib, sys
group = pathlib.Path("/proc/self/autogroup")
json.dump({
    "leads_its_session": os.getsid(0) == os.getpid(),
    "directory": os.getcwd(),
    "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    "session_niceness": int(group.read_text().split()[-1]) if group.exists() else None,
    "files": [os.path.realpath(f"/dev/fd/{one}") for one in os.listdir("/dev/fd")],
    "path": sys.path[1:],
}, sys.stderr)
print(file=sys.stderr)
"""


def seen_by_the_process(capfd, *, initializer=None):
    """Return what one of the processes sees of itself that a thread has started."""
    with (
        fetching_processes(1, partial(exec, HERE)) as fetch,
        ThreadPoolExecutor(1, initializer=initializer) as pool,
    ):
        pool.submit(fetch, {}).result()
    return json.loads(capfd.readouterr().err)


def test_it_has_our_modules_but_neither_our_session_our_directory_nor_our_files(tmp_path, monkeypatch, capfd):
    """Ctrl-C is for whoever started this process, and files of the job could be taken for modules."""
    (tmp_path / "pickle.py").write_text("raise SystemExit('of the job')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["of/mine", *sys.path])
    with left_open(tmp_path / "of-ours"):
        seen = seen_by_the_process(capfd)
    assert (seen["leads_its_session"], seen["directory"]) == (True, "/")
    assert seen["path"][0] == f"{tmp_path}/of/mine"
    assert str(tmp_path / "of-ours") not in seen["files"]


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel has no autogroups")
@pytest.mark.parametrize("initializer", [None, lower_thread_priority])
def test_its_session_yields_if_whoever_started_it_does(capfd, initializer):
    seen = seen_by_the_process(capfd, initializer=initializer)
    yields = initializer is not None or os.getpriority(os.PRIO_PROCESS, 0) > 0
    assert (seen["niceness"] > 0) is yields
    assert seen["session_niceness"] == (NICENESS if yields else 0)


HOLDER = """
from functools import partial
from cloudspot.jobstore.inputs.fetching_processes import fetching_processes
with fetching_processes(1, partial(exec, "import os, sys, time; print(os.getpid(), file=sys.stderr); time.sleep(60)")) as fetch:
    fetch({})
"""


def is_alive(pid):
    status = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return status.stdout.strip() != "" and not status.stdout.startswith("Z")


@pytest.mark.full
def test_it_ends_with_whoever_asked_though_a_request_hangs(wait_until):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stderr=subprocess.PIPE, text=True)
    pid = int(holder.stderr.readline())
    assert is_alive(pid)
    holder.kill()
    holder.communicate()
    wait_until(lambda: not is_alive(pid), seconds=10)


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


def test_of_a_portion_what_came_before_an_error_stays(tmp_path, monkeypatch):
    store = directory_store(tmp_path / "data")
    for number in range(8):
        store.put(f"{number}", b"x")
    (tmp_path / "cache" / "own").mkdir(parents=True)
    cache, source = InputCache(tmp_path / "cache"), open_input(DataSpec(url=f"{store.url}/"))
    files = source.wanted()
    read = source.read

    def fail(file, *rest):
        if file.key == "5":
            raise TransientError("not now")
        read(file, *rest)

    monkeypatch.setattr(source, "read", fail)
    with pytest.raises(TransientError, match="not now"):
        _SmallFiles(cache, tmp_path / "cache" / "own", source, 1)(files)
    assert [file.key for file in files if cache.has(source, file)] == ["0", "1", "2", "3", "4"]
    assert list((tmp_path / "cache" / "own").iterdir()) == []
