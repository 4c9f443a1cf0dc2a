"""Processes that carry a mark are found and ended, also where one look misses them."""

import os
import subprocess

import pytest

from cloudspot.host.process_marks import kill_all, marked_processes

NAME, VALUE = "CLOUDSPOT_TEST_MARK", f"of-{os.getpid()}"


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "1000"], env={**os.environ, NAME: VALUE})
    yield process
    process.kill()
    process.wait()


def test_every_marked_process_is_ended(sleeper, wait_until):
    wait_until(lambda: marked_processes(NAME, VALUE) == (sleeper.pid,))
    assert kill_all(lambda: marked_processes(NAME, VALUE))
    assert sleeper.wait() == -9


def test_a_process_that_one_look_misses_in_its_exec_is_ended(sleeper, wait_until):
    wait_until(lambda: marked_processes(NAME, VALUE) == (sleeper.pid,))
    looks = []

    def look():
        looks.append(None)
        return () if len(looks) == 1 else marked_processes(NAME, VALUE)

    assert kill_all(look)
    assert sleeper.wait(timeout=60) == -9


def test_without_time_what_is_left_is_said():
    assert not kill_all(lambda: (2**22 + 1,), timeout_seconds=0)
