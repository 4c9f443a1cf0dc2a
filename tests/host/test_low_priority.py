"""Threads that leave the processors to others, and a session that does."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudspot.host import low_priority

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities on Linux")


def niceness():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_one_thread_yields_and_the_others_go_on_as_before():
    before = niceness()
    with ThreadPoolExecutor(1, initializer=low_priority.lower_thread_priority) as pool:
        assert pool.submit(niceness).result() == max(before, low_priority.NICENESS)
    assert niceness() == before
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(niceness).result() == before


def test_a_thread_that_yields_more_already_goes_on_so():
    """As root, it would have been raised to ours."""
    lower = low_priority.NICENESS + 5

    def lowered():
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), lower)
        low_priority.lower_thread_priority()
        return niceness()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lowered).result() == lower


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel has no autogroups")
def test_the_session_yields_for_as_long_as_it_is_asked_to():
    script = """
from pathlib import Path
from cloudspot.host.low_priority import low_priority_session

group = Path("/proc/self/autogroup")
try:
    with low_priority_session():
        print(group.read_text())
        raise KeyError
except KeyError:
    print(group.read_text())
"""
    # In a session of its own: other tests of this one change its priority, too.
    words = [sys.executable, "-c", script]
    found = subprocess.run(words, capture_output=True, text=True, check=True, start_new_session=True).stdout
    assert [line.split()[-1] for line in found.split("\n") if line] == [str(low_priority.NICENESS), "0"]


def test_an_agent_that_follows_one_that_was_killed_in_an_upload_has_the_usual_priority(monkeypatch, tmp_path):
    """It took the low priority for the usual one, and every agent of the machine kept it."""
    group = tmp_path / "autogroup"
    group.write_text(str(low_priority.NICENESS))
    monkeypatch.setattr(low_priority, "_AUTOGROUP", group)
    with low_priority.low_priority_session():
        pass
    assert group.read_text() == "0"


def test_a_session_that_may_not_change_yet_tries_again(monkeypatch, tmp_path):
    """The kernel refuses a second change within a tenth of a second: the agent would have yielded for ever.

    And the second of two processes that fetch inputs would never have yielded at all.
    """
    group, write, slept, times = tmp_path / "autogroup", Path.write_text, [], {}

    def refusing(path, text, **options):
        times[text] = times.get(text, 0) + 1
        if times[text] % 4:
            raise BlockingIOError
        return write(path, text, **options)

    monkeypatch.setattr(low_priority, "_AUTOGROUP", group)
    monkeypatch.setattr(low_priority.time, "sleep", slept.append)
    monkeypatch.setattr(Path, "write_text", refusing)
    with low_priority.low_priority_session():
        assert group.read_text() == str(low_priority.NICENESS)
    assert group.read_text() == "0"
    monkeypatch.setattr(low_priority.os, "getpriority", lambda *_: 1)
    low_priority.lower_session_priority()
    assert group.read_text() == str(low_priority.NICENESS)
    assert slept == [0.1] * 9


def test_a_kernel_that_has_no_sessions_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setattr(low_priority, "_AUTOGROUP", tmp_path / "none" / "autogroup")
    with low_priority.low_priority_session():
        pass


@pytest.mark.parametrize(
    ("ran", "waited", "is_starved"),
    [
        (0.05, 0.45, False),  # that is too short to tell
        (0.05, 0.55, True),
        (1.0, 5.0, False),  # it shares a free core with three others, and waits for its turns
        (1.0, 6.5, True),
    ],
)
def test_who_waits_many_times_as_long_as_it_runs_is_starved(tmp_path, monkeypatch, ran, waited, is_starved):
    schedule = tmp_path / "schedstat"
    schedule.write_text(f"{int(ran * 1e9)} {int(waited * 1e9)} 150\n")
    monkeypatch.setattr(low_priority, "_SCHEDSTAT", schedule)
    assert low_priority.is_starved() is is_starved


def test_where_the_kernel_does_not_tell_nobody_is_starved(tmp_path, monkeypatch):
    monkeypatch.setattr(low_priority, "_SCHEDSTAT", tmp_path / "nothing")
    assert low_priority.is_starved() is False


@pytest.mark.full
def test_a_thread_that_gets_no_processor_finds_out():
    """For real: several times as many threads of the usual priority as there are processors."""
    script = """
import os, sys, threading, time
from cloudspot.host.low_priority import is_starved, lower_thread_priority

lower_thread_priority()
end, at = time.monotonic() + 60, 0.0
while not is_starved():
    assert time.monotonic() < end, open("/proc/thread-self/schedstat").read()
print("starved")
"""
    busy = "while True: pass"
    number = 2 * len(os.sched_getaffinity(0))
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))[:1]]
    pinned = ["taskset", "-c", ",".join(cores)]
    others = [subprocess.Popen([*pinned, sys.executable, "-c", busy]) for _ in range(number)]
    try:
        words = [*pinned, sys.executable, "-c", script]
        done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert done.stdout == "starved\n", done.stderr
