"""All that a program has started is found, wherever it hides and whatever it overwrites."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cloudspot.host.kept_processes import KeptProcesses, _members
from cloudspot.host.process_keeper import GROUP, leave_group, make_group, start_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")

# Forks twice, begins a session and overwrites what the kernel shows of its arguments and environment.
HIDE = """
import ctypes, os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        fields = open("/proc/self/stat", "rb").read().rpartition(b")")[2].split()
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            for first, last in ((45, 46), (47, 48)):
                memory.seek(int(fields[first]))
                memory.write(bytes(int(fields[last]) - int(fields[first])))
        open(sys.argv[1] + ".tmp", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".tmp", sys.argv[1])
        time.sleep(300)
    os._exit(0)
os.wait()
"""


@pytest.fixture
def kept(tmp_path):
    made = KeptProcesses(tmp_path / "records")
    yield made
    assert made.kill()
    for process in STARTED:
        process.communicate(timeout=30)
    STARTED.clear()


STARTED = []


def start(kept, tmp_path, *words, python=sys.executable, **options):
    command = kept.command(python, words, ended=tmp_path / "ended")
    STARTED.append(subprocess.Popen(command, start_new_session=True, **options))
    return STARTED[-1]


def hidden(kept, tmp_path, **options):
    """Start a program that leaves a hidden process behind; return that one's id."""
    process = start(kept, tmp_path, sys.executable, "-c", HIDE, str(tmp_path / "pid"), **options)
    while not (tmp_path / "pid").exists():
        time.sleep(0.01)
    assert process.wait(30) == 0
    return int((tmp_path / "pid").read_text())


def test_a_process_that_overwrites_its_title_and_environment_is_found_and_ended(kept, tmp_path):
    """As vLLM's and Ray's do: an engine that was left over kept its GPU memory."""
    pid = hidden(kept, tmp_path)
    assert b"PATH" not in Path("/proc", str(pid), "environ").read_bytes()
    assert kept.pids() == {pid}
    assert not kept.is_running(), "the program itself is over"
    assert kept.kill()
    assert start_of(pid) is None
    assert kept.pids() == set()


def test_another_agent_finds_them_too(kept, tmp_path):
    pid = hidden(kept, tmp_path)
    assert KeptProcesses(tmp_path / "records").pids() == {pid}


def test_a_program_ends_as_it_would_by_itself(kept, tmp_path):
    assert start(kept, tmp_path, "/bin/sh", "-c", "exit 7").wait(30) == 7
    assert start(kept, tmp_path, "/bin/sh", "-c", "kill -9 $$").wait(30) == 137
    said = start(kept, tmp_path, "/no/such/program", stderr=subprocess.PIPE)
    assert said.communicate(timeout=30)[1] == b"/no/such/program: No such file or directory\n"
    assert said.returncode == 127


def test_it_gets_what_the_agent_gives_it_and_the_signals_as_they_were(kept, tmp_path):
    code = "import os, signal; print(os.environ['GIVEN'], signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, input())"
    process = start(
        kept, tmp_path, sys.executable, "-c", code,
        env={**os.environ, "GIVEN": "value"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.communicate(b"line\n", timeout=30)[0] == b"value True line\n"


def test_nothing_starts_once_it_was_ended(kept, tmp_path):
    (tmp_path / "ended").touch()
    assert start(kept, tmp_path, "touch", str(tmp_path / "ran")).wait(30) == 137
    assert not (tmp_path / "ran").exists()


def test_a_later_process_of_the_same_id_is_none_of_them(kept, tmp_path):
    hidden(kept, tmp_path)
    (record,) = (tmp_path / "records").iterdir()
    keeper = int(record.name[1:].partition("-")[0])
    kept.kill()
    while start_of(keeper) is not None:
        time.sleep(0.01)
    record.rename(record.with_name(f"k{os.getpid()}-1"))
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert kept.pids() == set()
    finally:
        child.kill()
        child.wait()


def test_what_is_sent_to_all_processes_of_a_machine_leaves_the_programs_status_known(kept, tmp_path):
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print(1, flush=True); time.sleep(60)"
    process = start(kept, tmp_path, sys.executable, "-c", code, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"1\n"
    (record,) = (tmp_path / "records").iterdir()
    for pid in (process.pid, int(record.name[1:].partition("-")[0]), *kept.pids()):
        os.kill(pid, signal.SIGTERM)
    assert process.wait(30) == 7


def test_a_keeper_outlives_who_has_started_it(kept, tmp_path):
    process = start(kept, tmp_path, "sleep", "300")
    while not kept.pids():
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert kept.is_running()
    assert len(kept.pids()) == 1


def has_groups():
    """Return whether this test may make control groups."""
    path = make_group()
    leave_group(path)
    return path != ""


@pytest.mark.skipif(not has_groups(), reason="no control group may be made here")
def test_what_is_left_of_a_keeper_that_is_killed_is_found_by_its_control_group(kept, tmp_path):
    pid = hidden(kept, tmp_path)
    (record,) = (tmp_path / "records").iterdir()
    group = Path(record.read_text())
    os.kill(int(record.name[1:].partition("-")[0]), signal.SIGKILL)
    while start_of(int(record.name[1:].partition("-")[0])) is not None:
        time.sleep(0.01)
    assert kept.pids() == {pid}
    assert kept.kill()
    assert start_of(pid) is None
    again = KeptProcesses(tmp_path / "others")
    assert start(again, tmp_path, "true").wait(30) == 0
    assert not group.exists(), "the next keeper has removed it"


@pytest.mark.skipif(not has_groups(), reason="no control group may be made here")
def test_a_keeper_removes_its_control_group_at_its_end(kept, tmp_path):
    hidden(kept, tmp_path)
    (record,) = (tmp_path / "records").iterdir()
    assert Path(record.read_text()).exists()
    kept.kill()
    while start_of(int(record.name[1:].partition("-")[0])) is not None:
        time.sleep(0.01)
    assert not Path(record.read_text()).exists()


def test_without_a_control_group_the_keepers_tree_is_enough(kept, tmp_path, monkeypatch):
    """As on most machines on which the agent is not root."""
    monkeypatch.setattr("cloudspot.host.kept_processes._members", lambda _: set())
    pid = hidden(kept, tmp_path)
    assert kept.pids() == {pid}


def test_where_no_python_is_the_program_itself_is_found(kept, tmp_path):
    """In a container whose image has none."""
    process = start(kept, tmp_path, "sh", "-c", "sleep 300; sleep 300", python="no-such-python")
    while len(kept.pids()) < 2:
        time.sleep(0.01)
    assert process.pid in kept.pids()
    assert kept.is_running()
    assert kept.kill()
    assert process.wait(30) == -9


def test_a_control_group_that_is_removed_while_it_is_read_is_no_error(tmp_path, monkeypatch):
    """Agents failed for it, as the groups of a training that ends go one after the other."""
    group = tmp_path / f"{GROUP}1-2"
    for name in ("a", "b"):
        (group / name).mkdir(parents=True)
        (group / name / "cgroup.procs").write_text("7\n")
    real = os.scandir

    def scan(path="."):
        if str(path).endswith("/a"):
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert _members(str(group)) == {7}
