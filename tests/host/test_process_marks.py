"""Processes that carry a mark are found and ended, also where one look misses them."""

import os
import subprocess

import pytest

from cloudspot.host import process_marks
from cloudspot.host.process_marks import kill_marked, marked_processes

NAME, VALUE = "CLOUDSPOT_TEST_MARK", f"of-{os.getpid()}"


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "1000"], env={**os.environ, NAME: VALUE})
    yield process
    process.kill()
    process.wait()


def test_every_marked_process_is_ended(sleeper, wait_until):
    wait_until(lambda: marked_processes(NAME, VALUE) == (sleeper.pid,))
    assert kill_marked(NAME, VALUE)
    assert sleeper.wait() == -9


def test_a_process_that_one_look_misses_in_its_exec_is_ended(sleeper, wait_until, monkeypatch):
    wait_until(lambda: marked_processes(NAME, VALUE) == (sleeper.pid,))
    looks = []

    def look(name, value):
        looks.append(value)
        return () if len(looks) == 1 else marked_processes(name, value)

    monkeypatch.setattr(process_marks, "marked_processes", look)
    assert kill_marked(NAME, VALUE)
    assert sleeper.wait(timeout=60) == -9


def test_without_time_what_is_left_is_said(monkeypatch):
    monkeypatch.setattr(process_marks, "marked_processes", lambda name, value: (2**22 + 1,))
    assert not kill_marked(NAME, VALUE, timeout_seconds=0)
